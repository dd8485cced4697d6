"""Holds: pulls at the ends of queues that brokers hold, so that waiting for news costs nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future
from concurrent.futures import wait as wait_for_futures
from typing import Final, NamedTuple

from rmq_spark.client.results import PullResult, PullStatus
from rmq_spark.spark.brokers.fan_out import AWAY
from rmq_spark.wire.message_queue import MessageQueue

_PAUSE_SECONDS: Final = 0.2
_HOLD_AGAIN_SECONDS: Final = 0.1
"""Seconds after which a pull counts as held; brokers that return empty sooner do not hold."""

Hold = Callable[[MessageQueue, int, int], "Future[PullResult]"]
"""A function that pulls a queue at an offset, and lets the broker hold the pull for some ms.

It waits for nobody: a broker that is not connected is one that is away."""


class _Held(NamedTuple):
    """A pull at a queue's end that its broker may be holding."""

    queue_offset: int
    sent_at: float
    answer: Future[PullResult]


class Holds:
    """The held pulls by which a query waits for new messages; for use by one thread."""

    def __init__(self, hold: Hold, clock: Callable[[], float], suspend_ms: int) -> None:
        """Take a clock that gives seconds, and how long brokers are to hold a pull."""
        self._pull = hold
        self._clock = clock
        self._suspend_ms = suspend_ms
        self._held: dict[MessageQueue, _Held] = {}

    def wait(self, ends: Mapping[MessageQueue, int], timeout_ms: int) -> bool:
        """Return True as soon as a queue has a message at its end, or False when the time is over.

        Pulls that are held by then stay held, and the next wait goes on with them.
        """
        deadline = self._clock() + timeout_ms / 1000
        self._held = {queue: held for queue, held in self._held.items() if queue in ends}
        while (left := deadline - self._clock()) > 0:
            for queue, offset in ends.items():
                self._hold(queue, offset, left)
            if len(self._held) < len(ends):  # a broker is away, or has just come back
                left = min(left, _PAUSE_SECONDS)
            answers = [held.answer for held in self._held.values()]
            if not answers:
                time.sleep(left)
                continue
            wait_for_futures(answers, left, FIRST_COMPLETED)
            if any(_brings_news(held.answer) for held in self._held.values()):
                return True
        return False

    def _hold(self, queue: MessageQueue, offset: int, seconds: float) -> None:
        """Have a pull waiting at this offset."""
        held = self._held.get(queue)
        now = self._clock()
        if held is not None and held.queue_offset == offset:
            if not held.answer.done():
                return
            early = held.sent_at + _HOLD_AGAIN_SECONDS - now
            if early > 0:
                time.sleep(min(early, seconds))
        self._held.pop(queue, None)
        try:
            answer = self._pull(queue, offset, self._suspend_ms)
        except AWAY:
            return
        self._held[queue] = _Held(offset, now, answer)


def _brings_news(answer: Future[PullResult]) -> bool:
    if not answer.done() or answer.exception() is not None:
        return False
    return answer.result().pull_status is not PullStatus.NO_NEW_MSG
