"""Limits across all clients: multi-step requests, partial requests, and unread responses."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from typing import Final, Generic, Protocol, TypeVar

from rmq_spark.wire.codes import ResponseCode
from rmq_spark.wire.hosts import Host

BYTES_MAX: Final = 4 << 20
"""The maximum total size of requests, with headers; decoded, they use twenty times as much."""

SMALL_BODY_BYTES: Final = 64 << 10
"""The maximum size of a small request: a heartbeat of hundreds of groups, or a batch that takes
some milliseconds.
"""

_REQUEST_BYTES: Final = 64 << 10
"""Bytes that each request counts for in addition to its size, for its future response."""


class Permit:
    """The permit of one request."""

    def __init__(self, queue: _PermitQueue, size: int) -> None:
        """Create a waiting permit; only `ConcurrencyLimit.acquire` does so."""
        self.granted: Future[None] = Future()
        """A future that is done when the request may do its first step."""
        self.size = size
        self._queue = queue

    def release(self) -> None:
        """Release the permit; call it exactly once."""
        self._queue.release(self)


class ConcurrencyLimit:
    """The permits of a server for multi-step requests.

        acquire    a request of many steps gets its permit now, or when others have released theirs
        release    the request is finished, or its client is gone

    A multi-step request needs many times its frame's size in memory, for its decoded body or half
    of its response. Small requests have half of the room and a queue of their own, so that a
    heartbeat does not wait for batches, one of which may take most of a second. Each queue always
    grants one permit, whatever the size. A request that has a permit must finish, whatever the
    client does.
    """

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._small = _PermitQueue(bytes_max // 2)
        self._large = _PermitQueue(bytes_max // 2)

    def acquire(self, frame_bytes: int) -> Permit:
        """Return a permit for a request with a frame of this size, granted at once or later."""
        line = self._small if frame_bytes <= SMALL_BODY_BYTES else self._large
        place = Permit(line, frame_bytes + _REQUEST_BYTES)
        line.enqueue(place)
        return place


class _PermitQueue:
    """Requests that get their permits in order of arrival."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._used_bytes = 0
        self._waiting: dict[Permit, None] = {}

    def enqueue(self, permit: Permit) -> None:
        self._waiting[permit] = None
        self._grant()

    def release(self, permit: Permit) -> None:
        """Release a permit, granted or not."""
        if permit.granted.done():
            self._used_bytes -= permit.size
        else:
            del self._waiting[permit]
        self._grant()

    def _grant(self) -> None:
        while self._waiting:
            place = next(iter(self._waiting))
            if self._used_bytes and self._used_bytes + place.size > self._bytes_max:
                return
            del self._waiting[place]
            self._used_bytes += place.size
            place.granted.set_result(None)


_log = logging.getLogger(__name__)


class LimitedClient(Protocol):
    """A client, as the limits see it."""

    @property
    def remote_host(self) -> Host:
        """The client's address and port."""

    @property
    def undelivered_bytes(self) -> int:
        """The number of written bytes that have not arrived at the client."""


_Client = TypeVar("_Client", bound=LimitedClient)


class PartialRequests(Generic[_Client]):
    """The bytes of partial requests, by address and by age.

    Partial requests have a limit of their own, so that a client that begins one on each of its
    connections and finishes none does not block complete requests. Above the limit, the server
    closes the connection with the oldest partial request of the address that holds most. An honest
    request is complete within moments, and its address holds less, so it does not wait either.

    An attacker with thousands of addresses may hold less with each than one honest request. So an
    address that holds no more than the size of one request counts as modest: it never waits. If all
    addresses are modest, the oldest partial request is evicted.
    """

    def __init__(self) -> None:
        self.bytes = 0
        """The total bytes of all partial requests."""
        self._bytes_of: Counter[bytes] = Counter()
        self._sizes_of: dict[bytes, dict[_Client, int]] = {}
        self._by_age: dict[_Client, None] = {}
        self._evicted = 0
        """The number of clients evicted in the current period without room."""

    def record(self, client: _Client, size: int) -> None:
        """Record that a client's partial request has ``size`` bytes now; 0 means none."""
        address = client.remote_host.address
        sizes = self._sizes_of.setdefault(address, {})
        more = size - sizes.get(client, 0)
        if size:
            sizes[client] = size
            self._by_age[client] = None
        else:
            sizes.pop(client, None)
            self._by_age.pop(client, None)
        self.bytes += more
        self._bytes_of[address] += more
        if not sizes:
            del self._sizes_of[address], self._bytes_of[address]

    def is_over_fair_share(self, client: _Client, modest_bytes: int) -> bool:
        """Return whether a client's address holds at least the average of all addresses.

        This is false for an address that holds at most ``modest_bytes``.
        """
        theirs = self._bytes_of.get(client.remote_host.address, 0)
        is_share = theirs * len(self._bytes_of) >= self.bytes
        return is_share and (theirs > modest_bytes or not self.bytes)

    def evict(self, bytes_max: int, modest_bytes: int) -> Iterator[_Client]:
        """Yield the clients to evict so that the others fit; each is unregistered at once."""
        while self.bytes > bytes_max:
            address = max(self._bytes_of, key=self._bytes_of.__getitem__)
            is_modest = self._bytes_of[address] <= modest_bytes
            by_age: Iterable[_Client] = self._by_age if is_modest else self._sizes_of[address]
            client = next(iter(by_age))
            if not self._evicted:
                _log.warning(
                    "partial requests take %d bytes (maxInFlightBytes): closing the "
                    "oldest connections of the address that holds most",
                    self.bytes,
                )
            self._evicted += 1
            self.record(client, 0)
            yield client

    def end_eviction(self) -> None:
        """Record that all partial requests fit again, and log it if clients were evicted."""
        if self._evicted:
            _log.warning(
                "partial requests are below their limit again; %d connections were closed",
                self._evicted,
            )
            self._evicted = 0


RESPONSE_BYTES_MIN: Final = 65_536
"""The response size that is always allowed, so that a client that reads makes progress."""
_FREE_BYTES_DIVISOR: Final = 4
_LARGEST_RESPONSE_DIVISOR: Final = 2
_FULL_TIMEOUT_SECONDS: Final = 1.0
"""Seconds for which a client may read nothing while no room is left."""


class SendBufferLimits(Generic[_Client]):
    """The unread bytes of each client, in the order in which the clients last read something.

    A response may take a quarter of the remaining room, so that clients that do not read leave some
    of it to those that do; when no room is left, responses are small. A response that cannot be
    shortened may take half of the total while every client reads, or it could never be sent. A
    client that reads nothing for too long is disconnected, and sooner if such clients have used up
    the room.
    """

    def __init__(self, bytes_max: int) -> None:
        """Create empty limits; ``bytes_max`` is the maximum of unread responses of all clients."""
        self._bytes_max = bytes_max
        self._bytes = 0
        self._sizes: dict[_Client, int] = {}
        self._undelivered: dict[_Client, int] = {}
        self._since: dict[_Client, float] = {}
        self.response_bytes_max = 0
        """The maximum size of another response, in bytes."""
        self._add_bytes(0)

    def response_fault(self, size: int) -> tuple[ResponseCode, str] | None:
        """Return why a response that cannot be shortened is refused, or None if it is allowed."""
        if size <= self.response_bytes_max:
            return None
        alone = self._bytes_max // _LARGEST_RESPONSE_DIVISOR
        if size > alone:
            return ResponseCode.SYSTEM_ERROR, (
                f"a response of {size} bytes is over {alone}, half of maxUnreadBytes: ask "
                "for less, or raise that setting"
            )
        if self._bytes:
            return ResponseCode.SYSTEM_BUSY, (
                f"[REJECTREQUEST]system busy, no memory for a response of {size} bytes: "
                "clients do not read earlier ones"
            )
        return None

    @property
    def bytes(self) -> int:
        """The unread bytes of all clients together."""
        return self._bytes

    def record(self, connection: _Client, size: int, now: float) -> None:
        """Record that a client has ``size`` unread bytes now."""
        self._add_bytes(size - self._sizes.get(connection, 0))
        self._sizes[connection] = size
        if connection not in self._since:
            self._since[connection] = now
            self._undelivered[connection] = connection.undelivered_bytes

    def discard(self, connection: _Client) -> None:
        """Remove a client that has read everything or disconnected."""
        self._add_bytes(-self._sizes.pop(connection, 0))
        self._since.pop(connection, None)
        self._undelivered.pop(connection, None)

    def skip_time(self, seconds: float) -> None:
        """Treat all clients as reading during a jump of the clock by ``seconds``."""
        for connection in self._since:
            self._since[connection] += seconds

    def update_progress(self, now: float) -> None:
        """Find the clients that have read something since the previous call."""
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
            ):  # it has read, or disconnected, while others were closed
                continue
            if now - since > timeout_seconds:
                yield connection, "it does not read its answers"
            elif excess > 0 and now - since > _FULL_TIMEOUT_SECONDS:
                yield (
                    connection,
                    "it does not read, and unread responses are at their limit (maxUnreadBytes)",
                )
            else:
                return
            excess -= self._sizes.get(connection, 0)

    def _add_bytes(self, more_bytes: int) -> None:
        self._bytes += more_bytes
        self.response_bytes_max = max(
            (self._bytes_max - self._bytes) // _FREE_BYTES_DIVISOR, RESPONSE_BYTES_MIN
        )
