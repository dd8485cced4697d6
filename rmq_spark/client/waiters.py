"""Waiters: who waits for answers on one connection, by opaque, until they are told what came of it.

    add ──> take, when the answer is there
        ├─> give up, when time is over: an answer that comes all the same is passed over
        └─> end, with all others: the connection is no more

Each is told once, by whoever finds out, and that never waits. It knows no socket.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final, Protocol, TypeVar

from rmq_spark.client.errors import ClientError, ClientShutDown, ConnectionClosed, ProtocolError
from rmq_spark.errors import WireError
from rmq_spark.wire.command import RemotingCommand

STRAYS_MAX: Final = 64
"""Answers to nothing that was asked; late ones to what was given up are not counted."""

_GIVEN_UP_MAX: Final = 10_000
_OPAQUE_MAX: Final = 0x7FFFFFFF
_Answer = TypeVar("_Answer")


class Waiter:
    """Who has asked something: it is told what was answered, or why nothing will be."""

    opaque = 0

    def __init__(self, request_code: int, timeout_ms: int, asked_at: float) -> None:
        self.request_code = request_code
        self.timeout_ms = timeout_ms
        self.asked_at = asked_at
        self.deadline = asked_at + timeout_ms / 1000

    def answered(self, command: RemotingCommand) -> None:
        """This came; what it raises it is told by `failed`."""
        raise NotImplementedError

    def failed(self, error: Exception) -> None:
        """Nothing came, or what came was no answer."""
        raise NotImplementedError


class OwnFuture(Future[_Answer]):
    """A future that resolves in the process that made it; in a child of that nobody waits for it in vain."""

    def __init__(self) -> None:
        super().__init__()
        self._process_id = os.getpid()

    def result(self, timeout: float | None = None) -> _Answer:
        """What it was resolved with.

        Raises:
            ClientShutDown: It belongs to the process that this one was forked from.
        """
        self.check_process()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Why it failed; None if it did not.

        Raises:
            ClientShutDown: It belongs to the process that this one was forked from.
        """
        self.check_process()
        return super().exception(timeout)

    def check_process(self) -> None:
        """Refuse to wait for what comes to another process."""
        if self._process_id != os.getpid():
            raise ClientShutDown(
                "this answer comes to the process that asked, from which this one was forked"
            )


class Reader(Protocol):
    """The connection that brings an answer; where no thread reads, whoever waits does."""

    def forget(self, waiter: Waiter) -> None:
        """Pass the answer over, should it come."""

    def read_for(self, answer: Answer[Any], timeout: float | None) -> float | None:
        """Read until it is there, if need be; how long there is still to wait."""


class Answer(OwnFuture[_Answer], Waiter):
    """A future that reads from its connection while somebody waits for it, where nobody else does."""

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
        """Interpret it."""
        value = self._interpret(command)
        if self.set_running_or_notify_cancel():
            self.set_result(value)

    def failed(self, error: Exception) -> None:
        """Have it raised where the answer is asked for."""
        if self.set_running_or_notify_cancel():
            self.set_exception(error)

    def abandon(self) -> None:
        """Nobody wants it any more: nobody is told what comes, and what comes late is passed over."""
        self._reader.forget(self)

    def result(self, timeout: float | None = None) -> _Answer:
        """The answer."""
        self.check_process()
        return super().result(self._reader.read_for(self, timeout))

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Why there is none."""
        self.check_process()
        return super().exception(self._reader.read_for(self, timeout))


class Waiters:
    """See the module. All methods may be called from any thread."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._lock = threading.Lock()
        self._opaque = 0
        self._waiters: dict[int, Waiter] = {}
        self._given_up: dict[int, None] = {}
        self._strays = 0
        self.ended: ClientError | None = None

    def __len__(self) -> int:
        """How many answers are waited for."""
        return len(self._waiters)

    def check_has_not_ended(self) -> None:
        """Refuse what comes after the end."""
        if self.ended is not None:
            raise ConnectionClosed(self._address, str(getattr(self.ended, "why", self.ended)))

    def next_opaque(self) -> int:
        """For what is not answered."""
        with self._lock:
            self.check_has_not_ended()
            self._opaque = (self._opaque + 1) & _OPAQUE_MAX
            return self._opaque

    def add(self, waiter: Waiter) -> int:
        """From now on it is told; by which number its answer will be known."""
        with self._lock:
            self.check_has_not_ended()
            self._opaque = waiter.opaque = opaque = (self._opaque + 1) & _OPAQUE_MAX
            self._waiters[opaque] = waiter
        return opaque

    def remove(self, waiter: Waiter) -> bool:
        """It was not asked after all, and whoever would have asked knows; whether it was still there."""
        with self._lock:
            return self._waiters.pop(waiter.opaque, None) is not None

    def answered(self, command: RemotingCommand) -> None:
        """Tell whom it concerns.

        Raises:
            ProtocolError: There have been too many that concern nobody.
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
        except Exception as error:  # noqa: BLE001  # the one who waits shall see it, not the thread that reads
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
        """Whose time is over."""
        with self._lock:
            return [waiter for waiter in self._waiters.values() if waiter.deadline <= now]

    def give_up(self, waiter: Waiter, error: ClientError) -> bool:
        """It is told that nothing came in time; whether it was still waiting."""
        with self._lock:
            if self._waiters.pop(waiter.opaque, None) is None:
                return False
            self._pass_over(waiter)
        waiter.failed(error)
        return True

    def forget(self, waiter: Waiter) -> None:
        """It is told nothing; an answer that comes all the same is passed over."""
        with self._lock:
            if self._waiters.pop(waiter.opaque, None) is not None:
                self._pass_over(waiter)

    def _pass_over(self, waiter: Waiter) -> None:
        self._given_up[waiter.opaque] = None
        if len(self._given_up) > _GIVEN_UP_MAX:
            del self._given_up[next(iter(self._given_up))]

    def end(self, error: ClientError) -> list[Waiter] | None:
        """There will be no more answers: whom to tell; None if it had ended before."""
        with self._lock:
            if self.ended is not None:
                return None
            self.ended = error
            waiters, self._waiters = self._waiters, {}
        return list(waiters.values())

    def forked(self, error: ClientError) -> None:
        """Forget all without a word: they wait in the parent process, and this one adds none."""
        self._lock = threading.Lock()
        self._waiters = {}
        self.ended = error
