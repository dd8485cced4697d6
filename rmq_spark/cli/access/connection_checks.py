"""Checks of a connection: TLS, certificates, credentials and rights, each with what to correct.

    check_connection     does a name server answer, with TLS if it is on, and with these keys?
    check_topic_rights   may the user see a topic?

An error of the client says what has failed. These checks look further: for which hosts a
certificate is valid, who has issued it, when it expires, and whether a server that closes the
connection speaks TLS.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Final

from rmq_spark.cli.shell.health_check import HealthCheck
from rmq_spark.client.errors import (
    CONNECTION_FAULTS,
    AccessDenied,
    AuthenticationFailed,
    BrokerRefused,
    ClientError,
    NoNameServer,
    TlsFailed,
)
from rmq_spark.client.instance.instance import ClientInstance
from rmq_spark.client.transport.connection import parse_address
from rmq_spark.client.transport.sockets import SOCKETS
from rmq_spark.client.transport.tls.client import (
    CLIENT_CERTIFICATE_REQUIRED,
    NAME_MISMATCH_CODES,
    NO_TLS_AT_PEER,
    NOT_TLS,
    VALIDITY_CODES,
    PresentedCertificate,
    TlsClient,
    fetch_certificate,
)
from rmq_spark.client.transport.tls.settings import TlsSettings
from rmq_spark.spark.brokers.fan_out import instance_for
from rmq_spark.spark.options.access import BrokerAccess

_TIMEOUT_SECONDS: Final = 3.0
_EXPIRY_WARNING_DAYS: Final = 14
_NAME_SERVER: Final = "name server"
_START_REMEDY: Final = "start a broker there (rocketpoll broker), or give another address"
_CERTIFICATE_REMEDY: Final = (
    "set options tlsCertFile and tlsKeyFile to a certificate that the broker's authority has "
    "signed, and to its key"
)


def check_connection(
    access: BrokerAccess, clock: Callable[[], datetime] = lambda: datetime.now(timezone.utc)
) -> list[HealthCheck]:
    """Check that a name server answers a client with these settings; ``clock`` is in UTC."""
    found: list[HealthCheck] = []
    if access.tls is not None:
        found = [_check_tls(access.name_servers[0], access.tls, clock())]
        if not found[0].is_ok:
            return found
    instance = instance_for(access)
    try:
        instance.name_servers.admin.cluster_info()
    except AuthenticationFailed as error:
        return [*found, HealthCheck("credentials", BrokerRefused.__str__(error), error.remedy)]
    except NoNameServer as error:
        return [*found, _explain_silence(error, access)]
    except BrokerRefused as error:
        return [*found, HealthCheck(_NAME_SERVER, str(error), _remedy_of(error))]
    except ClientError as error:
        return [*found, HealthCheck(_NAME_SERVER, str(error), _START_REMEDY)]
    finally:
        instance.shutdown()
    name_server_check = HealthCheck(_NAME_SERVER, f"{';'.join(access.name_servers)} answers")
    if access.credentials is not None:
        user = access.credentials.access_key
        return [*found, name_server_check, HealthCheck("credentials", f"accepted from user {user}")]
    return [*found, name_server_check]


def check_topic_rights(access: BrokerAccess, topic: str) -> HealthCheck | None:
    """Return a failed check if the user may not see a topic; None for any other problem."""
    instance: ClientInstance = instance_for(access)
    try:
        instance.name_servers.route(topic)
    except AccessDenied as error:
        return HealthCheck("rights", BrokerRefused.__str__(error), error.remedy)
    except ClientError:
        return None
    finally:
        instance.shutdown()
    return None


# ---- TLS: what a server's certificate says, and what a client expects.


def _check_tls(address: str, settings: TlsSettings, now: datetime) -> HealthCheck:
    """Return what is wrong with a TLS handshake or, if it succeeds, what the certificate states."""
    host, port = parse_address(address)
    try:
        plain = SOCKETS.connect(host, port, _TIMEOUT_SECONDS)
    except OSError as error:
        return HealthCheck(
            _NAME_SERVER, f"cannot connect to {address}: {error.strerror or error}", _START_REMEDY
        )
    try:
        TlsClient(settings).handshake(plain, address, host, _TIMEOUT_SECONDS).close()
    except TlsFailed as error:
        return HealthCheck("TLS", *_explain_handshake(address, settings, error, now))
    certificate = _certificate_of(address, settings)
    if certificate is None:
        return HealthCheck("TLS", f"{address} speaks TLS")
    days = (certificate.not_after - now).days
    soon = f", in {days} days: renew it" if days < _EXPIRY_WARNING_DAYS else ""
    checked = "" if settings.verify else "; it is not verified (option tlsVerify)"
    detail = f"{address} has {_words_of(certificate)}, until {_date(certificate.not_after)}{soon}"
    return HealthCheck("TLS", f"{detail}{checked}")


def _explain_handshake(
    address: str, settings: TlsSettings, error: TlsFailed, now: datetime
) -> tuple[str, str]:
    cause = error.__cause__
    if isinstance(cause, ssl.SSLCertVerificationError):
        certificate = _certificate_of(address, settings)
        if certificate is not None:
            return _explain_certificate(address, settings, cause, certificate, now)
    if error.why.startswith((NO_TLS_AT_PEER, NOT_TLS)):
        return (
            f"{address} does not speak TLS",
            "turn TLS on at the broker (tls.server.mode=permissive), or leave out option tls",
        )
    if CLIENT_CERTIFICATE_REQUIRED in error.why:
        return f"{address} requires a certificate of this client", _CERTIFICATE_REMEDY
    return str(error), "correct the TLS settings of the broker, or the tls options"


def _explain_certificate(
    address: str,
    settings: TlsSettings,
    error: ssl.SSLCertVerificationError,
    certificate: PresentedCertificate,
    now: datetime,
) -> tuple[str, str]:
    its = f"the certificate of {address}"
    if error.verify_code in NAME_MISMATCH_CODES:
        expected = settings.server_name or parse_address(address)[0]
        names = ", ".join(certificate.names) or "no name at all"
        remedy = (
            "connect to a name that it has, set option tlsServerName to one, or have a "
            f"certificate made that has {expected} as a subject alternative name"
        )
        return f"{its} is for {names}, and not for {expected}", remedy
    if error.verify_code in VALIDITY_CODES:
        return _explain_validity(its, certificate, now)
    issuer = certificate.issuer
    known = "the system" if settings.ca is None else f"the authorities in {settings.ca.name}"
    return (
        f"{its} is issued by {issuer}, and not trusted by {known}: {error.verify_message}",
        f"set option tlsCaFile to a PEM file with the certificate of {issuer}",
    )


def _explain_validity(
    its: str, certificate: PresentedCertificate, now: datetime
) -> tuple[str, str]:
    clock = f"this machine's clock says {now:%Y-%m-%d %H:%M} UTC"
    if now < certificate.not_before:
        remedy = (
            "set this clock if it is behind; otherwise have a new certificate made, on a "
            "machine whose clock is right"
        )
        return f"{its} is not valid before {_date(certificate.not_before)}, and {clock}", remedy
    if now > certificate.not_after:
        remedy = "renew the certificate at the broker; set this clock if it is ahead"
        return f"{its} has expired on {_date(certificate.not_after)}, and {clock}", remedy
    return (
        f"{its} is valid, but another certificate of its chain is not, and {clock}",
        "renew that certificate at the broker, or set this clock",
    )


def _certificate_of(address: str, settings: TlsSettings) -> PresentedCertificate | None:
    try:
        return fetch_certificate(*parse_address(address), settings, _TIMEOUT_SECONDS)
    except OSError:
        return None


def _words_of(certificate: PresentedCertificate) -> str:
    names = ", ".join(certificate.names) or "no name"
    return f"a certificate for {names}, issued by {certificate.issuer}"


def _date(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d}"


# ---- Servers that do not answer.


def _explain_silence(error: NoNameServer, access: BrokerAccess) -> HealthCheck:
    """Return why no name server answers: perhaps one speaks TLS, or requires a certificate."""
    if any(CLIENT_CERTIFICATE_REQUIRED in getattr(each, "why", "") for each in error.tries):
        detail = f"{access.name_servers[0]} requires a certificate of this client"
        return HealthCheck("TLS", detail, _CERTIFICATE_REMEDY)
    if access.tls is None and any(isinstance(each, CONNECTION_FAULTS) for each in error.tries):
        for address in access.name_servers:
            certificate = _certificate_of(address, TlsSettings())
            if certificate is not None:
                return HealthCheck(
                    "TLS",
                    f"{address} requires TLS: it has {_words_of(certificate)}",
                    "set option tls to true, and tlsCaFile to a PEM file with the certificate of "
                    f"{certificate.issuer}",
                )
    return HealthCheck(_NAME_SERVER, str(error), _START_REMEDY)


def _remedy_of(error: BrokerRefused) -> str:
    if isinstance(error, AccessDenied):
        return error.remedy
    return "see the log of the broker"
