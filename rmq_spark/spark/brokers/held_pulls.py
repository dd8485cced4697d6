"""Holds: pulls at the ends of queues that brokers hold, so that waiting for news costs nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future
from concurrent.futures import wait as wait_for_futures
from typing import Final, NamedTuple

from rmq_spark.client.results import PullResult, PullStatus
from rmq_spark.spark.brokers.fan_out import TRANSIENT_ERRORS
from rmq_spark.wire.message_queue import MessageQueue

_UNAVAILABLE_PAUSE_SECONDS: Final = 0.2
_REPULL_SECONDS: Final = 0.1
"""Seconds after which a pull counts as held; brokers that return empty sooner do not hold."""

PullFunction = Callable[[MessageQueue, int, int], "Future[PullResult]"]
"""A function that pulls a queue at an offset, and lets the broker hold the pull for some ms.

It waits for nobody: a broker that is not connected is one that is away."""


class _HeldPull(NamedTuple):
    """A pull at a queue's end that its broker may be holding."""

    queue_offset: int
    sent_at: float
    response: Future[PullResult]


class HeldPulls:
    """The held pulls by which a query waits for new messages; for use by one thread."""

    def __init__(self, pull: PullFunction, clock: Callable[[], float], suspend_ms: int) -> None:
        """Take a clock that gives seconds, and how long brokers are to hold a pull."""
        self._pull = pull
        self._clock = clock
        self._suspend_ms = suspend_ms
        self._pulls: dict[MessageQueue, _HeldPull] = {}

    def wait(self, ends: Mapping[MessageQueue, int], timeout_ms: int) -> bool:
        """Return True as soon as a queue has a message at its end, or False when the time is over.

        Pulls that are held by then stay held, and the next wait goes on with them.
        """
        deadline = self._clock() + timeout_ms / 1000
        self._pulls = {queue: held for queue, held in self._pulls.items() if queue in ends}
        while (left := deadline - self._clock()) > 0:
            for queue, offset in ends.items():
                self._ensure_pull(queue, offset, left)
            if len(self._pulls) < len(ends):  # a broker is away, or has just come back
                left = min(left, _UNAVAILABLE_PAUSE_SECONDS)
            answers = [held.response for held in self._pulls.values()]
            if not answers:
                time.sleep(left)
                continue
            wait_for_futures(answers, left, FIRST_COMPLETED)
            if any(_has_messages(held.response) for held in self._pulls.values()):
                return True
        return False

    def _ensure_pull(self, queue: MessageQueue, offset: int, seconds: float) -> None:
        """Have a pull waiting at this offset."""
        held = self._pulls.get(queue)
        now = self._clock()
        if held is not None and held.queue_offset == offset:
            if not held.response.done():
                return
            early = held.sent_at + _REPULL_SECONDS - now
            if early > 0:
                time.sleep(min(early, seconds))
        self._pulls.pop(queue, None)
        try:
            answer = self._pull(queue, offset, self._suspend_ms)
        except TRANSIENT_ERRORS:
            return
        self._pulls[queue] = _HeldPull(offset, now, answer)


def _has_messages(response: Future[PullResult]) -> bool:
    if not response.done() or response.exception() is not None:
        return False
    return response.result().pull_status is not PullStatus.NO_NEW_MSG
