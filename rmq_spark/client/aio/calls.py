"""Calls: blocking calls of coroutines, in a few threads that the whole process shares.

    in_thread    at once, beside others
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
from rmq_spark.client.threads.mutex import reentrant_mutex
from rmq_spark.client.threads.process_bound import ProcessBound
from rmq_spark.client.threads.scheduled_tasks import Action, ScheduledTasks

CALLS_MAX: Final = 8
"""Most blocking calls that are under way at once, of all clients of the process."""

_Result = TypeVar("_Result")


class _Threads(ProcessBound):
    """The threads of this process; a child process gets its own."""

    def __init__(self) -> None:
        self.tasks = ScheduledTasks("rocketpoll calls", CALLS_MAX)
        ProcessBound.__init__(self)

    def _forked(self) -> None:
        """Begin with new threads: those of the parent are not here."""
        self.tasks = ScheduledTasks("rocketpoll calls", CALLS_MAX)


_threads = _Threads()


def in_thread(bridge: LoopBridge, call: Callable[[], _Result]) -> asyncio.Future[_Result]:
    """Make a blocking call in a thread, and return the future of its result.

    The call sees the context variables of its caller, as in `asyncio.to_thread`.
    """
    promise: Promise[_Result] = Promise(bridge)
    context = copy_context()
    _threads.tasks.schedule(lambda: _make(promise, lambda: context.run(call)))
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

    def __init__(self) -> None:
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
        _threads.tasks.schedule(self._next)
        return promise.future

    def _next(self) -> None:
        with self._mutex:
            if not self._waiting:
                self._is_under_way = False
                return
            make = self._waiting.popleft()
        make()
        _threads.tasks.schedule(self._next)
