"""ServerTls: the TLS of one server: what new connections get, reload, warnings and counters.

A reload replaces the context for new connections; open ones keep theirs.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable
from typing import Final, NamedTuple

from rmq_spark.wire.message.hosts import Host

from ...common.log_limit import LogLimit
from ...settings.config import TlsConfig, TlsMode
from .context import TlsFileRejected, format_time, load_context

_log = logging.getLogger(__name__)

# A part of OpenSSL's reason, whose rest varies by release, and its explanation; the first match
# counts.
_EXPLANATIONS: Final = (
    (
        "PEER_DID_NOT_RETURN_A_CERTIFICATE",
        "it presents no certificate, and tls.server.need.client.auth is require",
    ),
    (
        "ALERT_UNKNOWN_CA",
        "it does not trust the broker's certificate. Give it the authority's certificate",
    ),
    (
        "ALERT_CERTIFICATE_UNKNOWN",
        "it does not accept the broker's certificate: not its authority, or not the name",
    ),
    (
        "ALERT_BAD_CERTIFICATE",
        "it does not accept the broker's certificate: not its authority, or not the name",
    ),
    (
        "ALERT_CERTIFICATE_EXPIRED",
        "it says that the broker's certificate has expired. Renew it, or set the client's clock",
    ),
    ("UNSUPPORTED_PROTOCOL", "it speaks a version of TLS before 1.2"),
    ("VERSION_TOO_LOW", "it speaks a version of TLS before 1.2"),
    ("NO_SHARED_CIPHER", "it has no cipher that fits the broker's certificate"),
    ("WRONG_VERSION_NUMBER", "what it sends is not TLS"),
    ("HTTP_REQUEST", "what it sends is not TLS"),
)


def explain_error(error: Exception) -> str:
    """Return why TLS with a client failed, for operators, with OpenSSL's reason."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"its certificate is not accepted: {error.verify_message}. See tls.server.trustCertPath"
        )
    reason = getattr(error, "reason", None) or str(error)
    for part, why in _EXPLANATIONS:
        if part in reason:
            return f"{why} ({reason})"
    return reason


class TlsSession(NamedTuple):
    """OpenSSL's side of one connection: encrypted bytes go into and come out of its buffers."""

    tls: ssl.SSLObject
    incoming: ssl.MemoryBIO
    outgoing: ssl.MemoryBIO


class ServerTls:
    """The TLS of one server; used on the broker's one thread."""

    def __init__(
        self, config: TlsConfig, now: Callable[[], float], monotonic: Callable[[], float]
    ) -> None:
        """Read the files; ``now`` is the time of day in seconds, which may jump."""
        self._now = now
        self._monotonic = monotonic
        self._config = config
        self._current = load_context(config) if config.is_offered else None
        self._failure_lines = LogLimit()
        self.handshakes_completed = 0
        self.handshakes_failed = 0
        self.plain_refused = 0
        self.log_expiry()

    @property
    def is_offered(self) -> bool:
        """True if clients can connect with TLS."""
        return self._current is not None

    @property
    def is_enforced(self) -> bool:
        """True if clients cannot connect without TLS."""
        return self._config.mode is TlsMode.enforcing

    def description(self) -> str:
        """Return how clients can connect, for the log of the start."""
        if self._current is None:
            return "without TLS"
        until = format_time(self._current.files[0].not_after)
        clients = self._config.need_client_auth.name
        return (
            f"with TLS ({self._config.mode.name}; certificate valid until {until}; certificates of "
            f"clients: {clients})"
        )

    def new_session(self) -> TlsSession:
        """Return the session of a new connection, with the current certificate."""
        if self._current is None:
            raise AssertionError("TLS begins only where it is offered")
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = self._current.context.wrap_bio(incoming, outgoing, server_side=True)
        return TlsSession(tls, incoming, outgoing)

    def reload(self, config: TlsConfig) -> TlsConfig:
        """Read the files again, for new connections; return the settings in force.

        If a file cannot be used, or its certificate is not valid now, nothing changes.
        """
        before = self._current
        try:
            loaded = load_context(config) if config.is_offered else None
        except TlsFileRejected as error:
            self._log_not_reloaded(str(error))
            return self._config
        if loaded is not None and before is not None:
            now = self._now()
            faults = [fault for file in loaded.files if (fault := file.fault(now))]
            if faults and not any(file.fault(now) for file in before.files):
                self._log_not_reloaded("; ".join(faults))
                return self._config
        self._config, self._current = config, loaded
        if loaded is not None:
            _log.info(
                "TLS is reloaded: new connections get the certificate of %s, valid until %s",
                config.cert_path,
                format_time(loaded.files[0].not_after),
            )
            self.log_expiry()
        return config

    def log_expiry(self) -> None:
        """Log which certificates are not valid now, or expire soon."""
        now = self._now()
        for file in () if self._current is None else self._current.files:
            fault = file.fault(now)
            if fault is not None:
                _log.error("%s", fault)
            elif (warning := file.warning(now)) is not None:
                _log.warning("%s", warning)

    def expiry_seconds(self) -> dict[str, float]:
        """Return the seconds until certificates expire, by setting; negative if they have."""
        now = self._now()
        files = () if self._current is None else self._current.files
        return {file.setting: file.not_after - now for file in files}

    # ---- called by connections

    def refuse_plain(self, client: Host) -> None:
        """Count and log a connection without TLS that the enforcing mode refuses."""
        self.plain_refused += 1
        self._log_failure(
            client,
            "closed: it does not use TLS, and tls.server.mode is enforcing. Turn TLS on in the "
            "client",
        )

    def handshake_failed(self, client: Host, why: str) -> None:
        """Count and log a failed handshake."""
        self.handshakes_failed += 1
        self._log_failure(client, f"closed: the TLS handshake failed: {why}")

    # ---- internals

    def _log_not_reloaded(self, why: str) -> None:
        kept = "no TLS" if self._current is None else "the previous certificate"
        _log.error("TLS is not reloaded, %s stays in force: %s", kept, why)

    def _log_failure(self, client: Host, text: str) -> None:
        suppressed = self._failure_lines.admit(client.address, self._monotonic())
        if suppressed:
            text += f" ({suppressed} more of this address since its last line)"
        if suppressed is not None:
            _log.warning("%s: %s", client, text)
