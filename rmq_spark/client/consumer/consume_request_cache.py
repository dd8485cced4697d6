"""ConsumeRequestCache: what was pulled and waits for `poll`, in the order of its arrival.

Requests of queues that have gone or were sought in are passed over, those of paused queues stay. It knows
neither brokers nor offsets.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Final

from rmq_spark.client.consumer.assigned_queues import ConsumeRequest, Taking

_SIGNALS_SECONDS: Final = 1.0
"""A signal that comes just before a wait begins is handled when that ends: so late at most."""


class ConsumeRequestCache:
    """A queue between pulls and `poll`. Safe in any thread."""

    def __init__(self) -> None:
        self._state = threading.Condition()
        self._requests: deque[ConsumeRequest] = deque()
        self._is_closed = False

    def put(self, request: ConsumeRequest) -> None:
        """Something was pulled."""
        with self._state:
            self._requests.append(request)
            self._state.notify()

    def poll(self, timeout_ms: int) -> ConsumeRequest | None:
        """The next that can be had, waiting so long for it; None if there is none, or the cache is closed."""
        deadline = time.monotonic() + timeout_ms / 1000
        with self._state:
            while not self._is_closed:
                request = self._next()
                if request is not None:
                    return request
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    break
                self._state.wait(min(remaining, _SIGNALS_SECONDS))
        return None

    def _next(self) -> ConsumeRequest | None:
        paused: list[ConsumeRequest] = []
        found = None
        while found is None and self._requests:
            request = self._requests.popleft()
            taking = request.assigned.take(request)
            if taking is Taking.PAUSED:
                paused.append(request)
                continue
            if taking is Taking.TAKEN:
                found = request
        self._requests.extendleft(reversed(paused))
        return found

    def forget_stale(self) -> None:
        """Pass over what waits of queues that have gone, or from before they were sought in.

        What a queue has brought since then stays: its next pull may be faster than whoever calls this.
        """
        with self._state:
            self._requests = deque(request for request in self._requests if not request.is_stale)

    def wake(self) -> None:
        """Look again: a queue is paused no more."""
        with self._state:
            self._state.notify_all()

    def close(self) -> None:
        """Nobody waits any longer."""
        with self._state:
            self._is_closed = True
            self._state.notify_all()
