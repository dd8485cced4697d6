"""Blocking calls: runs blocking calls for coroutines in a few threads that the process shares.

    call_in_thread   at once, concurrently with other calls
    stop_in_thread   the same for calls that stop something, in threads of their own, so that calls
                     that wait for a broker do not delay them
    CallQueue        one call at a time, in the order of the requests

If a coroutine is cancelled before its call has begun, the call is not made. A call that has begun
runs to its end, and its result is dropped. The threads are daemons: a call that hangs does not keep
the program from exiting.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from typing import Final, TypeVar

from rmq_spark.client.aio.loop_bridge import LoopBridge, LoopPromise
from rmq_spark.client.concurrency.fork_hooks import ForkAware
from rmq_spark.client.concurrency.scheduler import Action, ThreadScheduler

CALLS_MAX: Final = 8
"""Most blocking calls that are under way at once, of all clients of the process."""

_Result = TypeVar("_Result")


STOPS_MAX: Final = 8
"""Most producers, consumers and clients of the process that are ended at once."""


class _BlockingCallThreads(ForkAware):
    """The threads of this process; a child process gets its own."""

    def __init__(self) -> None:
        self._after_fork()
        ForkAware.__init__(self)

    def _after_fork(self) -> None:
        """Begin with new threads: those of the parent are not here."""
        self.calls = ThreadScheduler("rocketpoll calls", CALLS_MAX)
        self.stops = ThreadScheduler("rocketpoll ends", STOPS_MAX)


_threads = _BlockingCallThreads()


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
    except StopIteration:  # which cannot be raised in a coroutine
        promise.set_exception(RuntimeError("the call has raised StopIteration"))
    except BaseException as error:  # noqa: BLE001  # whatever it raises is for the coroutine
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
