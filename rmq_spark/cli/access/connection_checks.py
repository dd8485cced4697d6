"""Checks of a connection: TLS, certificates, credentials and rights, each with what to correct.

    check_connection     does a name server answer, under TLS if that is on, and to these keys?
    check_topic_rights   may the user see a topic?

An error of the client says what has failed. These checks look further: what a certificate names,
who has issued it, when it ends, and whether a server that hangs up speaks TLS.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timezone
from textwrap import wrap
from typing import Final, NamedTuple

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
) -> list[Diagnosis]:
    """Check that a name server answers a client with these settings; ``clock`` is in UTC."""
    found: list[Diagnosis] = []
    if access.tls is not None:
        found = [_check_tls(access.name_servers[0], access.tls, clock())]
        if not found[0].is_ok:
            return found
    instance = instance_for(access)
    try:
        instance.name_servers.admin.cluster_info()
    except AuthenticationFailed as error:
        return [*found, Diagnosis("credentials", BrokerRefused.__str__(error), error.remedy)]
    except NoNameServer as error:
        return [*found, _explain_silence(error, access)]
    except BrokerRefused as error:
        return [*found, Diagnosis(_NAME_SERVER, str(error), _remedy_of(error))]
    except ClientError as error:
        return [*found, Diagnosis(_NAME_SERVER, str(error), _START_REMEDY)]
    finally:
        instance.shutdown()
    answers = Diagnosis(_NAME_SERVER, f"{';'.join(access.name_servers)} answers")
    if access.credentials is not None:
        user = access.credentials.access_key
        return [*found, answers, Diagnosis("credentials", f"accepted from user {user}")]
    return [*found, answers]


def check_topic_rights(access: BrokerAccess, topic: str) -> Diagnosis | None:
    """Return the fault if the user may not see a topic; None for every other problem, or none."""
    instance: ClientInstance = instance_for(access)
    try:
        instance.name_servers.route(topic)
    except AccessDenied as error:
        return Diagnosis("rights", BrokerRefused.__str__(error), error.remedy)
    except ClientError:
        return None
    finally:
        instance.shutdown()
    return None


# ---- TLS: what a server's certificate says, and what a client expects.


def _check_tls(address: str, settings: TlsSettings, now: datetime) -> Diagnosis:
    """Do a handshake, and say what is wrong with it, or what the certificate says."""
    host, port = parse_address(address)
    try:
        plain = SOCKETS.connect(host, port, _TIMEOUT_SECONDS)
    except OSError as error:
        return Diagnosis(
            _NAME_SERVER, f"cannot connect to {address}: {error.strerror or error}", _START_REMEDY
        )
    try:
        TlsClient(settings).handshake(plain, address, host, _TIMEOUT_SECONDS).close()
    except TlsFailed as error:
        return Diagnosis("TLS", *_explain_handshake(address, settings, error, now))
    certificate = _certificate_of(address, settings)
    if certificate is None:
        return Diagnosis("TLS", f"{address} speaks TLS")
    days = (certificate.not_after - now).days
    soon = f", in {days} days: renew it" if days < _EXPIRY_WARNING_DAYS else ""
    checked = "" if settings.verify else "; it is not verified (option tlsVerify)"
    detail = f"{address} has {_words_of(certificate)}, until {_date(certificate.not_after)}{soon}"
    return Diagnosis("TLS", f"{detail}{checked}")


def _explain_handshake(
    address: str, settings: TlsSettings, error: TlsFailed, now: datetime
) -> tuple[str, str]:
    """Return what is wrong with a handshake, and what to do."""
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
        f"{its} is valid, but one between it and its authority is not, and {clock}",
        "renew that one at the broker, or set this clock",
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


def _explain_silence(error: NoNameServer, access: BrokerAccess) -> Diagnosis:
    """Return why no name server answers: whether one speaks TLS, or wants a certificate."""
    if any(CLIENT_CERTIFICATE_REQUIRED in getattr(each, "why", "") for each in error.tries):
        detail = f"{access.name_servers[0]} requires a certificate of this client"
        return Diagnosis("TLS", detail, _CERTIFICATE_REMEDY)
    if access.tls is None and any(isinstance(each, CONNECTION_FAULTS) for each in error.tries):
        for address in access.name_servers:
            certificate = _certificate_of(address, TlsSettings())
            if certificate is not None:
                return Diagnosis(
                    "TLS",
                    f"{address} requires TLS: it has {_words_of(certificate)}",
                    "set option tls to true, and tlsCaFile to a PEM file with the certificate of "
                    f"{certificate.issuer}",
                )
    return Diagnosis(_NAME_SERVER, str(error), _START_REMEDY)


def _remedy_of(error: BrokerRefused) -> str:
    if isinstance(error, AccessDenied):
        return error.remedy
    return "see the log of the broker"


class Diagnosis(NamedTuple):
    """The result of one check; ``remedy`` says what to do if it is not good."""

    subject: str
    detail: str
    remedy: str | None = None
    is_skipped: bool = False

    @property
    def is_ok(self) -> bool:
        """True if there is nothing to fix, or nothing was checked."""
        return self.remedy is None


def report_lines(findings: Sequence[Diagnosis], columns: int | None = None) -> Iterator[str]:
    """Yield the findings as lines, wrapped to a number of columns if given, and a summary."""
    width = max(len(each.subject) for each in findings)
    indent = " " * (width + 8)
    for each in findings:
        mark = "-   " if each.is_skipped else "ok  " if each.is_ok else "FAIL"
        lines = [f"{mark}  {each.subject:{width}}  {each.detail}"]
        if each.remedy is not None:
            lines.append(f"{indent}fix: {each.remedy}")
        for line in lines:
            yield from (
                [line]
                if columns is None
                else wrap(
                    line,
                    max(columns, 2 * len(indent)),
                    subsequent_indent=indent,
                    break_long_words=False,
                    break_on_hyphens=False,
                )
            )
    faults = sum(not each.is_ok for each in findings)
    yield ""
    yield "everything is ready" if not faults else f"{faults} of {len(findings)} checks failed"
