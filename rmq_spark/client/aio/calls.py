"""Calls: blocking calls of coroutines, in a few threads that the whole process shares.

    in_thread    at once, beside others
    ending       the same for what ends something: in threads of its own, so that no call that
                 waits for a broker holds it up
    Turns        one after the other, in the order in which they were asked for

A call whose coroutine is cancelled before it has begun is not made. One that has begun goes on, and
its result is dropped. The threads are daemons: a call that hangs keeps no program from ending.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from typing import Final, TypeVar

from rmq_spark.client.aio.loop_bridge import LoopBridge, Promise
from rmq_spark.client.concurrency.fork_aware import ProcessBound
from rmq_spark.client.concurrency.locks import reentrant_mutex
from rmq_spark.client.concurrency.scheduler import Action, ScheduledTasks

CALLS_MAX: Final = 8
"""Most blocking calls that are under way at once, of all clients of the process."""

_Result = TypeVar("_Result")


ENDS_MAX: Final = 8
"""Most producers, consumers and clients of the process that are ended at once."""


class _Threads(ProcessBound):
    """The threads of this process; a child process gets its own."""

    def __init__(self) -> None:
        self._forked()
        ProcessBound.__init__(self)

    def _forked(self) -> None:
        """Begin with new threads: those of the parent are not here."""
        self.calls = ScheduledTasks("rocketpoll calls", CALLS_MAX)
        self.ends = ScheduledTasks("rocketpoll ends", ENDS_MAX)


_threads = _Threads()


def in_thread(bridge: LoopBridge, call: Callable[[], _Result]) -> asyncio.Future[_Result]:
    """Make a blocking call in a thread, and return the future of its result.

    The call sees the context variables of its caller, as in `asyncio.to_thread`.
    """
    return _scheduled(_threads.calls, bridge, call)


def ending(bridge: LoopBridge, call: Callable[[], _Result]) -> asyncio.Future[_Result]:
    """Make a blocking call that ends something, and return the future of its result.

    It waits for no calls, of which all that may be under way at once may wait for a broker.
    """
    return _scheduled(_threads.ends, bridge, call)


def _scheduled(
    threads: ScheduledTasks, bridge: LoopBridge, call: Callable[[], _Result]
) -> asyncio.Future[_Result]:
    promise: Promise[_Result] = Promise(bridge)
    context = copy_context()
    threads.schedule(lambda: _make(promise, lambda: context.run(call)))
    return promise.future


def _make(promise: Promise[_Result], call: Callable[[], _Result]) -> None:
    if promise.cancelled():
        return
    try:
        result = call()
    except BaseException as error:  # noqa: BLE001  # whatever it raises is for the coroutine
        promise.set_exception(_raisable(error))
    else:
        promise.set_result(result)


def _raisable(error: BaseException) -> BaseException:
    """Return the error; StopIteration cannot be raised in a coroutine, and is told by another."""
    if isinstance(error, StopIteration):
        return RuntimeError("the call has raised StopIteration")
    return error


class Turns:
    """Calls of one client that are made one at a time, in order."""

    def __init__(self, *, are_ends: bool = False) -> None:
        """Make it; ``are_ends`` says that they begin and end something, as for `ending`."""
        self._are_ends = are_ends
        self._mutex = reentrant_mutex()
        self._waiting: deque[Action] = deque()
        self._is_under_way = False

    def call(self, bridge: LoopBridge, call: Callable[[], _Result]) -> asyncio.Future[_Result]:
        """Make a blocking call behind those before, and return the future of its result."""
        promise: Promise[_Result] = Promise(bridge)
        with self._mutex:
            self._waiting.append(lambda: _make(promise, call))
            if self._is_under_way:
                return promise.future
            self._is_under_way = True
        self._schedule_next()
        return promise.future

    def _schedule_next(self) -> None:
        (_threads.ends if self._are_ends else _threads.calls).schedule(self._next)

    def _next(self) -> None:
        with self._mutex:
            if not self._waiting:
                self._is_under_way = False
                return
            make = self._waiting.popleft()
        make()
        self._schedule_next()
