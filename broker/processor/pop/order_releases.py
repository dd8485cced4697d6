"""OrderReleases: wakes pops when a queue that is popped in order is free again.

A queue is blocked until each of its popped messages is acknowledged or visible again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ...longpolling.pop_request import PopWaiters
from ...pop.pop_counters import PopQueue
from ...state.tables.consumer_order_info import ConsumerOrderInfoManager


class OrderReleases:
    """Timers for blocked queues, one for each."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        order_info: ConsumerOrderInfoManager,
        waiters: PopWaiters,
        now_ms: Callable[[], int],
    ) -> None:
        """Store the broker's parts; ``now_ms`` is the time of day, as in the table."""
        self._loop = loop
        self._order_info = order_info
        self._waiters = waiters
        self._now_ms = now_ms
        self._timers: dict[PopQueue, asyncio.TimerHandle] = {}

    def cancel(self) -> None:
        """Cancel all timers, because the broker stops."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def schedule(self, queue: PopQueue) -> None:
        """Wake pops when a queue is free, now or later; call this after each change of it."""
        timer = self._timers.pop(queue, None)
        if timer is not None:
            timer.cancel()
        free_ms = self._order_info.free_ms(queue)
        if free_ms is None:
            topic, group, queue_id = queue
            self._waiters.wake_next(topic, group, queue_id)
            return
        wait_seconds = max(free_ms - self._now_ms(), 0) / 1_000
        self._timers[queue] = self._loop.call_later(wait_seconds, self.schedule, queue)
