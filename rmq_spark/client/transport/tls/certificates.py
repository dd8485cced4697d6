"""Certificates that servers present: fetched to explain why a client does not accept one.

Python shows the fields of a certificate only after it has verified it. So it is fetched first
without verification, and then verified against itself, whatever its dates and names. Nothing is
sent on such connections beyond the handshake.
"""

from __future__ import annotations

import socket
import ssl
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any, Final

from rmq_spark.client.transport.sockets import SOCKETS
from rmq_spark.client.transport.tls.client import ssl_context
from rmq_spark.client.transport.tls.settings import TlsSettings

_IGNORE_DATES: Final = 0x200000  # X509_V_FLAG_NO_CHECK_TIME, which the ssl module does not name
_COMMON_NAME: Final = "commonName"


@dataclass(frozen=True, slots=True)
class PresentedCertificate:
    """The certificate of a server."""

    names: tuple[str, ...]
    issuer: str
    not_before: datetime
    not_after: datetime


def fetch_certificate(
    host: str, port: int, settings: TlsSettings, timeout_seconds: float
) -> PresentedCertificate:
    """Return the certificate that a server presents, whether or not it can be trusted.

    Args:
        host: The server's host name or address.
        port: Its port.
        settings: Settings of the client; its certificate is presented if the server asks.
        timeout_seconds: Seconds that each of the two handshakes may take.
    """
    trusting = replace(settings, ca=None, verify=False)
    context = ssl_context(trusting)
    with _handshake(host, port, context, settings.server_name, timeout_seconds) as sock:
        certificate = sock.getpeercert(binary_form=True)
    if not certificate:
        raise OSError(f"{host} has presented no certificate")
    context = ssl_context(trusting)
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
    context.verify_flags |= _IGNORE_DATES
    context.load_verify_locations(cadata=certificate)
    with _handshake(host, port, context, settings.server_name, timeout_seconds) as sock:
        fields: Any = sock.getpeercert()
    return PresentedCertificate(
        names=tuple(str(name) for _, name in fields.get("subjectAltName", ())),
        issuer=_common_name(fields.get("issuer", ())),
        not_before=_time(fields["notBefore"]),
        not_after=_time(fields["notAfter"]),
    )


def _handshake(
    host: str,
    port: int,
    context: ssl.SSLContext,
    server_name: str | None,
    timeout_seconds: float,
) -> ssl.SSLSocket:
    """Return a connection after its handshake."""
    plain: socket.socket = SOCKETS.connect(host, port, timeout_seconds)
    try:
        return context.wrap_socket(plain, server_hostname=server_name or host.partition("%")[0])
    except BaseException:
        plain.close()
        raise


def _common_name(name: Any) -> str:
    """Return the common name in a name as the ssl module has it, or all of it."""
    parts = [pair for group in name for pair in group]
    for key, value in parts:
        if key == _COMMON_NAME:
            return str(value)
    return ", ".join(f"{key}={value}" for key, value in parts)


def _time(text: str) -> datetime:
    return datetime.fromtimestamp(ssl.cert_time_to_seconds(text), timezone.utc)
