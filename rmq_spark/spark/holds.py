"""Holds: pulls at the ends of queues that brokers hold, so that waiting for news costs nothing.

A broker that has to be dialled first is waited for beside the pulls of the others, and one that
cannot be reached is no news: a wait lasts no longer for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future
from concurrent.futures import wait as wait_for_futures
from typing import Any, Final, NamedTuple

from rmq_spark.client.results import PullResult, PullStatus
from rmq_spark.spark.asking import AWAY, Reached
from rmq_spark.wire.message_queue import MessageQueue

_PAUSE_SECONDS: Final = 0.2
_HOLD_AGAIN_SECONDS: Final = 0.1
"""Seconds after which a pull counts as held; brokers that return empty sooner do not hold."""

Reach = Callable[[Iterable[MessageQueue]], Reached]
"""A function that gives the ways to the brokers of queues, and dials those not connected."""

Hold = Callable[[str, MessageQueue, int, int], "Future[PullResult]"]
"""A function that pulls at an address, of a queue, from an offset on, held there for some ms."""


class _Held(NamedTuple):
    """A pull at a queue's end that its broker may be holding."""

    queue_offset: int
    sent_at: float
    answer: Future[PullResult]


class Holds:
    """The held pulls by which a query waits for new messages; for use by one thread."""

    def __init__(
        self, reach: Reach, hold: Hold, clock: Callable[[], float], suspend_ms: int
    ) -> None:
        """Take a clock that gives seconds, and how long brokers are to hold a pull."""
        self._reach = reach
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
        away: set[str] = set()  # found to be so since the last pause
        while (left := deadline - self._clock()) > 0:
            ways, dials, faults = self._reach(
                queue for queue in ends if queue.broker_name not in away
            )
            away.update(faults)
            for queue, offset in ends.items():
                name = queue.broker_name
                if name in dials or name in away:
                    self._let_go(queue)
                elif not self._hold(ways[name], queue, offset, left):
                    away.add(name)
            awaited: list[Future[Any]] = [held.answer for held in self._held.values()]
            awaited += dials.values()
            if not awaited:
                time.sleep(min(left, _PAUSE_SECONDS))
                away.clear()
                continue
            wait_for_futures(awaited, left, FIRST_COMPLETED)
            if any(_brings_news(held.answer) for held in self._held.values()):
                return True
        return False

    def _let_go(self, queue: MessageQueue) -> None:
        """Forget a pull that has ended with its connection."""
        held = self._held.get(queue)
        if held is not None and held.answer.done():
            del self._held[queue]

    def _hold(self, address: str, queue: MessageQueue, offset: int, seconds: float) -> bool:
        """Have a pull waiting at this offset; return whether there is one."""
        held = self._held.get(queue)
        now = self._clock()
        if held is not None and held.queue_offset == offset:
            if not held.answer.done():
                return True
            early = held.sent_at + _HOLD_AGAIN_SECONDS - now
            if early > 0:
                time.sleep(min(early, seconds))
        self._held.pop(queue, None)
        try:
            answer = self._pull(address, queue, offset, self._suspend_ms)
        except AWAY:
            return False
        self._held[queue] = _Held(offset, now, answer)
        return True


def _brings_news(answer: Future[PullResult]) -> bool:
    if not answer.done() or answer.exception() is not None:
        return False
    return answer.result().pull_status is not PullStatus.NO_NEW_MSG
