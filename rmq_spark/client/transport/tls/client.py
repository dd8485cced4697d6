"""TlsClient: converts TLS settings for OpenSSL, and does the handshake with a broker.

A client makes one for all its connections. Faults of the settings are found then; handshake errors
say how to fix them. Only clients with TLS import this module, and with it OpenSSL.
"""

from __future__ import annotations

import errno
import logging
import socket
import ssl
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from rmq_spark.client.concurrency.fork_hooks import fork_lock
from rmq_spark.client.errors import TlsFailed, TlsRejected
from rmq_spark.client.transport.sockets import SOCKETS, poll_readable, poll_writable
from rmq_spark.client.transport.tls.settings import TlsSettings
from rmq_spark.errors import excerpt, sanitize

if TYPE_CHECKING:
    import socket

    from rmq_spark.client.transport.tls.settings import Pem, TlsSettings

# ---- Errors of TLS, and how to fix them: OpenSSL's reasons in a user's words.

NO_TLS_AT_PEER: Final = (
    "it closed the connection during the handshake, as a server without TLS does. Turn TLS on "
    "there, or off here"
)
NOT_TLS: Final = "the server there does not speak TLS. Turn TLS on there, or off here"
_TAMPERED: Final = "the data was changed on its way, or did not come from the broker"
CLIENT_CERTIFICATE_REQUIRED: Final = (
    "the broker requires a certificate from clients. Pass one that its authority signed, and the "
    "key"
)
_NOT_TRUSTED: Final = (
    "its certificate is not trusted ({}). Put the authority that signed it into the CA file"
)

# X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH
NAME_MISMATCH_CODES: Final = (
    62,
    64,
)
VALIDITY_CODES: Final = (9, 10)  # X509_V_ERR_CERT_NOT_YET_VALID, X509_V_ERR_CERT_HAS_EXPIRED

# A part of OpenSSL's reason (releases vary in the rest) and its explanation;
# the first match counts.
_EXPLANATIONS: Final = (
    ("CERTIFICATE_REQUIRED", CLIENT_CERTIFICATE_REQUIRED),
    (
        "ALERT_HANDSHAKE_FAILURE",
        f"no agreement with the broker: no cipher fits, or {CLIENT_CERTIFICATE_REQUIRED}",
    ),
    ("ALERT_BAD_CERTIFICATE", CLIENT_CERTIFICATE_REQUIRED),
    (
        "ALERT_UNKNOWN_CA",
        "the broker does not trust this client's certificate. Use one that its authority signed",
    ),
    (
        "ALERT_CERTIFICATE_UNKNOWN",
        "the broker does not accept this client's certificate. See its log",
    ),
    ("ALERT_CERTIFICATE_EXPIRED", "this client's certificate has expired. Renew it"),
    ("UNRECOGNIZED_NAME", "the broker has no certificate for that name. Check the server name"),
    ("PROTOCOL", "the broker's TLS is too old. Turn on TLS 1.2 or newer there"),
    ("WRONG_VERSION_NUMBER", NOT_TLS),
    ("RECORD_LAYER_FAILURE", NOT_TLS),
    ("PACKET_LENGTH_TOO_LONG", NOT_TLS),
    ("UNEXPECTED_EOF", NO_TLS_AT_PEER),
)

# The reasons that OpenSSL's releases give for invalid bytes from a peer that has
# spoken TLS in the handshake.
_BAD_RECORD_REASONS: Final = (
    "BAD_RECORD_MAC",
    "RECORD_LAYER_FAILURE",
    "WRONG_VERSION_NUMBER",
    "PACKET_LENGTH_TOO_LONG",
)


def explain_handshake_error(error: OSError) -> str:
    """Return the explanation of a handshake that failed, for the user."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _explain_verification_error(error)
    if isinstance(error, (ssl.SSLEOFError, ssl.SSLZeroReturnError, ConnectionError)):
        return NO_TLS_AT_PEER
    if error.errno == errno.ENOTCONN:  # closed by the broker before the handshake
        return NO_TLS_AT_PEER
    reason = getattr(error, "reason", None) or ""
    for part, why in _EXPLANATIONS:
        if part in reason:
            return f"{why} ({reason})"
    return error.strerror or str(error)


def explain_tls_error(error: OSError) -> str:
    """Return the explanation of an error after the handshake, where a server may still refuse."""
    reason = getattr(error, "reason", None) or ""
    if any(part in reason for part in _BAD_RECORD_REASONS):
        return f"{_TAMPERED} ({reason})"
    return explain_handshake_error(error)


def _explain_verification_error(error: ssl.SSLCertVerificationError) -> str:
    cause = error.verify_message.rstrip(".")
    if error.verify_code in NAME_MISMATCH_CODES:
        return (
            f"its certificate is for another name ({cause}). Connect to a name that it has, or set "
            "one as server name"
        )
    if error.verify_code in VALIDITY_CODES:
        return (
            f"its certificate is out of date ({cause}). Renew it at the broker, or correct this "
            "machine's clock"
        )
    return _NOT_TRUSTED.format(cause)


# ---- TlsSocket.

_RECORD_BYTES: Final = 16_384
"""Most bytes of one TLS record: after a full one, more are likely to follow."""

_Done = TypeVar("_Done")


class TlsSocket:
    """A TLS socket for one thread that reads and others that write, after its handshake."""

    def __init__(self, sock: ssl.SSLSocket) -> None:
        sock.settimeout(0)
        self._socket = sock
        self._lock = fork_lock()
        self._timeout: float | None = None
        self._is_shut_down = False

    def settimeout(self, seconds: float) -> None:
        """Set the seconds that each later call may take."""
        self._timeout = seconds

    def handshake(self) -> None:
        """Do the handshake, within the timeout of one call; OpenSSL's errors are not changed."""
        self._retry_until_ready(self._socket.do_handshake, None)

    def recv(self, count: int) -> bytes:
        """Return up to ``count`` bytes that have arrived; none at the end of the stream."""
        data = self._call(lambda: self._socket.recv(count), b"")
        if len(data) < _RECORD_BYTES:
            return data
        pieces = [data]
        while len(data) == _RECORD_BYTES and (count := count - _RECORD_BYTES) > 0:
            data = self._recv_buffered(count)
            pieces.append(data)
        return b"".join(pieces)

    def _recv_buffered(self, count: int) -> bytes:
        """Return more bytes that have arrived; an error is left to the next call."""
        with self._lock, suppress(OSError):
            return b"" if self._is_shut_down else self._socket.recv(count)
        return b""

    def recv_into(self, buffer: memoryview) -> int:
        """Read bytes into a buffer, at most one record, and return their number; 0 at the end."""
        return self._call(lambda: self._socket.recv_into(buffer), 0)

    def send(self, data: memoryview) -> int:
        """Send some of these bytes, at most one record, and return their number."""
        found = self._call(lambda: self._socket.send(data), None)
        if found is None:
            raise BrokenPipeError(errno.EPIPE, "this client closed it")
        return found

    def shutdown(self, how: int) -> None:
        """Send the closing alert without waiting for the peer's, and wake the waiting threads."""
        with self._lock:
            if not self._is_shut_down:
                self._is_shut_down = True
                with suppress(OSError, ValueError):
                    self._socket.unwrap()
            self._socket.shutdown(how)

    def close(self) -> None:
        """Close the socket; a later call finds its end."""
        with self._lock:
            self._is_shut_down = True
            self._socket.close()

    def fileno(self) -> int:
        """Return the descriptor; polling it shows the peer's close, but not all data."""
        return self._socket.fileno()

    def getsockname(self) -> tuple[str, int]:
        """Return this side's address."""
        name: tuple[str, int] = self._socket.getsockname()
        return name

    def getpeername(self) -> tuple[str, int]:
        """Return the other side's address; raise OSError once the connection has ended."""
        name: tuple[str, int] = self._socket.getpeername()
        return name

    def _call(self, operation: Callable[[], _Done], at_end: _Done) -> _Done:
        """Retry an operation until it completes; raise its errors as those of a plain socket."""
        try:
            return self._retry_until_ready(operation, at_end)
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError) as error:
            raise BrokenPipeError(errno.EPIPE, "the broker closed it") from error
        except ssl.SSLError as error:
            why = f"TLS: {explain_tls_error(error)}"
            raise ConnectionAbortedError(errno.ECONNABORTED, why) from error

    def _retry_until_ready(self, operation: Callable[[], _Done], at_end: _Done) -> _Done:
        """Try an operation until it is done without waiting, and return its result."""
        deadline: float | None = None
        while True:
            with self._lock:
                if self._is_shut_down:
                    return at_end
                try:
                    return operation()
                except ssl.SSLWantReadError:
                    wait = poll_readable(self._socket)
                except ssl.SSLWantWriteError:
                    wait = poll_writable(self._socket)
            if self._timeout is not None and deadline is None:
                deadline = time.monotonic() + self._timeout
            remaining = None if deadline is None else deadline - time.monotonic()
            if remaining is not None and remaining <= 0:
                raise TimeoutError(errno.ETIMEDOUT, "timed out")
            wait(None if remaining is None else remaining * 1000)


_log = logging.getLogger(__name__)

_KEY_MISMATCH_REASONS: Final = frozenset(
    {"KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED"}
)
"""OpenSSL's reasons if the key does not match the certificate; the last two if it is of another
type, such as EC instead of RSA."""

_BAD_PEM_HINT: Final = (
    "needed PEM that OpenSSL reads, such as the output of openssl x509. Copy the file again"
)

_HANDSHAKE_SECONDS_MIN: Final = 0.001
_HANDSHAKE_TIMEOUT: Final = (
    "no response to the handshake in time. Check that TLS is on there, or turn it off here"
)


class TlsClient:
    """TLS for all connections of one client. Methods may be called from any thread."""

    def __init__(self, settings: TlsSettings) -> None:
        """Make the OpenSSL context; log a warning if certificates are not verified."""
        self._lock = fork_lock()
        with self._lock:
            self._context = ssl_context(settings)
        self._server_name = settings.server_name
        if not settings.verify:
            _log.warning(
                "TLS without verify: anyone on the network can pose as the broker, and read and "
                "change all data"
            )

    def handshake(self, sock: socket.socket, address: str, host: str, seconds: float) -> TlsSocket:
        """Return the TLS socket, within ``seconds``; close the socket if that fails."""
        name = self._server_name or host.partition("%")[0]
        try:
            with self._lock:
                wrapped = self._context.wrap_socket(
                    sock, server_hostname=name, do_handshake_on_connect=False
                )
                SOCKETS.register(wrapped)
        except OSError as error:
            raise TlsFailed(address, explain_handshake_error(error)) from error
        except ValueError as error:
            raise TlsFailed(
                address, f"no certificate can be for the name {name!r}: {error}"
            ) from error
        finally:
            sock.close()  # the TLS socket has the descriptor now
        under_tls = TlsSocket(wrapped)
        try:
            under_tls.settimeout(max(seconds, _HANDSHAKE_SECONDS_MIN))
            under_tls.handshake()
        except TimeoutError as error:
            under_tls.close()
            raise TlsFailed(address, _HANDSHAKE_TIMEOUT) from error
        except OSError as error:
            under_tls.close()
            raise TlsFailed(address, explain_handshake_error(error)) from error
        return under_tls


def ssl_context(settings: TlsSettings) -> ssl.SSLContext:
    """Return the settings as an OpenSSL context.

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
        ca = settings.ca
        try:
            context.load_verify_locations(cadata=ca.text)
        except (ssl.SSLError, ValueError) as error:
            why = f"{ca.name} contains no readable certificate: {error}; {_BAD_PEM_HINT}"
            raise TlsRejected("ca_file", why) from error
    if settings.certificate is not None:
        _load_certificate(context, settings, settings.certificate)
    if settings.server_name is not None:
        _check_name(context, settings.server_name)
    return context


def _load_certificate(context: ssl.SSLContext, settings: TlsSettings, certificate: Pem) -> None:
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
        if error.reason in _KEY_MISMATCH_REASONS:
            why = (
                f"{key.name} is not the key of the certificate in {certificate.name}. Use the one "
                "that it was made with"
            )
            raise TlsRejected("key_file", why) from error
        if key.has_locked_key:
            why = (
                f"it does not decrypt the key in {key.name}, or this OpenSSL does not know the "
                "encryption. Pass the key's own password"
            )
            raise TlsRejected("key_password", why) from error
        why = (
            f"{certificate.name} and {key.name} contain no readable certificate and key: {error}; "
            f"{_BAD_PEM_HINT}"
        )
        raise TlsRejected("cert_file", why) from error
    except ValueError as error:
        raise TlsRejected("key_password", str(error)) from error
    except OSError as error:
        why = f"it cannot be written to the directory for temporary files: {error}"
        raise TlsRejected("cert_file", why) from error


def _check_name(context: ssl.SSLContext, name: str) -> None:
    try:
        with suppress(ssl.SSLWantReadError):
            context.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_hostname=name)
    except (TypeError, ValueError, ssl.SSLError) as error:
        why = f"no certificate can be for the name {excerpt(name)}: {sanitize(str(error))}"
        raise TlsRejected("server_name", why) from error


# ---- Certificates that servers present: fetched to explain why a client does not accept one.
# Python shows the fields of a certificate only after it has verified it. So it is fetched first
# without verification, and then verified against itself, whatever its dates and names. Nothing is
# sent on such connections beyond the handshake.

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
    plain: socket.socket = SOCKETS.connect(host, port, timeout_seconds)
    try:
        return context.wrap_socket(plain, server_hostname=server_name or host.partition("%")[0])
    except BaseException:
        plain.close()
        raise


def _common_name(name: Any) -> str:
    """Return the common name in a name from the ssl module, or else the whole name."""
    parts = [pair for group in name for pair in group]
    for key, value in parts:
        if key == _COMMON_NAME:
            return str(value)
    return ", ".join(f"{key}={value}" for key, value in parts)


def _time(text: str) -> datetime:
    return datetime.fromtimestamp(ssl.cert_time_to_seconds(text), timezone.utc)
