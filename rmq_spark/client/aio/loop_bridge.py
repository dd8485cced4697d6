"""LoopBridge: between an event loop and the threads that work for it.

    thread ──post──▶ gathered ──one wake-up──▶ loop runs all that is posted

    call_in_thread   a blocking call in a thread, concurrently with other calls
    stop_in_thread   the same for calls that stop something, in separate threads, so that calls
                     that wait for a broker do not delay them
    CallQueue        one call at a time, in the order of the requests

Waking a loop costs a write to a socket, and hands the interpreter to the loop's thread. Functions
that are posted before the loop has run share one wake-up. A thread that reads many responses, or
messages for many consumers, wakes the loop after the last one (`deferred_wakeups`), or earlier if
that takes long. A closed loop drops what is posted, because nothing waits for it.

If a coroutine is cancelled before its call has begun, the call is not made. A call that has begun
runs to its end, and its result is dropped. The threads are daemons: a call that hangs does not keep
the program from exiting.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from math import inf
from typing import Final, Generic, TypeVar

from rmq_spark.client.concurrency import deferred_wakeups
from rmq_spark.client.concurrency.fork_hooks import ForkAware
from rmq_spark.client.concurrency.scheduler import Action, ThreadScheduler

_log = logging.getLogger(__name__)

_Result = TypeVar("_Result")

DEFER_SECONDS_MAX: Final = 0.002
"""Seconds after which a loop is woken, even if the reading thread has more results to post."""


class LoopBridge:
    """Runs functions in an event loop. `post` may be called from any thread.

    It needs no lock, because each step is atomic. The loop clears the wake-up flag before it reads
    the posted functions, so that a function posted at that moment is either read or causes another
    wake-up.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.loop = loop
        self._clock = clock
        self._actions: deque[Callable[[], object]] = deque()
        self._is_wakeup_pending = False
        self._deferred_until: float | None = None

    def post(self, action: Callable[[], object]) -> None:
        """Call a function in the loop soon, after all that was posted before."""
        self._actions.append(action)
        if not self._is_wakeup_pending:
            self._wake()

    def post_deferred(self, action: Callable[[], object]) -> None:
        """Post a function from a reading thread, which may post many more before the wake-up."""
        self._actions.append(action)
        if self._is_wakeup_pending:
            return
        until = self._deferred_until
        if until is None:
            self._deferred_until = self._clock() + DEFER_SECONDS_MAX
            if not deferred_wakeups.defer(self._wake):
                self._wake()
        elif self._clock() >= until:
            self._wake()

    def _wake(self) -> None:
        if self._is_wakeup_pending:
            return
        self._is_wakeup_pending = True
        try:
            self.loop.call_soon_threadsafe(self._run)
        except RuntimeError:  # the loop is closed, and stays so
            self._actions.clear()
            self._is_wakeup_pending, self._deferred_until = False, None

    def _run(self) -> None:
        self._is_wakeup_pending, self._deferred_until = False, None
        actions = self._actions
        for _ in range(len(actions)):
            action = actions.popleft()
            try:
                action()
            except Exception:  # noqa: BLE001  # the others are run all the same
                _log.exception("a function that was posted to an event loop failed")

    @property
    def is_closed(self) -> bool:
        """True if the loop was closed: it never runs anything again."""
        return self.loop.is_closed()


class LoopPromise(Generic[_Result]):
    """A result that a thread sets, and a coroutine awaits as ``future``.

    If the future is cancelled, the result is dropped. Make it in the loop; the other methods may be
    called from any thread.
    """

    __slots__ = ("_bridge", "_on_done", "future")

    def __init__(self, bridge: LoopBridge, on_done: Callable[[], object] = lambda: None) -> None:
        """Make a promise; the loop calls ``on_done`` when a result is set, even if cancelled."""
        self._bridge = bridge
        self._on_done = on_done
        self.future: asyncio.Future[_Result] = bridge.loop.create_future()

    def cancelled(self) -> bool:
        """Return whether the future was cancelled."""
        return self.future.cancelled()

    def set_running_or_notify_cancel(self) -> bool:
        """Return True: a result may be set, and is dropped if the future was cancelled."""
        return True

    def set_result(self, result: _Result) -> None:
        """Set the result of the future."""
        self._bridge.post_deferred(partial(self._resolve, result))

    def set_exception(self, error: BaseException) -> None:
        """Make the future fail."""
        self._bridge.post_deferred(partial(self._fail, error))

    def _resolve(self, result: _Result) -> None:
        if not self.future.done():
            self.future.set_result(result)
        self._on_done()

    def _fail(self, error: BaseException) -> None:
        if not self.future.done():
            self.future.set_exception(error)
        self._on_done()


class WakeEvent:
    """An event for coroutines of one loop, which check their condition when woken.

    Use it only in the loop. Waits with a timeout share one timer, set for the first deadline. The
    timer stays set if that wait is woken early, so that most waits need no timer of their own.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: dict[asyncio.Future[None], float] = {}  # the deadline of each wait
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = inf

    async def wait(self, seconds: float | None) -> None:
        """Wait to be woken, for at most ``seconds``; None waits without limit."""
        woken = self._loop.create_future()
        until = inf if seconds is None else self._loop.time() + seconds
        self._waiting[woken] = until
        if until < self._timer_at:
            self._set_timer(until)
        try:
            await woken
        finally:
            self._waiting.pop(woken, None)

    def wake_all(self) -> None:
        """Wake all coroutines that wait."""
        waiting, self._waiting = self._waiting, {}
        for woken in waiting:
            _wake(woken)

    def close(self) -> None:
        """Wake all, and cancel the timer."""
        self._cancel_timer()
        self.wake_all()

    def _set_timer(self, time: float) -> None:
        self._cancel_timer()
        self._timer_at, self._timer = time, self._loop.call_at(time, self._on_timer)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at, self._timer = inf, None

    def _on_timer(self) -> None:
        """Wake expired waits, including the timer's own if the loop calls a little early."""
        now, self._timer_at, self._timer = self._timer_at, inf, None
        now = max(now, self._loop.time())
        for woken, until in self._waiting.items():
            if until <= now:
                _wake(woken)
        following = min([until for until in self._waiting.values() if until > now], default=inf)
        if following < inf:
            self._set_timer(following)


def _wake(woken: asyncio.Future[None]) -> None:
    with suppress(asyncio.InvalidStateError):
        woken.set_result(None)


# ---- Blocking calls of coroutines, in a few threads that the process shares.

CALLS_MAX: Final = 8
"""Most concurrent blocking calls of all clients of the process."""

STOPS_MAX: Final = 8
"""Most producers, consumers and clients of the process that are stopped at a time."""


class _BlockingCallThreads(ForkAware):
    def __init__(self) -> None:
        self._after_fork()
        ForkAware.__init__(self)

    def _after_fork(self) -> None:
        """Start with new threads, because the parent's do not exist in the child."""
        self.calls = ThreadScheduler("rocketpoll calls", CALLS_MAX)
        self.stops = ThreadScheduler("rocketpoll ends", STOPS_MAX)


_threads = _BlockingCallThreads()


def schedule_call(call: Callable[[], object]) -> None:
    """Make a blocking call in one of the threads of `call_in_thread`; any thread may call this."""
    _threads.calls.schedule(call)


def call_in_thread(bridge: LoopBridge, call: Callable[[], _Result]) -> asyncio.Future[_Result]:
    """Make a blocking call in a thread, and return the future of its result.

    The call sees the context variables of its caller, as in `asyncio.to_thread`.
    """
    return _schedule(_threads.calls, bridge, call)


def stop_in_thread(bridge: LoopBridge, call: Callable[[], _Result]) -> asyncio.Future[_Result]:
    """Make a blocking call that stops something, and return the future of its result.

    Other calls do not delay it, even if all of their threads wait for a broker.
    """
    return _schedule(_threads.stops, bridge, call)


def _schedule(
    threads: ThreadScheduler, bridge: LoopBridge, call: Callable[[], _Result]
) -> asyncio.Future[_Result]:
    promise: LoopPromise[_Result] = LoopPromise(bridge)
    context = copy_context()
    threads.schedule(lambda: _run_call(promise, lambda: context.run(call)))
    return promise.future


def _run_call(promise: LoopPromise[_Result], call: Callable[[], _Result]) -> None:
    if promise.cancelled():
        return
    try:
        result = call()
    except StopIteration:  # a coroutine cannot raise it
        promise.set_exception(RuntimeError("the call raised StopIteration"))
    except BaseException as error:  # noqa: BLE001  # the coroutine gets any error
        promise.set_exception(error)
    else:
        promise.set_result(result)


class CallQueue:
    """Makes the calls of one client one at a time, in order."""

    def __init__(self, *, is_stop: bool = False) -> None:
        """Make a queue; with ``is_stop``, its calls run in the threads of `stop_in_thread`."""
        self._is_stop = is_stop
        self._mutex = threading.RLock()
        self._waiting: deque[Action] = deque()
        self._is_running = False

    def call(self, bridge: LoopBridge, call: Callable[[], _Result]) -> asyncio.Future[_Result]:
        """Make a blocking call after the earlier ones, and return the future of its result."""
        promise: LoopPromise[_Result] = LoopPromise(bridge)
        with self._mutex:
            self._waiting.append(lambda: _run_call(promise, call))
            if self._is_running:
                return promise.future
            self._is_running = True
        self._schedule_next()
        return promise.future

    def _schedule_next(self) -> None:
        (_threads.stops if self._is_stop else _threads.calls).schedule(self._run_next)

    def _run_next(self) -> None:
        with self._mutex:
            if not self._waiting:
                self._is_running = False
                return
            make = self._waiting.popleft()
        make()
        self._schedule_next()
