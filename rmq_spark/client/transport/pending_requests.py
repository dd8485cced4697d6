"""Waiters: callers that wait for answers on one connection, by opaque, until told the outcome.

    add ──> take, when the answer is there
        ├─> give up, when time is over: an answer that comes all the same is passed over
        └─> end, with all others: the connection is no more

Each is told once, by the thread that finds out, and that never waits. This module knows no socket.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from math import inf
from typing import Any, Final, Protocol, TypeVar

from rmq_spark.client.concurrency.locks import mutex, slice_of, waited_mutex
from rmq_spark.client.errors import ClientError, ClientShutDown, ConnectionClosed, ProtocolError
from rmq_spark.errors import WireError
from rmq_spark.wire.command import RemotingCommand

STRAYS_MAX: Final = 64
"""Most answers to nothing that was asked; late answers are not counted."""

_GIVEN_UP_MAX: Final = 10_000
_OPAQUE_MAX: Final = 0x7FFFFFFF
_Answer = TypeVar("_Answer")
_Outcome = TypeVar("_Outcome")


class Keeper(Protocol):
    """The one who keeps gathered requests until they are written."""

    def withdraw(self, opaque: int, released: Callable[[], object] | None = None) -> None:
        """Write a request no more; say when none of its bytes is kept."""


class Waiter:
    """A caller that has sent a request: it is told the answer, or why there will be none."""

    opaque = 0
    keeper: Keeper | None = None
    """The one who may keep bytes of the request, also behind its end."""

    soon: Callable[[Callable[[], object]], object] | None = None
    """Has a function called soon by the thread that asks, if that can write requests then."""

    def __init__(self, request_code: int, timeout_ms: int, asked_at: float) -> None:
        self.request_code = request_code
        self.timeout_ms = timeout_ms
        self.asked_at = asked_at
        self.deadline = asked_at + timeout_ms / 1000

    def answered(self, command: RemotingCommand) -> None:
        """Take the answer; an exception raised here is passed to `failed`."""
        raise NotImplementedError

    def failed(self, error: Exception) -> None:
        """Take the error: there is no answer, or it cannot be used."""
        raise NotImplementedError

    def when_released(self, action: Callable[[], object]) -> None:
        """Have no more of the request written, and call an action when none of it is kept."""
        if self.keeper is None:
            action()
        else:
            self.keeper.withdraw(self.opaque, action)


class OwnFuture(Future[_Answer]):
    """A future of the process that made it; a forked child gets an error instead of a vain wait."""

    def __init__(self) -> None:
        super().__init__()
        self._condition = waited_mutex()  # a signal's exception must not stop who tells the result
        self._process_id = os.getpid()

    def result(self, timeout: float | None = None) -> _Answer:
        """Return the result, or raise the error, waiting up to ``timeout`` seconds.

        Raises:
            ClientShutDown: The future belongs to the process that this one was forked from.
        """
        self.check_process()
        return self._waited(timeout, super().result)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the error, or None if there is none, waiting up to ``timeout`` seconds.

        Raises:
            ClientShutDown: The future belongs to the process that this one was forked from.
        """
        self.check_process()
        return self._waited(timeout, super().exception)

    def _waited(self, timeout: float | None, ask: Callable[[float], _Outcome]) -> _Outcome:
        """Return what ``ask`` does, asking again and again; see `SIGNALS_SECONDS`."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            try:
                return ask(slice_of(deadline))
            except FutureTimeout:  # noqa: PERF203  # a second has gone by
                self.check_process()  # a signal's handler may have forked meanwhile
                if self.done():
                    return ask(0)
                if deadline is not None and time.monotonic() >= deadline:
                    raise

    def check_process(self) -> None:
        """Raise `ClientShutDown` if the result comes to another process."""
        if self._process_id != os.getpid():
            raise of_another_process()


class Reader(Protocol):
    """The connection that brings an answer; where no thread reads, the waiting thread does."""

    def forget(self, waiter: Waiter) -> None:
        """Drop the answer, should it come."""

    def read_for(self, answer: Answer[Any], timeout: float | None) -> float | None:
        """Read until the answer is there, if need be; return the seconds still to wait."""


class Answer(OwnFuture[_Answer], Waiter):
    """A future that reads from its connection while it is waited for, where no thread does."""

    def __init__(
        self,
        reader: Reader,
        request_code: int,
        timeout_ms: int,
        asked_at: float,
        interpret: Callable[[RemotingCommand], _Answer],
    ) -> None:
        OwnFuture.__init__(self)
        Waiter.__init__(self, request_code, timeout_ms, asked_at)
        self._reader = reader
        self._interpret = interpret

    def answered(self, command: RemotingCommand) -> None:
        """Interpret the answer, and resolve the future."""
        value = self._interpret(command)
        if self.set_running_or_notify_cancel():
            self.set_result(value)

    def failed(self, error: Exception) -> None:
        """Let the future fail, also where there was no memory to resolve it otherwise."""
        if self.running() or self.set_running_or_notify_cancel():
            self.set_exception(error)

    def abandon(self) -> None:
        """Want the answer no more: nobody is told, and a late answer is dropped."""
        self._reader.forget(self)

    def result(self, timeout: float | None = None) -> _Answer:
        """Return the interpreted answer, or raise the error, waiting up to ``timeout`` seconds."""
        self.check_process()
        return super().result(self._reader.read_for(self, timeout))

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the error, or None if there is none, waiting up to ``timeout`` seconds."""
        self.check_process()
        return super().exception(self._reader.read_for(self, timeout))


class Waiters:
    """The waiters of one connection, by opaque. All methods may be called from any thread."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._lock = mutex()
        self._opaque = 0
        self._waiters: dict[int, Waiter] = {}
        self._given_up: dict[int, None] = {}
        self._strays = 0
        self.due_at = inf
        """When the time of a waiter may be over; of none it is before."""
        self.ended: ClientError | None = None

    def __len__(self) -> int:
        """Return the number of answers that are waited for."""
        return len(self._waiters)

    def check_has_not_ended(self) -> None:
        """Raise `ConnectionClosed` if the connection has ended, `ClientShutDown` behind a fork."""
        if isinstance(self.ended, ClientShutDown):
            raise self.ended
        if self.ended is not None:
            raise ConnectionClosed(self._address, str(getattr(self.ended, "why", self.ended)))

    def next_opaque(self) -> int:
        """Return an opaque for a request that is not answered."""
        with self._lock:
            self.check_has_not_ended()
            self._opaque = (self._opaque + 1) & _OPAQUE_MAX
            return self._opaque

    def add(self, waiter: Waiter) -> int:
        """Add a waiter, and return the opaque by which its answer will be known."""
        with self._lock:
            self.check_has_not_ended()
            self._opaque = waiter.opaque = opaque = (self._opaque + 1) & _OPAQUE_MAX
            self._waiters[opaque] = waiter
            self.due_at = min(self.due_at, waiter.deadline)
        return opaque

    def remove(self, waiter: Waiter) -> bool:
        """Remove a waiter whose request was not sent; return whether it was still there."""
        with self._lock:
            return self._waiters.pop(waiter.opaque, None) is not None

    def is_waiting(self, waiter: Waiter) -> bool:
        """Return whether a waiter is still to be told."""
        return waiter.opaque in self._waiters

    def answered(self, command: RemotingCommand) -> None:
        """Tell the waiter that an answer is for.

        Raises:
            ProtocolError: There were too many answers that are for no waiter.
        """
        with self._lock:
            waiter = self._waiters.pop(command.opaque, None)
            if waiter is None:
                self._count_stray(command.opaque)
                return
        try:
            waiter.answered(command)
        except WireError as error:
            waiter.failed(ProtocolError(self._address, str(error)))
        except Exception as error:  # noqa: BLE001  # for the waiter, not for the thread that reads
            waiter.failed(error)

    def _count_stray(self, opaque: int) -> None:
        if opaque in self._given_up:
            del self._given_up[opaque]
            return
        self._strays += 1
        if self._strays > STRAYS_MAX:
            why = f"{self._strays} answers to what was not asked, the last to {opaque}"
            raise ProtocolError(self._address, why)

    def late(self, now: float) -> list[Waiter]:
        """Return the waiters whose time is over."""
        with self._lock:
            waiters = self._waiters.values()
            self.due_at = min(
                (each.deadline for each in waiters if each.deadline > now), default=inf
            )
            return [waiter for waiter in waiters if waiter.deadline <= now]

    def give_up(self, waiter: Waiter, error: ClientError) -> bool:
        """Tell a waiter that nothing came in time; return whether it was still waiting."""
        with self._lock:
            if waiter.opaque not in self._waiters:
                return False
            self._pass_over(waiter)  # first: if there is no memory for that, it waits on
            del self._waiters[waiter.opaque]
        try:
            waiter.failed(error)
        except MemoryError:  # there may be some by now
            waiter.failed(error)
        return True

    def forget(self, waiter: Waiter) -> None:
        """Tell a waiter nothing; an answer that comes all the same is dropped."""
        with self._lock:
            if self._waiters.pop(waiter.opaque, None) is not None:
                self._pass_over(waiter)

    def _pass_over(self, waiter: Waiter) -> None:
        self._given_up[waiter.opaque] = None
        if len(self._given_up) > _GIVEN_UP_MAX:
            del self._given_up[next(iter(self._given_up))]

    def end(self, error: ClientError) -> list[Waiter] | None:
        """End, and return the waiters to tell; None if the end had come before."""
        with self._lock:
            if self.ended is not None:
                return None
            waiters = list(self._waiters.values())
            self.ended, self._waiters = error, {}
        return waiters

    def forked(self) -> None:
        """Forget all waiters without a word: they wait in the parent process."""
        self._lock = mutex()
        self._waiters = {}
        self.ended = of_another_process()


def of_another_process() -> ClientShutDown:
    """Return the error of a call that a signal's handler forked in; nobody tries it again."""
    return ClientShutDown(
        "this answer comes to the process that asked, from which this one was forked"
    )


def tell_each(waiters: Iterable[Waiter], error: ClientError) -> None:
    """Tell waiters that there is no answer, each by an error of its own if there is memory."""
    for waiter in waiters:
        try:
            waiter.failed(type(error)(*error.args))
        except Exception:  # noqa: BLE001, PERF203  # the others have to be told as well
            with suppress(Exception):
                waiter.failed(error)
