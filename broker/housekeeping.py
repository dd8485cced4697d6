"""Housekeeping: what a broker does every few seconds, whether anybody asks for it or not.

Looks at memory on the loop's thread; files that may take long in a thread of its own, one job at a time. A
job that fails is logged, and comes again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from broker.config import BrokerConfig
from broker.longpolling.pull_request_hold_service import PullRequestHoldService
from broker.processors import Processors
from broker.schedule.schedule_message_service import ScheduleMessageService
from broker.state_tables import StateTables
from broker.store.message_store import MessageStore

_log = logging.getLogger(__name__)
_HOLD_SWEEP_MS = 5_000
_STATS_SAMPLE_MS = 10_000
_CLIENT_SCAN_MS = 10_000
_CONFIGURATION_SAVE_MS = 1_000


class Kept(Protocol):
    """The rooms that need it."""

    store: MessageStore
    tables: StateTables
    schedule: ScheduleMessageService
    hold_service: PullRequestHoldService
    processors: Processors


class Housekeeping:
    """Timers, and a thread."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, config: BrokerConfig, kept: Kept, now_ms: Callable[[], int]
    ) -> None:
        self._loop = loop
        self._config = config
        self._kept = kept
        self._now_ms = now_ms
        self._thread = ThreadPoolExecutor(1, "BrokerHousekeeping")
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def start(self) -> None:
        """Begin; nothing is done at once."""
        config, kept = self._config, self._kept
        self._every(_CONFIGURATION_SAVE_MS, kept.tables.save_configurations)
        self._every(_HOLD_SWEEP_MS, self._sweep_holds)
        self._every(_CLIENT_SCAN_MS, self._scan_clients)
        self._every(_STATS_SAMPLE_MS, self._sample_stats)
        self._every(config.flush_consumer_offset_interval_ms, self._save_offsets)
        self._every(config.flush_delay_offset_interval_ms, self._save_delay_offsets)
        self._every(config.checkpoint_interval_ms, self._in_thread(kept.store.save_checkpoint))
        self._every(config.clean_resource_interval_ms, self._in_thread(kept.store.clean))

    def stop(self) -> None:
        """Begin nothing more."""
        for timer in self._timers.values():
            timer.cancel()

    async def finish(self) -> None:
        """Wait for what has begun."""
        await self._loop.run_in_executor(None, self._thread.shutdown)
