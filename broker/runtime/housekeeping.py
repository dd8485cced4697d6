"""Housekeeping: the periodic jobs of a broker.

Jobs on small files and jobs that clients wait for share one thread and run one at a time. Staged
batches have another thread, because copying one would delay all other jobs. Jobs on the whole
store, which may take minutes, have threads of their own, and no other job waits for them. A job
that fails is logged and runs again. A shortage, or a disk that refuses a job, is logged once when
it begins and once when it ends.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from functools import partial

from ..common.threads import DaemonThreadPool
from ..longpolling.pull_request_hold_service import PullRequestHoldService
from ..schedule.schedule_message_service import ScheduleMessageService
from ..schedule.timer_message_store import TimerMessageStore
from ..server.event_loop import call_after_read
from ..server.fair_scheduler import FairScheduler
from ..settings.config import BrokerConfig
from ..store.bulk import bulk_tools, lazy_numpy
from ..store.errors import Degradations, is_retryable
from ..store.message_store import MessageStore
from .processors import Processors
from .state_tables import StateTables

_log = logging.getLogger(__name__)
_HOLD_SWEEP_MS = 5_000
_SLOW_SWEEP_MS = 100
_STATS_SAMPLE_MS = 10_000
_CLIENT_SCAN_MS = 10_000
_BUSY_CHECK_MS = 1_000
_CONFIGURATION_SAVE_MS = 1_000
_FINISH_OPENING_MS = 1_000
_EARLY_FLUSH_CHECK_MS = 1_000
_REPUT_RETRY_MS = 1_000
_THREAD_CHECK_MS = 1_000
_LOAD_NUMPY_MS = 1_000
"""Loads numpy after the first responses, and before many messages need it."""
_DELETED_TOPICS_MS = 1_000
_EXPIRY_CHECK_MS = 86_400_000
_ACCESS_RELOAD_MS = 5_000
_CRASH_CHECKPOINT_MS = 1_000
"""Short, because a second crash before this checkpoint would repeat the recovery."""
_STORE_JOBS = 2
"""Two at a time: a checkpoint, and retention, deletion of files or the rest of a start."""
_POLL_SECONDS = 0.5
"""Seconds between checks of `stop` whether a thread has started."""
_MEMORY_RETRY_SECONDS = 0.05
_STORE_JOBS_STOP_SECONDS = 5.0
"""Seconds that `stop` waits for jobs on the whole store, which end early unless the disk hangs."""


class Housekeeping:
    """The periodic jobs of a broker, with their timers and threads."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        scheduler: FairScheduler,
        config: BrokerConfig,
        store: MessageStore,
        tables: StateTables,
        schedule: ScheduleMessageService,
        timers: TimerMessageStore,
    ) -> None:
        self._loop = loop
        self._scheduler = scheduler
        self._config = config
        self._store = store
        self._tables = tables
        self._schedule = schedule
        self._timers_of_messages = timers
        self._pool = DaemonThreadPool("BrokerHousekeeping")
        self._batch_pool = DaemonThreadPool("StagedBatches")
        self._store_pool = DaemonThreadPool("StoreHousekeeping", _STORE_JOBS)
        self._pools = [self._pool, self._batch_pool, self._store_pool]
        name_servers = len(config.namesrv_addr)
        if name_servers:
            self._network_pool = DaemonThreadPool("NameServers", name_servers, waits_at_exit=False)
            self._pools.append(self._network_pool)
        try:
            for workers in self._pools:
                # Start its thread now: later the system may refuse one.
                workers.submit(lambda: None)
        except BaseException:
            for workers in self._pools:
                workers.shutdown()
            raise
        self._reload_access: Callable[[], None] | None = None
        self._timers: dict[Callable[[], None], asyncio.TimerHandle] = {}
        self._running_jobs: set[Callable[[], object]] = set()
        self._degradations = Degradations[str]()
        self._jobs: dict[Future[object], None] = {}
        self._store_jobs: dict[Future[object], None] = {}
        self._network_jobs: dict[Future[object], None] = {}
        self._pending_jobs = 0
        self._has_stopped = False

    def start(
        self,
        hold_service: PullRequestHoldService,
        processors: Processors,
        *,
        on_opened: Callable[[], object],
        log_expiry: Callable[[], None],
        reload_access: Callable[[], None] | None,
    ) -> None:
        """Schedule all periodic jobs; none runs immediately.

        ``on_opened`` is called when the store finishes opening, if that is after the start.
        ``log_expiry`` warns of certificates that expire. ``reload_access``, called in a thread,
        reads plain_acl.yml again if it has changed, and warns of files with secrets that others can
        read; None if the broker has no users.
        """
        config = self._config
        self._on_opened = on_opened
        self._every(_FINISH_OPENING_MS, self._finish_opening)
        self._every(_THREAD_CHECK_MS, self._check_threads)
        self._every(_REPUT_RETRY_MS, self._store.retry_degraded)
        self._every(_CONFIGURATION_SAVE_MS, self._save_configurations)
        self._every(_EARLY_FLUSH_CHECK_MS, self._check_early_flush)
        self._every(_DELETED_TOPICS_MS, self._delete_topic_files)
        self._every(_HOLD_SWEEP_MS, partial(self._sweep_holds, hold_service))
        self._every(_CLIENT_SCAN_MS, partial(self._scan_clients, processors))
        self._every(_STATS_SAMPLE_MS, processors.sample_stats)
        self._every(_BUSY_CHECK_MS, processors.log_busy)
        self._every(_EXPIRY_CHECK_MS, log_expiry)
        if reload_access is not None:
            self._reload_access = reload_access
            self._every(_ACCESS_RELOAD_MS, self.reload_access_lists)
        self._every(config.flush_consumer_offset_interval_ms, self._save_offsets)
        self._every(config.flush_delay_offset_interval_ms, self._save_delay_offsets)
        self._every(config.timer_flush_interval_ms, self._save_timers)
        self._every(config.checkpoint_interval_ms, self._save_checkpoint)
        self._every(config.clean_resource_interval_ms, self.clean)
        if self._store.state().recovered_from_crash:
            # `partial` makes a new key: `_save_checkpoint` is that of the periodic timer.
            once = partial(self._save_checkpoint)
            self._timers[once] = self._loop.call_later(_CRASH_CHECKPOINT_MS / 1000, once)
        self._every(_LOAD_NUMPY_MS, self._load_numpy)

    async def drain(self, seconds: float) -> None:
        """Wait until all jobs in both threads are done, but at most ``seconds``."""
        until = self._loop.time() + seconds
        while self._pending_jobs and self._loop.time() < until:  # a finished job may submit another
            if self._jobs:
                await self._wait_for(self._jobs, until - self._loop.time())
            await asyncio.sleep(0)  # lets the loop run the callbacks of finished jobs

    @property
    def is_busy(self) -> bool:
        """True if a job is running in any thread."""
        return bool(self._jobs or self._store_jobs or self._running_jobs or self._pending_jobs)

    async def wait_idle(self) -> None:
        """Wait until no job is running in any thread."""
        while self.is_busy:
            await self._wait_for((*self._jobs, *self._store_jobs), _POLL_SECONDS)
            await asyncio.sleep(0)  # lets the loop run the callbacks of finished jobs

    async def stop(self) -> None:
        """Start no more jobs, drop those that have not started, and wait for running ones.

        It starts no thread, because that may be impossible by now. It waits only briefly for a job
        on the whole store: one that is unfinished by then has recorded no progress.
        """
        for timer in self._timers.values():
            timer.cancel()
        before_stop = tuple(self._jobs)
        while not all(job.done() for job in before_stop):
            await self._wait_for(before_stop, _POLL_SECONDS)
            for workers in self._pools:
                workers.fail_stuck_jobs()
        self._has_stopped = True
        for workers in self._pools:
            if workers is not self._store_pool:
                workers.shutdown()
        await self._wait_for(self._store_jobs, _STORE_JOBS_STOP_SECONDS)
        self._store_pool.shutdown()

    async def _wait_for(self, jobs: Iterable[Future[object]], seconds: float) -> None:
        """Wait at most ``seconds`` for jobs to end; their owners log their exceptions."""
        # a copy, because a job that ends is removed from ``jobs``
        waiting = [asyncio.wrap_future(job) for job in tuple(jobs)]
        for job in waiting:  # asyncio logs exceptions that were never retrieved
            job.add_done_callback(_retrieve_exception)
        if waiting:
            await asyncio.wait(waiting, timeout=max(seconds, 0.0))

    def _every(self, interval_ms: int, job: Callable[[], None]) -> None:
        def run() -> None:
            self._timers[job] = self._loop.call_later(interval_ms / 1000, run)
            try:
                job()
            except Exception:  # noqa: BLE001  # the job runs again
                _log.exception("%s failed", job)

        self._timers[job] = self._loop.call_later(interval_ms / 1000, run)

    def clean(self) -> None:
        """Schedule the deletion of old files."""
        self._start_in_store_pool("old files are not deleted", self._store.clean)

    def run_in_thread(
        self, job: Callable[[], object], callback: Callable[[BaseException | None], None]
    ) -> None:
        """Run a job in the thread; then call ``callback`` on the loop with its error or None."""
        self._run_counted(self._pool, job, callback)

    def run_in_batch_thread(
        self, job: Callable[[], object], callback: Callable[[BaseException | None], None]
    ) -> None:
        """Run a job as `run_in_thread` does, in the thread of staged batches."""
        self._run_counted(self._batch_pool, job, callback)

    def run_in_network_thread(
        self, job: Callable[[], object], callback: Callable[[BaseException | None], None]
    ) -> None:
        """Run a job that waits for a name server, where it delays nothing else."""
        self._run(self._network_pool, self._network_jobs, job, callback)

    def _run_counted(
        self,
        workers: DaemonThreadPool,
        job: Callable[[], object],
        callback: Callable[[BaseException | None], None],
    ) -> None:
        self._pending_jobs += 1

        def done(error: BaseException | None) -> None:
            self._pending_jobs -= 1
            callback(error)

        self._run(workers, self._jobs, job, done)

    def _run(
        self,
        workers: DaemonThreadPool,
        jobs: dict[Future[object], None],
        job: Callable[[], object],
        callback: Callable[[BaseException | None], None],
    ) -> None:
        def on_done(future: Future[object]) -> None:
            if future.cancelled():
                return
            while not self._has_stopped:  # without this, the job would count as running forever
                try:
                    self._loop.call_soon_threadsafe(callback, future.exception())
                except MemoryError:
                    time.sleep(_MEMORY_RETRY_SECONDS)
                    continue
                except RuntimeError:  # the loop is closed: the result is not needed any more
                    pass
                return

        if self._has_stopped:  # the batch itself has not failed: the next start ends it
            return
        try:
            future = workers.submit(job)
        except (RuntimeError, MemoryError) as error:
            self._loop.call_soon(callback, error)
            return
        jobs[future] = None
        future.add_done_callback(jobs.pop)
        future.add_done_callback(on_done)

    def _scan_clients(self, processors: Processors) -> None:
        call_after_read(self._loop, processors.expire_clients)

    def _sweep_holds(self, hold_service: PullRequestHoldService) -> None:
        # Deadlines come first: after the process was stopped, many are due at the same time.
        self._loop.call_soon(lambda: self._scheduler.run_steps(self._sweep(hold_service)))

    def _sweep(self, hold_service: PullRequestHoldService) -> Iterator[None]:
        started_at = self._loop.time()
        queues = hold_service.queue_count
        yield from hold_service.check_hold_request(int(started_at * 1000))
        elapsed_ms = int((self._loop.time() - started_at) * 1000)
        if elapsed_ms > _SLOW_SWEEP_MS:
            _log.warning("checking the held pulls of %d queues took %d ms", queues, elapsed_ms)

    def _check_threads(self) -> None:
        for workers in self._pools:
            workers.fail_stuck_jobs()
        bulk_tools.check_loading()
        self._store.flusher.ensure_running()

    def retry_now(self) -> None:
        """Retry the jobs that a shortage has delayed, without waiting for their timers."""
        self._finish_opening()
        self._store.retry_degraded()

    def reload_access_lists(self) -> None:
        """Read a changed plain_acl.yml again soon, and warn of files that others can read."""
        if self._reload_access is not None:
            self._start_in_thread("access lists are not read again", self._reload_access)

    def _finish_opening(self) -> None:
        if self._store.is_opening:
            self._start_in_store_pool("the start is not finished", self._finish_in_thread)

    def _finish_in_thread(self) -> None:
        if self._store.finish_opening():
            self._loop.call_soon_threadsafe(self._on_opened)

    def _load_numpy(self) -> None:
        if not lazy_numpy.is_loaded():
            self._start_in_thread("numpy is not loaded", lazy_numpy.load_numpy)

    def _save_configurations(self) -> None:
        if self._tables.has_changed_configurations:
            self._start_in_thread("configurations are not saved", self._tables.save_configurations)

    def _save_offsets(self) -> None:
        self._start_in_thread("offsets of groups are not saved", self._tables.save_offsets)

    def _save_delay_offsets(self) -> None:
        self._start_in_thread("offsets of delayed messages are not saved", self._schedule.save)

    def _save_timers(self) -> None:
        if self._timers_of_messages.is_dirty:
            self._start_in_thread("timers are not saved", self._timers_of_messages.save)

    def _save_checkpoint(self) -> None:
        self._start_in_store_pool("no checkpoint is taken", self._store.save_checkpoint)

    def _check_early_flush(self) -> None:
        if self._store.is_flush_due:
            self._save_checkpoint()

    def _delete_topic_files(self) -> None:
        left = self._store.deleted_topic_files
        if left:
            self._start_in_store_pool("files of deleted topics are not deleted", left.delete_some)

    def _start_in_thread(self, failure: str, job: Callable[[], object]) -> None:
        """Run a job in the thread, unless its previous run is unfinished.

        If it fails, ``failure`` is logged: what remains undone.
        """
        self._start_unless_running(failure, job, self.run_in_thread)

    def _start_in_store_pool(self, failure: str, job: Callable[[], object]) -> None:
        """Run a job that may take minutes in the store pool, unless its last run is unfinished."""
        self._start_unless_running(
            failure, job, partial(self._run, self._store_pool, self._store_jobs)
        )

    def _start_unless_running(
        self,
        failure: str,
        job: Callable[[], object],
        run: Callable[[Callable[[], object], Callable[[BaseException | None], None]], None],
    ) -> None:
        if job in self._running_jobs:
            return
        self._running_jobs.add(job)

        def done(error: BaseException | None) -> None:
            self._running_jobs.discard(job)
            if error is None:
                self._degradations.end(failure)
            elif is_retryable(error):
                self._degradations.begin(failure, failure, error)
            else:
                _log.error("%s: %s", failure, error)

        run(job, done)


def _retrieve_exception(job: asyncio.Future[object]) -> None:
    if not job.cancelled():
        job.exception()
