"""ConsumeRequestCache: holds pulled messages for `poll`, in the order of their arrival.

Requests from before a seek, or of queues that are no longer assigned, are skipped; those of paused
queues stay.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from rmq_spark.client.concurrency.threads import SIGNAL_CHECK_SECONDS
from rmq_spark.client.consumer.queues.assigned_queues import ConsumeRequest, PollOutcome


class ConsumeRequestCache:
    """A queue between pulls and `poll`. Methods may be called from any thread."""

    def __init__(self) -> None:
        self._mutex = threading.RLock()
        self._state = threading.Condition(self._mutex)
        self._requests: deque[ConsumeRequest] = deque()
        self._is_closed = False
        self._notify_change: Callable[[], object] = lambda: None

    def set_change_callback(self, callback: Callable[[], object]) -> None:
        """Set a function to call whenever `poll` may have another outcome; it must not block."""
        self._notify_change = callback

    def put(self, request: ConsumeRequest) -> None:
        """Add the messages of a pull."""
        with self._mutex:
            self._requests.append(request)
            self._state.notify()
        self._notify_change()

    def put_first(self, request: ConsumeRequest) -> None:
        """Put back messages that were not returned after all, before all others."""
        with self._mutex:
            self._requests.appendleft(request)

    def poll(
        self, timeout_ms: int, messages_max: int | None = None, *, one_by_one: bool = False
    ) -> ConsumeRequest | None:
        """Return the next request, waiting up to a timeout; None without one, or once closed.

        With ``messages_max``, a larger request is split: the rest stays for the next call. With
        ``one_by_one``, its messages are not acquired yet, but handed out by its queue's `handout`.
        """
        deadline = time.monotonic() + timeout_ms / 1000
        with self._mutex:
            while not self._is_closed:
                request = self._next_request(messages_max, one_by_one=one_by_one)
                if request is not None:
                    return request
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    break
                self._state.wait(min(remaining, SIGNAL_CHECK_SECONDS))
        return None

    def _next_request(self, messages_max: int | None, *, one_by_one: bool) -> ConsumeRequest | None:
        paused: list[ConsumeRequest] = []
        found = None
        while found is None and self._requests:
            request = self._requests.popleft()
            is_paused = request.assigned.is_paused  # it stays whole then
            if messages_max is not None and len(request.messages) > messages_max and not is_paused:
                messages, of = request.messages, (request.assigned, request.epoch)
                self._requests.appendleft(ConsumeRequest(*of, messages[messages_max:]))
                request = ConsumeRequest(*of, messages[:messages_max])
            taking = request.assigned.acquire(request, one_by_one=one_by_one)
            if taking is PollOutcome.PAUSED:
                paused.append(request)
                continue
            if taking is PollOutcome.ACQUIRED:
                found = request
        self._requests.extendleft(reversed(paused))
        return found

    def discard_stale(self) -> None:
        """Drop requests of revoked queues, and those from before a seek.

        Requests that a queue has delivered since stay: its next pull may be faster than the caller.
        """
        with self._mutex:
            self._requests = deque(request for request in self._requests if not request.is_stale)

    def wake(self) -> None:
        """Check again, because a queue was resumed."""
        with self._mutex:
            self._state.notify_all()
        self._notify_change()

    def close(self) -> None:
        """Make every `poll` return None, including waiting ones."""
        with self._mutex:
            self._is_closed = True
            self._state.notify_all()
        self._notify_change()
