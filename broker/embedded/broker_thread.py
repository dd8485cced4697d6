"""BrokerThread: a broker on its own event loop in a daemon thread of this process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from typing import Any, Final

from rmq_spark.errors import RocketPollError

from ..common.threads import DaemonThreadPool
from ..controller import BrokerController
from ..settings.config import BrokerConfig
from ..store.errors import StoreError, describe_error, is_transient
from .faults.clock import ClockOffset
from .faults.embedded_disk import EmbeddedDisk
from .faults.embedded_loop import EmbeddedLoop, new_embedded_loop
from .faults.network import EmbeddedNetwork

# ---- Advance of the clock.

STOPS_MAX: Final = 5_000
"""The maximum number of stops of one move. After that, as on a disk that stays full for days, the
move stops only at each full hour.
"""

_HOUR_SECONDS: Final = 3_600.0
_STEP_SECONDS_MIN: Final = 0.001
_ROUNDING_SECONDS: Final = 0.005
"""The wait at the end of a move for timers that are nearly due: delays round up to milliseconds."""


async def advance(controller: BrokerController, loop: EmbeddedLoop, seconds: float) -> None:
    """Move a broker's time forward in stops, and run everything that falls due on the way.

        stops     each pending deadline (`AdjustableTimeLoop`), so that everything runs in order and
                  at its own time; each full hour of the way, because files expire by the hour of
                  the day; and the end
        a stop    due timers fire. The stop ends when no job is running: messages are visible,
                  expired files are deleted, and changed tables are saved

    During a move nothing is read from clients: what they send waits until its end. Clients use the
    machine's time and cannot send during the skipped time, so it does not count as silence: their
    connections, group memberships and queue locks stay. Requests that the broker holds, such as
    pulls, expire.
    """
    loop.network.pause_reading(is_paused=True)
    try:
        await _find_deadlines(controller, loop)
        await _advance_in_steps(controller, loop, seconds)
    finally:
        loop.network.pause_reading(is_paused=False)


async def _advance_in_steps(
    controller: BrokerController, loop: EmbeddedLoop, seconds: float
) -> None:
    left = seconds
    moments = 0
    while left > 0:
        step = min(left, _HOUR_SECONDS)
        moment = loop.next_deadline() if moments < STOPS_MAX else None
        if moment is not None and moment - loop.time() < step:
            moments += 1
            # not past the end, and not below the resolution of timers
            step = min(max(moment - loop.time(), _STEP_SECONDS_MIN), left)
        left -= step
        loop.advance(step)
        controller.server.skip_time(step)
        controller.processors.skip_time(round(step * 1_000))
        await _find_deadlines(controller, loop)
    moment = loop.next_deadline()
    if moment is not None and moment - loop.time() < _ROUNDING_SECONDS:
        await asyncio.sleep(moment - loop.time())
        await wait_idle(controller, loop)


async def _find_deadlines(controller: BrokerController, loop: EmbeddedLoop) -> None:
    """Finish everything due; then schedule the check of transactions, which is a deadline."""
    await wait_idle(controller, loop)
    controller.schedule_transaction_checks()
    await wait_idle(controller, loop)


async def wait_idle(controller: BrokerController, loop: EmbeddedLoop) -> None:
    """Wait until everything that is due now is done, as far as the disk permits."""
    begin = None
    while begin != controller.store.state().min_offset:
        if begin is not None:
            controller.housekeeping.clean()  # files are deleted a few at a time: more may remain
        begin = controller.store.state().min_offset
        await _wait_until_idle(controller, loop)


async def _wait_until_idle(controller: BrokerController, loop: EmbeddedLoop) -> None:
    while not _is_idle(controller, loop):
        await controller.housekeeping.wait_idle()
        written_offset = controller.store.state().written_offset
        if controller.store.confirm_offset() < written_offset:
            with suppress(StoreError):  # the store logs the cause
                await asyncio.wrap_future(controller.store.flush_future(written_offset))
        await asyncio.sleep(0)


def _is_idle(controller: BrokerController, loop: EmbeddedLoop) -> bool:
    state = controller.store.state()
    is_dispatched = state.reput_from_offset >= state.written_offset
    return (
        (is_dispatched or bool(state.failure or state.degradation))
        and not controller.processors.acknowledger.queue().size
        and controller.scheduler.is_idle
        and not controller.housekeeping.is_busy
        and not loop.has_due_timers()
    )


_STOP_SECONDS = 30.0
_POLL_SECONDS = 1.0


class BrokerThread:
    """A broker on a daemon thread; it can be started once and stopped once."""

    def __init__(
        self,
        config: BrokerConfig,
        clock_offset: ClockOffset,
        disk: EmbeddedDisk,
        network: EmbeddedNetwork,
    ) -> None:
        """Prepare a broker without running it.

        Its time is the machine's plus ``clock_offset``, which each `advance` increases. After a
        restart, clock, ``disk`` and ``network`` come from the earlier thread.
        """
        self._clock_offset = clock_offset
        self._network = network
        self._controller = BrokerController(config, disk, clock_offset.now_ms)
        self._started: Future[int] = Future()
        self._stopped: Future[None] = Future()
        self._resumed = threading.Event()
        self._resumed.set()
        self._operations: set[asyncio.Task[None]] = set()
        self._operation_lock = asyncio.Lock()
        self._thread_pool = DaemonThreadPool("EmbeddedBroker", waits_at_exit=False)

    def start(self) -> int:
        """Start the thread, and return the broker's port once it serves.

        Raises:
            RocketPollError, OSError: The broker cannot run. All resources are released.
        """
        try:
            self._running = self._thread_pool.submit(self._run)
        except (RuntimeError, MemoryError) as error:
            raise RocketPollError(describe_error(error)) from error
        self._running.add_done_callback(lambda _: self._thread_pool.shutdown())
        try:
            futures: list[Future[Any]] = [self._started, self._running]
            while not wait(futures, _POLL_SECONDS, FIRST_COMPLETED).done:
                self._thread_pool.fail_stuck_jobs()
            if not self._started.done():
                self._running.result()
            return self._started.result()
        except BaseException as error:
            # After an interrupt the broker may still start: it stops as soon as it serves.
            self._started.add_done_callback(lambda _: self._request_stop())
            if not self._running.cancel():
                wait([self._running], _STOP_SECONDS)
            if isinstance(error, (MemoryError, RuntimeError)) and is_transient(error):
                raise RocketPollError(describe_error(error)) from error
            raise

    def stop(self) -> None:
        """Stop the broker cleanly, and return when its thread has ended."""
        self.resume()
        self._request_stop()
        if not wait([self._running], _STOP_SECONDS).done:
            raise RocketPollError(f"the broker did not stop within {_STOP_SECONDS:.0f} s")
        self._running.result()
        self._stopped.result()

    def pause(self) -> None:
        """Block the broker's event loop until `resume`."""
        if self._resumed.is_set():
            self._resumed.clear()
            self._loop.call_soon_threadsafe(self._resumed.wait)

    def resume(self) -> None:
        """Resume an event loop that was blocked by `pause`."""
        self._resumed.set()

    def advance(self, seconds: float, timeout: float) -> None:
        """Move the broker's time forward; return when everything due is done.

        ``timeout`` is in seconds of the machine's time.
        """
        self.run(lambda controller: advance(controller, self._loop, seconds), timeout)

    def run(
        self, operation: Callable[[BrokerController], Coroutine[Any, Any, None]], timeout: float
    ) -> None:
        """Run a function with the broker on its loop, and return when it is done.

        Raises:
            concurrent.futures.TimeoutError: The function is unfinished after ``timeout`` seconds.
        """
        future = self.submit(operation)
        try:
            future.result(timeout)
        except FutureTimeoutError:
            future.cancel()
            raise

    def submit(
        self, operation: Callable[[BrokerController], Coroutine[Any, Any, None]]
    ) -> Future[None]:
        """Queue a function for the broker's loop; it runs as soon as the loop continues.

        Functions run one at a time, in order. A stop cancels those that are unfinished.
        """
        return asyncio.run_coroutine_threadsafe(self._run_serially(operation), self._loop)

    def descriptors(self) -> Iterable[int]:
        """Return the descriptors that a forked child must close, or clients would miss a stop."""
        return self._controller.descriptors()

    async def _run_serially(
        self, operation: Callable[[BrokerController], Coroutine[Any, Any, None]]
    ) -> None:
        if self._stop.is_set():
            raise asyncio.CancelledError
        task = asyncio.current_task()
        if task is None:
            raise AssertionError("a coroutine of this loop is a task")
        self._operations.add(task)
        task.add_done_callback(self._operations.discard)
        async with self._operation_lock:
            await operation(self._controller)

    def _request_stop(self) -> None:
        with suppress(RuntimeError):  # the loop has ended already
            self._loop.call_soon_threadsafe(self._stop.set)

    def _run(self) -> None:
        self._loop: EmbeddedLoop = new_embedded_loop(self._clock_offset, self._network)
        try:
            self._loop.run_until_complete(self._serve())
        except BaseException as error:  # noqa: BLE001  # `_running` passes it on
            (self._stopped if self._started.done() else self._started).set_exception(error)
        else:
            self._stopped.set_result(None)
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        self._started.set_result(await self._controller.start())
        await self._stop.wait()
        # a fault that ends now would open the port again after the broker has closed it
        works = tuple(self._operations)
        for work in works:
            work.cancel()
        await asyncio.gather(*works, return_exceptions=True)
        await self._controller.stop()
