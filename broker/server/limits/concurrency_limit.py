"""ConcurrencyLimit: limits how much is worked on in steps at a time, for all clients together.

    place      for a request of many steps: granted now, or in its turn when others have ended
    release    the request has come to its end, or its client has gone

What a request of many steps has in memory, as its decoded body or half of its answer, is many times
as long as its frame. Small requests have half of the room, and a line of their own: a heartbeat
does not wait for batches, of which one may take most of a second. In each line one is always
granted, however long. A request that has a place must go on with it, whatever the client does. It
knows no client, no request and no loop.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import Final

BYTES_MAX: Final = 4 << 20
"""The maximum total of requests in bytes, headers and bodies; decoded,
they take twenty times as much."""

SMALL_BODY_BYTES: Final = 64 << 10
"""Up to this a request is small: a heartbeat of hundreds of groups,
a batch of some milliseconds."""

_REQUEST_BYTES: Final = 64 << 10
"""Bytes that a request counts for beside its own, as its answer is yet to be written."""


class Permit:
    """The place of one request."""

    def __init__(self, queue: _PermitQueue, size: int) -> None:
        """Wait in a line; only `ConcurrencyLimit.place` makes places."""
        self.granted: Future[None] = Future()
        """A future that is done when the request may take its first step."""
        self.size = size
        self._queue = queue

    def release(self) -> None:
        """Release the place to others; to be called once."""
        self._queue.release(self)


class ConcurrencyLimit:
    """The places of a server for requests of many steps."""

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._small = _PermitQueue(bytes_max // 2)
        self._large = _PermitQueue(bytes_max // 2)

    def acquire(self, frame_bytes: int) -> Permit:
        """Give a place to a request whose frame is so long, at once or later."""
        line = self._small if frame_bytes <= SMALL_BODY_BYTES else self._large
        place = Permit(line, frame_bytes + _REQUEST_BYTES)
        line.enqueue(place)
        return place


class _PermitQueue:
    """Requests that get their places in the order in which they came."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._used_bytes = 0
        self._waiting: dict[Permit, None] = {}

    def enqueue(self, permit: Permit) -> None:
        self._waiting[permit] = None
        self._grant()

    def release(self, permit: Permit) -> None:
        """Take a place back, whether it was granted or not."""
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
