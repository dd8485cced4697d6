"""TlsClient: TLS settings as OpenSSL wants them, and the handshake with a broker.

It is made once for all connections of a client. Faults of the settings are found when it is made;
errors with a broker say how to mend them. This module imports OpenSSL: a client without TLS does
not import it.
"""

from __future__ import annotations

import logging
import ssl
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rmq_spark.client.connections.fork_locks import fork_lock
from rmq_spark.client.connections.own_sockets import OWN_SOCKETS
from rmq_spark.client.connections.tls_faults import why_tls_failed
from rmq_spark.client.connections.tls_socket import TlsSocket
from rmq_spark.client.errors import TlsFailed, TlsRejected
from rmq_spark.errors import excerpt, legible

if TYPE_CHECKING:
    import socket

    from rmq_spark.client.connections.tls_settings import Pem, TlsSettings

_log = logging.getLogger(__name__)

_NOT_ITS_KEY: Final = frozenset(
    {"KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED"}
)
"""OpenSSL's reasons for another key; the last two where that is of another kind,
as EC is to RSA."""

_COPY_AGAIN: Final = "needed PEM that OpenSSL reads, as openssl x509 writes it: copy it once more"

_LEAST_SECONDS: Final = 0.001
_NO_ANSWER: Final = (
    "no answer to the handshake in time: check that TLS is on there, or leave it out here"
)


class TlsClient:
    """TLS for all connections of one client. Methods may be called from any thread."""

    def __init__(self, settings: TlsSettings) -> None:
        """Raise the errors of `context_of`, and log a warning if certificates are not verified."""
        self._lock = fork_lock()
        with self._lock:
            self._context = context_of(settings)
        self._server_name = settings.server_name
        if not settings.verify:
            _log.warning(
                "TLS without verify: anybody on the way to a broker can pose as it, read and "
                "change all"
            )

    def handshake(self, sock: socket.socket, address: str, host: str, seconds: float) -> TlsSocket:
        """Return the socket under TLS, within this many seconds; close it if that fails.

        Raises:
            TlsFailed: The handshake failed; the message says how to mend that.
        """
        name = self._server_name or host.partition("%")[0]
        try:
            with self._lock:
                wrapped = self._context.wrap_socket(
                    sock, server_hostname=name, do_handshake_on_connect=False
                )
                OWN_SOCKETS.add(wrapped)
        except OSError as error:
            raise TlsFailed(address, why_tls_failed(error)) from error
        except ValueError as error:
            raise TlsFailed(
                address, f"no certificate can bear the name {name!r}: {error}"
            ) from error
        finally:
            sock.close()  # its descriptor belongs to the TLS socket now
        under_tls = TlsSocket(wrapped)
        try:
            under_tls.settimeout(max(seconds, _LEAST_SECONDS))
            under_tls.handshake()
        except TimeoutError as error:
            under_tls.close()
            raise TlsFailed(address, _NO_ANSWER) from error
        except OSError as error:
            under_tls.close()
            raise TlsFailed(address, why_tls_failed(error)) from error
        return under_tls


def context_of(settings: TlsSettings) -> ssl.SSLContext:
    """Return the settings as OpenSSL wants them.

    Raises:
        TlsRejected: A file does not hold what it should, or the password does not open the key.
    """
    # Not `ssl.create_default_context`, which refuses more certificates from Python 3.13 on.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION  # so that a write never waits for something to read
    if not settings.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif settings.ca is None:
        context.load_default_certs()
    else:
        _trust(context, settings.ca)
    if settings.certificate is not None:
        _identify(context, settings, settings.certificate)
    if settings.server_name is not None:
        _check_name(context, settings.server_name)
    return context


def _trust(context: ssl.SSLContext, ca: Pem) -> None:
    try:
        context.load_verify_locations(cadata=ca.text)
    except (ssl.SSLError, ValueError) as error:
        raise TlsRejected(
            "ca_file", f"{ca.name} holds no certificate that can be read: {error}; {_COPY_AGAIN}"
        ) from error


def _identify(context: ssl.SSLContext, settings: TlsSettings, certificate: Pem) -> None:
    """Load certificate and key, which Python takes from files only.

    So they are in files for a moment, in a directory of this user alone.
    """
    key = settings.key or certificate
    password = settings.key_password or ""
    try:
        with tempfile.TemporaryDirectory(prefix="rocketpoll-") as directory:
            cert_path, key_path = Path(directory, "certificate"), Path(directory, "key")
            cert_path.write_text(certificate.text, encoding="ascii")
            key_path.write_text(key.text, encoding="ascii")
            context.load_cert_chain(cert_path, key_path, lambda: password)  # never prompt for it
    except ssl.SSLError as error:
        if error.reason in _NOT_ITS_KEY:
            why = (
                f"{key.name} is not the key of the certificate in {certificate.name}: needed the "
                "one that this was made with"
            )
            raise TlsRejected("key_file", why) from error
        if key.has_locked_key:
            why = (
                f"it does not open the key in {key.name}, or this OpenSSL does not know how that "
                "is locked: give the key's own password"
            )
            raise TlsRejected("key_password", why) from error
        why = (
            f"{certificate.name} and {key.name} hold no certificate and key that can be read: "
            f"{error}; {_COPY_AGAIN}"
        )
        raise TlsRejected("cert_file", why) from error
    except ValueError as error:
        raise TlsRejected("key_password", str(error)) from error
    except OSError as error:
        why = f"no room for it in the directory for temporary files: {error}"
        raise TlsRejected("cert_file", why) from error


def _check_name(context: ssl.SSLContext, name: str) -> None:
    try:
        with suppress(ssl.SSLWantReadError):
            context.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_hostname=name)
    except (TypeError, ValueError, ssl.SSLError) as error:
        why = f"no certificate can bear the name {excerpt(name)}: {legible(str(error))}"
        raise TlsRejected("server_name", why) from error
