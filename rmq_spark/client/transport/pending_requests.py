"""PendingRequests: the requests of one connection that await responses, by opaque.

    add ──> resolve, when the response arrives
        ├─> expire, at the deadline: a later response is ignored
        └─> close, with all others: the connection has ended

Each request is resolved or failed once, by the thread that notices, which never waits.
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

from rmq_spark.client.concurrency.locks import condition_mutex, mutex, wait_slice
from rmq_spark.client.errors import ClientError, ClientShutDown, ConnectionClosed, ProtocolError
from rmq_spark.errors import WireError
from rmq_spark.wire.command import RemotingCommand

UNSOLICITED_MAX: Final = 64
"""Most answers to nothing that was asked; late answers are not counted."""

_EXPIRED_MAX: Final = 10_000
_OPAQUE_MAX: Final = 0x7FFFFFFF
_Answer = TypeVar("_Answer")
_Outcome = TypeVar("_Outcome")


class RequestBuffer(Protocol):
    """The one who keeps gathered requests until they are written."""

    def cancel(self, opaque: int, on_released: Callable[[], object] | None = None) -> None:
        """Write a request no more; say when none of its bytes is kept."""


class PendingRequest:
    """A caller that has sent a request: it is told the answer, or why there will be none."""

    opaque = 0
    buffer: RequestBuffer | None = None
    """The one who may keep bytes of the request, also behind its end."""

    call_soon: Callable[[Callable[[], object]], object] | None = None
    """Has a function called soon by the thread that asks, if that can write requests then."""

    def __init__(self, request_code: int, timeout_ms: int, started_at: float) -> None:
        self.request_code = request_code
        self.timeout_ms = timeout_ms
        self.started_at = started_at
        self.deadline = started_at + timeout_ms / 1000

    def on_response(self, response: RemotingCommand) -> None:
        """Take the answer; an exception raised here is passed to `failed`."""
        raise NotImplementedError

    def on_error(self, error: Exception) -> None:
        """Take the error: there is no answer, or it cannot be used."""
        raise NotImplementedError

    def cancel_write(self, action: Callable[[], object]) -> None:
        """Have no more of the request written, and call an action when none of it is kept."""
        if self.buffer is None:
            action()
        else:
            self.buffer.cancel(self.opaque, action)


class ForkSafeFuture(Future[_Answer]):
    """A future of the process that made it; a forked child gets an error instead of a vain wait."""

    def __init__(self) -> None:
        super().__init__()
        self._condition = (
            condition_mutex()
        )  # a signal's exception must not stop who tells the result
        self._process_id = os.getpid()

    def result(self, timeout: float | None = None) -> _Answer:
        """Return the result, or raise the error, waiting up to ``timeout`` seconds.

        Raises:
            ClientShutDown: The future belongs to the process that this one was forked from.
        """
        self.check_process()
        return self._wait_in_slices(timeout, super().result)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the error, or None if there is none, waiting up to ``timeout`` seconds.

        Raises:
            ClientShutDown: The future belongs to the process that this one was forked from.
        """
        self.check_process()
        return self._wait_in_slices(timeout, super().exception)

    def _wait_in_slices(self, timeout: float | None, wait: Callable[[float], _Outcome]) -> _Outcome:
        """Return what ``wait`` does, asking again and again; see `SIGNAL_CHECK_SECONDS`."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            try:
                return wait(wait_slice(deadline))
            except FutureTimeout:  # noqa: PERF203  # a second has gone by
                self.check_process()  # a signal's handler may have forked meanwhile
                if self.done():
                    return wait(0)
                if deadline is not None and time.monotonic() >= deadline:
                    raise

    def check_process(self) -> None:
        """Raise `ClientShutDown` if the result comes to another process."""
        if self._process_id != os.getpid():
            raise wrong_process_error()


class ResponseSource(Protocol):
    """The connection that brings an answer; where no thread reads, the waiting thread does."""

    def discard(self, pending: PendingRequest) -> None:
        """Drop the answer, should it come."""

    def read_until(self, response: ResponseFuture[Any], timeout: float | None) -> float | None:
        """Read until the answer is there, if need be; return the seconds still to wait."""


class ResponseFuture(ForkSafeFuture[_Answer], PendingRequest):
    """A future that reads from its connection while it is waited for, where no thread does."""

    def __init__(
        self,
        source: ResponseSource,
        request_code: int,
        timeout_ms: int,
        started_at: float,
        interpret: Callable[[RemotingCommand], _Answer],
    ) -> None:
        ForkSafeFuture.__init__(self)
        PendingRequest.__init__(self, request_code, timeout_ms, started_at)
        self._source = source
        self._interpret = interpret

    def on_response(self, command: RemotingCommand) -> None:
        """Interpret the answer, and resolve the future."""
        value = self._interpret(command)
        if self.set_running_or_notify_cancel():
            self.set_result(value)

    def on_error(self, error: Exception) -> None:
        """Let the future fail, also where there was no memory to resolve it otherwise."""
        if self.running() or self.set_running_or_notify_cancel():
            self.set_exception(error)

    def abandon(self) -> None:
        """Want the answer no more: nobody is told, and a late answer is dropped."""
        self._source.discard(self)

    def result(self, timeout: float | None = None) -> _Answer:
        """Return the interpreted answer, or raise the error, waiting up to ``timeout`` seconds."""
        self.check_process()
        return super().result(self._source.read_until(self, timeout))

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the error, or None if there is none, waiting up to ``timeout`` seconds."""
        self.check_process()
        return super().exception(self._source.read_until(self, timeout))


class PendingRequests:
    """The waiters of one connection, by opaque. All methods may be called from any thread."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._lock = mutex()
        self._opaque = 0
        self._pending: dict[int, PendingRequest] = {}
        self._expired_opaques: dict[int, None] = {}
        self._unsolicited_count = 0
        self.next_deadline = inf
        """When the time of a waiter may be over; of none it is before."""
        self.close_error: ClientError | None = None

    def __len__(self) -> int:
        """Return the number of answers that are waited for."""
        return len(self._pending)

    def check_open(self) -> None:
        """Raise `ConnectionClosed` if the connection has ended, `ClientShutDown` behind a fork."""
        if isinstance(self.close_error, ClientShutDown):
            raise self.close_error
        if self.close_error is not None:
            raise ConnectionClosed(
                self._address, str(getattr(self.close_error, "why", self.close_error))
            )

    def next_opaque(self) -> int:
        """Return an opaque for a request that is not answered."""
        with self._lock:
            self.check_open()
            self._opaque = (self._opaque + 1) & _OPAQUE_MAX
            return self._opaque

    def add(self, pending: PendingRequest) -> int:
        """Add a waiter, and return the opaque by which its answer will be known."""
        with self._lock:
            self.check_open()
            self._opaque = pending.opaque = opaque = (self._opaque + 1) & _OPAQUE_MAX
            self._pending[opaque] = pending
            self.next_deadline = min(self.next_deadline, pending.deadline)
        return opaque

    def remove(self, pending: PendingRequest) -> bool:
        """Remove a waiter whose request was not sent; return whether it was still there."""
        with self._lock:
            return self._pending.pop(pending.opaque, None) is not None

    def is_pending(self, pending: PendingRequest) -> bool:
        """Return whether a waiter is still to be told."""
        return pending.opaque in self._pending

    def resolve(self, response: RemotingCommand) -> None:
        """Tell the waiter that an answer is for.

        Raises:
            ProtocolError: There were too many answers that are for no waiter.
        """
        with self._lock:
            waiter = self._pending.pop(response.opaque, None)
            if waiter is None:
                self._count_unsolicited(response.opaque)
                return
        try:
            waiter.on_response(response)
        except WireError as error:
            waiter.on_error(ProtocolError(self._address, str(error)))
        except Exception as error:  # noqa: BLE001  # for the waiter, not for the thread that reads
            waiter.on_error(error)

    def _count_unsolicited(self, opaque: int) -> None:
        if opaque in self._expired_opaques:
            del self._expired_opaques[opaque]
            return
        self._unsolicited_count += 1
        if self._unsolicited_count > UNSOLICITED_MAX:
            why = f"{self._unsolicited_count} answers to what was not asked, the last to {opaque}"
            raise ProtocolError(self._address, why)

    def overdue(self, now: float) -> list[PendingRequest]:
        """Return the waiters whose time is over."""
        with self._lock:
            waiters = self._pending.values()
            self.next_deadline = min(
                (each.deadline for each in waiters if each.deadline > now), default=inf
            )
            return [waiter for waiter in waiters if waiter.deadline <= now]

    def expire(self, pending: PendingRequest, error: ClientError) -> bool:
        """Tell a waiter that nothing came in time; return whether it was still waiting."""
        with self._lock:
            if pending.opaque not in self._pending:
                return False
            self._ignore_late_response(
                pending
            )  # first: if there is no memory for that, it waits on
            del self._pending[pending.opaque]
        try:
            pending.on_error(error)
        except MemoryError:  # there may be some by now
            pending.on_error(error)
        return True

    def discard(self, pending: PendingRequest) -> None:
        """Tell a waiter nothing; an answer that comes all the same is dropped."""
        with self._lock:
            if self._pending.pop(pending.opaque, None) is not None:
                self._ignore_late_response(pending)

    def _ignore_late_response(self, pending: PendingRequest) -> None:
        self._expired_opaques[pending.opaque] = None
        if len(self._expired_opaques) > _EXPIRED_MAX:
            del self._expired_opaques[next(iter(self._expired_opaques))]

    def close(self, error: ClientError) -> list[PendingRequest] | None:
        """End, and return the waiters to tell; None if the end had come before."""
        with self._lock:
            if self.close_error is not None:
                return None
            waiters = list(self._pending.values())
            self.close_error, self._pending = error, {}
        return waiters

    def after_fork(self) -> None:
        """Forget all waiters without a word: they wait in the parent process."""
        self._lock = mutex()
        self._pending = {}
        self.close_error = wrong_process_error()


def wrong_process_error() -> ClientShutDown:
    """Return the error of a call that a signal's handler forked in; nobody tries it again."""
    return ClientShutDown(
        "this answer comes to the process that asked, from which this one was forked"
    )


def fail_each(requests: Iterable[PendingRequest], error: ClientError) -> None:
    """Tell waiters that there is no answer, each by an error of its own if there is memory."""
    for waiter in requests:
        try:
            waiter.on_error(type(error)(*error.args))
        except Exception:  # noqa: BLE001, PERF203  # the others have to be told as well
            with suppress(Exception):
                waiter.on_error(error)
