"""SendBufferLimits: limits the responses that clients have not read yet.

A response may take a quarter of the room that is left, so that clients that do not read share that
room and leave some to those that do; when no room is left, responses are small. A response that
cannot be cut may take half of the total while every client reads, else it could never be sent. A
client that reads nothing for too long is closed, and sooner if such clients have used up the room.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Generic, Protocol, TypeVar

from rmq_spark.wire.codes import ResponseCode

RESPONSE_BYTES_MIN: Final = 65_536
"""The size that an answer may always have, so that a client that reads makes progress."""
_FREE_BYTES_DIVISOR: Final = 4
_LARGEST_RESPONSE_DIVISOR: Final = 2
_FULL_TIMEOUT_SECONDS: Final = 1.0
"""Seconds for which a client may read nothing while no room is left."""


class BufferedClient(Protocol):
    """A client, of which only the unread bytes are needed here."""

    @property
    def undelivered_bytes(self) -> int:
        """The bytes written that have not arrived at the client."""


_Client = TypeVar("_Client", bound=BufferedClient)


class SendBufferLimits(Generic[_Client]):
    """The unread bytes of each client, in the order in which the clients last read something."""

    def __init__(self, bytes_max: int) -> None:
        """Begin with no unread answers; ``bytes_max`` limits those of all clients together."""
        self._bytes_max = bytes_max
        self._bytes = 0
        self._sizes: dict[_Client, int] = {}
        self._undelivered: dict[_Client, int] = {}
        self._since: dict[_Client, float] = {}
        self.response_bytes_max = 0
        """The maximum size of one more answer, in bytes."""
        self._add_bytes(0)

    def response_fault(self, size: int) -> tuple[ResponseCode, str] | None:
        """Return why an answer that cannot be shorter is not given now, or never, None if it is."""
        if size <= self.response_bytes_max:
            return None
        alone = self._bytes_max // _LARGEST_RESPONSE_DIVISOR
        if size > alone:
            return ResponseCode.SYSTEM_ERROR, (
                f"an answer of {size} bytes is over the {alone} that one may have, half of "
                "maxUnreadBytes; ask for less, or raise that setting"
            )
        if self._bytes:
            return ResponseCode.SYSTEM_BUSY, (
                f"[REJECTREQUEST]system busy, no room for an answer of {size} bytes: others "
                "are not read"
            )
        return None

    @property
    def bytes(self) -> int:
        """The unread bytes of all clients together."""
        return self._bytes

    def record(self, connection: _Client, size: int, now: float) -> None:
        """Record that a client leaves ``size`` bytes unread now."""
        self._add_bytes(size - self._sizes.get(connection, 0))
        self._sizes[connection] = size
        if connection not in self._since:
            self._since[connection] = now
            self._undelivered[connection] = connection.undelivered_bytes

    def discard(self, connection: _Client) -> None:
        """Drop a client that has read everything, or is gone."""
        self._add_bytes(-self._sizes.pop(connection, 0))
        self._since.pop(connection, None)
        self._undelivered.pop(connection, None)

    def skip_time(self, seconds: float) -> None:
        """Count a time that the clock has just jumped over as one in which all have read."""
        for connection in self._since:
            self._since[connection] += seconds

    def update_progress(self, now: float) -> None:
        """Find the clients that have read something since the last look."""
        for connection, before in tuple(self._undelivered.items()):
            unwritten = self._undelivered[connection] = connection.undelivered_bytes
            if unwritten < before:
                del self._since[connection]
                self._since[connection] = now

    def slow_readers(self, now: float, timeout_seconds: float) -> Iterator[tuple[_Client, str]]:
        """Yield the clients that have read nothing for too long, each with the reason."""
        excess = self._bytes - self._bytes_max
        for connection, since in tuple(self._since.items()):
            if (
                self._since.get(connection) != since
            ):  # it has read, or gone, while others were closed
                continue
            if now - since > timeout_seconds:
                yield connection, "it does not read its answers"
            elif excess > 0 and now - since > _FULL_TIMEOUT_SECONDS:
                yield (
                    connection,
                    "it does not read, and there is no room for answers (maxUnreadBytes)",
                )
            else:
                return
            excess -= self._sizes.get(connection, 0)

    def _add_bytes(self, more_bytes: int) -> None:
        self._bytes += more_bytes
        self.response_bytes_max = max(
            (self._bytes_max - self._bytes) // _FREE_BYTES_DIVISOR, RESPONSE_BYTES_MIN
        )
