"""Housekeeping: what a broker does every few seconds, whether anybody asks for it or not.

Looks at memory on the loop's thread; files that may take long in a thread of its own, one job at a time. A
job that fails is logged, and comes again; one for which something is lacking is logged once, and when it is
over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

from broker.config import BrokerConfig
from broker.longpolling.pull_request_hold_service import PullRequestHoldService
from broker.loop_turn import LoopTurn
from broker.processors import Processors
from broker.schedule.schedule_message_service import ScheduleMessageService
from broker.state_tables import StateTables
from broker.store import lazy_numpy
from broker.store.lacks import Hindrance, is_lack
from broker.store.message_store import MessageStore

_log = logging.getLogger(__name__)
_HOLD_SWEEP_MS = 5_000
_SLOW_SWEEP_MS = 100
_STATS_SAMPLE_MS = 10_000
_CLIENT_SCAN_MS = 10_000
_CONFIGURATION_SAVE_MS = 1_000
_FINISH_OPENING_MS = 1_000
_REPUT_AGAIN_MS = 1_000
_LOAD_NUMPY_MS = 1_000
"""When the first clients have been answered, and before there are so many messages that it is needed."""


class Housekeeping:
    """Timers, and a thread."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        turn: LoopTurn,
        config: BrokerConfig,
        store: MessageStore,
        tables: StateTables,
        schedule: ScheduleMessageService,
    ) -> None:
        self._loop = loop
        self._turn = turn
        self._config = config
        self._store = store
        self._tables = tables
        self._schedule = schedule
        self._thread = ThreadPoolExecutor(1, "BrokerHousekeeping")
        self._thread.submit(_nothing)  # starts it: when there is much to do, the system may start none
        self._timers: dict[Callable[[], None], asyncio.TimerHandle] = {}
        self._under_way: set[Callable[[], object]] = set()
        self._hindrances: dict[str, Hindrance] = {}
        self._jobs: set[Future[object]] = set()
        self._aside = 0

    def start(self, hold_service: PullRequestHoldService, processors: Processors) -> None:
        """Begin; nothing is done at once."""
        config = self._config
        self._every(_FINISH_OPENING_MS, self._finish_opening)
        self._every(_REPUT_AGAIN_MS, self._store.reput_again)
        self._every(_CONFIGURATION_SAVE_MS, self._save_configurations)
        self._every(_HOLD_SWEEP_MS, partial(self._sweep_holds, hold_service))
        self._every(_CLIENT_SCAN_MS, processors.expire_clients)
        self._every(_STATS_SAMPLE_MS, processors.sample_stats)
        self._every(config.flush_consumer_offset_interval_ms, self._save_offsets)
        self._every(config.flush_delay_offset_interval_ms, self._save_delay_offsets)
        self._every(config.checkpoint_interval_ms, self._save_checkpoint)
        self._every(config.clean_resource_interval_ms, self.clean)
        self._every(_LOAD_NUMPY_MS, self._load_numpy)

    async def settled(self, seconds: float) -> None:
        """Return when all that was to be done aside is done, or after some time."""
        until = self._loop.time() + seconds
        while self._aside and self._loop.time() < until:  # what is done may bring more to do
            behind_all = self._loop.run_in_executor(self._thread, _nothing)
            await asyncio.wait([behind_all], timeout=until - self._loop.time())

    async def stop(self) -> None:
        """Begin nothing more, and wait for what has begun; without another thread, which may be too late."""
        for timer in self._timers.values():
            timer.cancel()
        jobs = [asyncio.wrap_future(job) for job in tuple(self._jobs)]
        await asyncio.gather(*jobs, return_exceptions=True)
        self._thread.shutdown()

    def _every(self, interval_ms: int, job: Callable[[], None]) -> None:
        def run() -> None:
            self._timers[job] = self._loop.call_later(interval_ms / 1000, run)
            try:
                job()
            except Exception:  # noqa: BLE001  # it must not end the others, and comes again
                _log.exception("%s failed", job)

        self._timers[job] = self._loop.call_later(interval_ms / 1000, run)

    def clean(self) -> None:
        """Have old files deleted soon."""
        self._in_thread("old files are not deleted", self._store.clean)

    def run_aside(self, job: Callable[[], object], then: Callable[[BaseException | None], None]) -> None:
        """Do it in the thread; then, here again, say what it has raised, or what has kept it from that."""

        def done(future: Future[object]) -> None:
            self._aside -= 1
            then(future.exception())

        try:
            future = self._thread.submit(job)
        except (RuntimeError, MemoryError) as error:
            self._loop.call_soon(then, error)
            return
        self._aside += 1
        self._jobs.add(future)
        future.add_done_callback(self._jobs.discard)
        future.add_done_callback(lambda future: self._loop.call_soon_threadsafe(done, future))

    def _sweep_holds(self, hold_service: PullRequestHoldService) -> None:
        # At the end of the turn: after a standstill of the machine, deadlines are due in it as well.
        self._loop.call_soon(lambda: self._turn.work(self._sweep(hold_service)))

    def _sweep(self, hold_service: PullRequestHoldService) -> Iterator[None]:
        began = self._loop.time()
        queues = hold_service.queues
        yield from hold_service.check_hold_request(int(began * 1000))
        took_ms = int((self._loop.time() - began) * 1000)
        if took_ms > _SLOW_SWEEP_MS:
            _log.warning("looking after the pulls that wait for %d queues took %d ms", queues, took_ms)

    def _finish_opening(self) -> None:
        if self._store.is_opening:
            self._in_thread("the start is not finished", self._store.finish_opening)

    def _load_numpy(self) -> None:
        if not lazy_numpy.is_loaded():
            self._in_thread("numpy is not loaded", lazy_numpy.load_numpy)

    def _save_configurations(self) -> None:
        if self._tables.has_changed_configurations:
            self._in_thread("configurations are not saved", self._tables.save_configurations)

    def _save_offsets(self) -> None:
        self._in_thread("offsets of groups are not saved", self._tables.offsets.save)

    def _save_delay_offsets(self) -> None:
        self._in_thread("offsets of delayed messages are not saved", self._schedule.save)

    def _save_checkpoint(self) -> None:
        self._in_thread("no checkpoint is taken", self._store.save_checkpoint)

    def _in_thread(self, failure: str, job: Callable[[], object]) -> None:
        """Do it beside the loop, unless it has not come to an end since the last time.

        ``failure`` says what is not done if that fails.
        """
        if job in self._under_way:
            return
        self._under_way.add(job)

        def done(error: BaseException | None) -> None:
            self._under_way.discard(job)
            hindrance = self._hindrances.setdefault(failure, Hindrance(failure))
            if error is None:
                hindrance.end()
            elif is_lack(error):
                hindrance.begin(error)
            else:
                _log.error("%s: %s", failure, error)

        self.run_aside(job, done)


def _nothing() -> None:
    """What comes behind all else."""
