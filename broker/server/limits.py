"""Limits across all clients: multi-step requests, partial requests, and unread responses."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from typing import Final, Generic, Protocol, TypeVar

from rmq_spark.wire.codes import RequestCode, ResponseCode
from rmq_spark.wire.message.hosts import Host

BYTES_MAX: Final = 4 << 20
"""The maximum bytes of multi-step requests, which use twenty times as much when decoded."""

SMALL_BODY_BYTES: Final = 64 << 10
"""The maximum size of a small request: a heartbeat of hundreds of groups, or a batch that takes
some milliseconds.
"""
OPERATOR_REQUESTS_MAX: Final = 8
"""Limit on operators' requests, because a few bytes may ask for a tenth of a second's work."""

_REQUEST_BYTES: Final = 64 << 10
"""Bytes that each request counts for in addition to its size, for its future response."""
_MEMBER_CODES: Final = frozenset(
    [
        RequestCode.HEART_BEAT,
        RequestCode.UNREGISTER_CLIENT,
        RequestCode.CHECK_CLIENT_CONFIG,
        RequestCode.GET_CONSUMER_LIST_BY_GROUP,
        RequestCode.LOCK_BATCH_MQ,
        RequestCode.UNLOCK_BATCH_MQ,
        RequestCode.QUERY_ASSIGNMENT,
    ]
)
"""Requests without which a member loses its queues."""
_MESSAGE_CODES: Final = frozenset(
    [
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.CONSUMER_SEND_MSG_BACK,
        RequestCode.APPEND_CHUNK,
        RequestCode.STAGE_CHUNK,
        RequestCode.PULL_MESSAGE,
        RequestCode.LITE_PULL_MESSAGE,
        RequestCode.PULL_CHUNK,
        RequestCode.PULL_PLACES,
        RequestCode.POP_MESSAGE,
        RequestCode.ACK_MESSAGE,
        RequestCode.BATCH_ACK_MESSAGE,
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
        RequestCode.NOTIFICATION,
    ]
)
"""Requests that bring or fetch messages; all others are operators' requests."""


class Permit:
    """The permit of one request."""

    def __init__(self, queue: _PermitQueue, size: int, network: bytes) -> None:
        """Create a waiting permit; only `ConcurrencyLimit.acquire` does so."""
        self.granted: Future[None] = Future()
        """Done when the request may do its first step."""
        self.size = size
        self.network = network
        """The client's address, because addresses share the permits."""
        self._queue = queue

    def release(self) -> None:
        """Release the permit; call it exactly once."""
        self._queue.release(self)


class ConcurrencyLimit:
    """The permits of a server for multi-step requests.

        acquire    a request of many steps gets its permit now, or when others have released theirs
        release    the request is finished, or its client is gone

    A multi-step request needs many times its frame's size in memory, for its decoded body or half
    of its response. Four kinds of requests have queues of their own:

        members      a quarter of the bytes: heartbeats, member lists, locks; small ones
        small        a quarter of the bytes: small batches, and pulls
        large        half of the bytes, for all requests over `SMALL_BODY_BYTES`
        operators    some at a time, whatever their size

    So a heartbeat does not wait for batches, one of which may take most of a second, nor for
    statistics of thousands of queues. In each queue addresses take turns, and one address has at
    most half of the room, but always one permit. A queue without granted permits grants one of any
    size. A request that has a permit must finish, whatever the client does.
    """

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._members = _PermitQueue(bytes_max // 4)
        self._small = _PermitQueue(bytes_max // 4)
        self._large = _PermitQueue(bytes_max // 2)
        self._operators = _PermitQueue(OPERATOR_REQUESTS_MAX)
        self.queues = self._members, self._small, self._large, self._operators

    def acquire(self, code: int, frame_bytes: int, network: bytes) -> Permit:
        """Return a permit for a request with a frame of this size, granted at once or later.

        ``network`` is the address of the client (`Host.network`).
        """
        size = frame_bytes + _REQUEST_BYTES
        if code not in _MEMBER_CODES and code not in _MESSAGE_CODES:
            queue, size = self._operators, 1
        elif frame_bytes > SMALL_BODY_BYTES:
            queue = self._large
        else:
            queue = self._members if code in _MEMBER_CODES else self._small
        permit = Permit(queue, size, network)
        queue.enqueue(permit)
        return permit


class _PermitQueue:
    """Grants permits to addresses in turn, and to each address in order of arrival."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._used = 0
        self._used_by: Counter[bytes] = Counter()
        self._waiting: dict[bytes, dict[Permit, None]] = {}
        """The waiting permits, by address; the address whose turn comes next is the first."""

    @property
    def is_idle(self) -> bool:
        return not (self._used or self._used_by or self._waiting)

    def enqueue(self, permit: Permit) -> None:
        self._waiting.setdefault(permit.network, {})[permit] = None
        self._grant()

    def release(self, permit: Permit) -> None:
        network = permit.network
        if permit.granted.done():
            self._used -= permit.size
            self._used_by[network] -= permit.size
            if not self._used_by[network]:
                del self._used_by[network]
        else:
            del self._waiting[network][permit]
            if not self._waiting[network]:
                del self._waiting[network]
        self._grant()

    def _grant(self) -> None:
        # this passes over few addresses: only those that have permits already
        while (network := next(filter(self._has_share, self._waiting), None)) is not None:
            permits = self._waiting[network]
            permit = next(iter(permits))
            if self._used and self._used + permit.size > self._room:
                return  # smaller requests must not overtake it
            del permits[permit], self._waiting[network]
            if permits:
                self._waiting[network] = permits
            self._used += permit.size
            self._used_by[network] += permit.size
            permit.granted.set_result(None)

    def _has_share(self, network: bytes) -> bool:
        """Return whether the next request of an address fits into the address's half."""
        used = self._used_by.get(network, 0)
        return not used or used + next(iter(self._waiting[network])).size <= self._room // 2


_log = logging.getLogger(__name__)


class LimitedClient(Protocol):
    """A client, as the limits see it."""

    @property
    def remote_host(self) -> Host:
        """The client's address and port."""

    @property
    def undelivered_bytes(self) -> int:
        """The number of written bytes that have not arrived at the client."""

    def abort(self) -> None:
        """Close the connection at once."""


ClientT = TypeVar("ClientT", bound=LimitedClient)


class PartialRequests(Generic[ClientT]):
    """The bytes of partial requests, by address and by age.

    Partial requests have a limit of their own, so that a client that begins one on each of its
    connections and finishes none does not block complete requests. Above the limit, the server
    closes the connection with the oldest partial request of the address that holds most. An honest
    request is complete within moments, and its address holds less, so it is not affected.

    An attacker with thousands of addresses may hold less with each than one honest request. So an
    address that holds no more than the size of one request has an allowance: it never waits. If all
    addresses are within it, the oldest partial request is evicted.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self._bytes_of: Counter[bytes] = Counter()
        self._sizes_of: dict[bytes, dict[ClientT, int]] = {}
        self._by_age: dict[ClientT, None] = {}
        self._evicted = 0
        """The number of clients evicted since the limit was exceeded."""

    def record(self, client: ClientT, size: int) -> None:
        """Record that a client's partial request has ``size`` bytes now; 0 means none."""
        address = client.remote_host.network
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

    def is_over_fair_share(self, client: ClientT, allowance_bytes: int) -> bool:
        """Return whether a client's address holds at least the average of all addresses.

        This is false for an address that holds at most ``allowance_bytes``.
        """
        address_bytes = self._bytes_of.get(client.remote_host.network, 0)
        is_share = address_bytes * len(self._bytes_of) >= self.bytes
        return is_share and (address_bytes > allowance_bytes or not self.bytes)

    def evict(self, bytes_max: int, allowance_bytes: int) -> Iterator[ClientT]:
        """Yield the clients to evict so that the others fit; each is unregistered at once."""
        while self.bytes > bytes_max:
            address = max(self._bytes_of, key=self._bytes_of.__getitem__)
            is_within_allowance = self._bytes_of[address] <= allowance_bytes
            by_age: Iterable[ClientT] = (
                self._by_age if is_within_allowance else self._sizes_of[address]
            )
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
        """Record that all partial requests fit again; log it if clients were evicted."""
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


_NO_ROOM: Final = "it does not read, and unread responses are at their limit (maxUnreadBytes)"


class SendBufferLimits(Generic[ClientT]):
    """The unread bytes of each client, in the order in which the clients last read something.

    A response may take a quarter of the remaining room, so that clients that do not read leave some
    of it to those that do; when no room is left, responses are small. A response that cannot be
    shortened may take half of the total while every client reads, or it could never be sent. A
    client that reads nothing for too long is disconnected, and sooner if such clients have used up
    the room.

    Bytes in the system's buffers count as well, and are measured once a second. A client whose
    unread bytes are all in these buffers is disconnected only when no room is left.
    """

    def __init__(self, bytes_max: int) -> None:
        """Create empty limits; ``bytes_max`` is the maximum of unread responses of all clients."""
        self._bytes_max = bytes_max
        self.bytes = 0
        self._sizes: dict[ClientT, int] = {}
        self._undelivered: dict[ClientT, int] = {}
        self._since: dict[ClientT, float] = {}
        self._written: dict[ClientT, None] = {}
        """Clients to which much was written that may not have arrived yet."""
        self._in_kernel: dict[ClientT, int] = {}
        """The bytes for each client in the system's buffers, as last measured."""
        self._stuck_since: dict[ClientT, float] = {}
        """The time since which none of these bytes has reached the client."""
        self.response_bytes_max = 0
        """The maximum size of another response, in bytes."""
        self._add_bytes(0)

    def response_fault(self, size: int) -> tuple[ResponseCode, str] | None:
        """Return why a response that cannot be shortened is refused, or None if it is allowed."""
        if size <= self.response_bytes_max:
            return None
        size_max = self._bytes_max // _LARGEST_RESPONSE_DIVISOR
        if size > size_max:
            return ResponseCode.SYSTEM_ERROR, (
                f"a response of {size} bytes is over {size_max}, half of maxUnreadBytes: ask "
                "for less, or raise that setting"
            )
        if self.bytes:
            return ResponseCode.SYSTEM_BUSY, (
                f"[REJECTREQUEST]system busy, no memory for a response of {size} bytes: "
                "clients do not read earlier ones"
            )
        return None

    def record(self, connection: ClientT, size: int, now: float) -> None:
        """Record that a client has ``size`` unread bytes now."""
        self._add_bytes(size - self._sizes.get(connection, 0))
        self._sizes[connection] = size
        if connection not in self._since:
            self._since[connection] = now
            self._undelivered[connection] = connection.undelivered_bytes

    def record_written(self, connection: ClientT) -> None:
        """Record that the system's buffers may contain bytes for a client."""
        self._written[connection] = None

    def discard(self, connection: ClientT, *, is_disconnected: bool = False) -> None:
        """Remove a client that has read everything, or has disconnected."""
        self._add_bytes(-self._sizes.pop(connection, 0))
        self._since.pop(connection, None)
        self._undelivered.pop(connection, None)
        if is_disconnected:
            self._written.pop(connection, None)
            self._record_kernel(connection, 0)

    def _record_kernel(self, connection: ClientT, size: int) -> None:
        self._add_bytes(size - self._in_kernel.pop(connection, 0))
        if size:
            self._in_kernel[connection] = size
        else:
            self._stuck_since.pop(connection, None)

    def skip_time(self, seconds: float) -> None:
        """Treat all clients as reading during a jump of the clock."""
        for times in (self._since, self._stuck_since):
            for connection in times:
                times[connection] += seconds

    def update_progress(self, now: float) -> None:
        """Find the clients that have read something since the previous call."""
        for connection, before in tuple(self._undelivered.items()):
            unwritten = self._undelivered[connection] = connection.undelivered_bytes
            if unwritten < before:
                del self._since[connection]
                self._since[connection] = now
        for connection in tuple(self._written):
            if connection in self._sizes:  # measured above, with its unread bytes
                self._record_kernel(connection, 0)
                continue
            before, size = self._in_kernel.get(connection, 0), connection.undelivered_bytes
            self._record_kernel(connection, size)
            if not size:
                del self._written[connection]
            elif size < before or connection not in self._stuck_since:
                self._stuck_since.pop(connection, None)
                self._stuck_since[connection] = now

    def slow_readers(self, now: float, timeout_seconds: float) -> Iterator[tuple[ClientT, str]]:
        """Yield the clients that have read nothing for too long, each with the reason."""
        excess = self.bytes - self._bytes_max
        for connection, since in tuple(self._since.items()):
            # Others may have read, or disconnected, while some were closed.
            if self._since.get(connection) != since:
                continue
            if now - since > timeout_seconds:
                yield connection, "it does not read its responses"
            elif excess > 0 and now - since > _FULL_TIMEOUT_SECONDS:
                yield connection, _NO_ROOM
            else:
                break
            excess -= self._sizes.get(connection, 0)
        for connection, since in tuple(self._stuck_since.items()):
            if excess <= 0 or now - since <= _FULL_TIMEOUT_SECONDS:
                return
            if connection not in self._sizes:
                yield connection, _NO_ROOM
                excess -= self._in_kernel.get(connection, 0)

    def _add_bytes(self, more_bytes: int) -> None:
        self.bytes += more_bytes
        self.response_bytes_max = max(
            (self._bytes_max - self.bytes) // _FREE_BYTES_DIVISOR, RESPONSE_BYTES_MIN
        )
