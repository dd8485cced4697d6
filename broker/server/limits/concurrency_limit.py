"""ConcurrencyLimit: limits how many multi-step requests run at a time, over all clients.

    acquire    a request of many steps gets its permit now, or when others have released theirs
    release    the request is finished, or its client is gone

A multi-step request needs many times its frame's size in memory, for its decoded body or half of
its response. Small requests have half of the room and a queue of their own, so that a heartbeat
does not wait for batches, one of which may take most of a second. Each queue always grants one
permit, whatever the size. A request that has a permit must go on with it, whatever the client does.
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
    """The permit of one request."""

    def __init__(self, queue: _PermitQueue, size: int) -> None:
        """Wait in a line; only `ConcurrencyLimit.place` makes places."""
        self.granted: Future[None] = Future()
        """A future that is done when the request may take its first step."""
        self.size = size
        self._queue = queue

    def release(self) -> None:
        """Release the permit; to be called once."""
        self._queue.release(self)


class ConcurrencyLimit:
    """The permits of a server for multi-step requests."""

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._small = _PermitQueue(bytes_max // 2)
        self._large = _PermitQueue(bytes_max // 2)

    def acquire(self, frame_bytes: int) -> Permit:
        """Give a permit to a request with a frame of this size, at once or later."""
        line = self._small if frame_bytes <= SMALL_BODY_BYTES else self._large
        place = Permit(line, frame_bytes + _REQUEST_BYTES)
        line.enqueue(place)
        return place


class _PermitQueue:
    """Requests that get their permits in the order of arrival."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._used_bytes = 0
        self._waiting: dict[Permit, None] = {}

    def enqueue(self, permit: Permit) -> None:
        self._waiting[permit] = None
        self._grant()

    def release(self, permit: Permit) -> None:
        """Release a permit, whether it was granted or not."""
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
