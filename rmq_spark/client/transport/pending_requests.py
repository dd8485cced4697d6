"""PendingRequests: the requests of one connection that await responses, by opaque.

    add ──> resolve, when the response arrives
        ├─> expire, at the deadline: a later response is ignored
        └─> close, with all others: the connection has ended

Each request is resolved or failed once, by the thread that notices, which never waits.
"""

from __future__ import annotations

import _thread
import os
import threading
import time
from _thread import allocate_lock, get_ident
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from math import inf
from typing import Any, Final, Protocol, TypeVar

from rmq_spark.client.concurrency.threads import SIGNAL_CHECK_SECONDS
from rmq_spark.client.errors import ClientError, ClientShutDown, ConnectionClosed, ProtocolError
from rmq_spark.client.transport.frame_writer import FrameWriter
from rmq_spark.errors import WireError
from rmq_spark.wire.remoting.command import RemotingCommand

UNSOLICITED_MAX: Final = 64
"""Most unsolicited responses before the connection is closed; late responses do not count."""

_EXPIRED_MAX: Final = 10_000
_OPAQUE_MAX: Final = 0x7FFFFFFF
_Result = TypeVar("_Result")
_Outcome = TypeVar("_Outcome")


class PendingRequest:
    """A request that was sent: it gets the response, or the error instead of one."""

    opaque = 0
    buffer: FrameWriter | None = None
    """The writer that may keep bytes of the request, also after its end."""

    call_soon: Callable[[Callable[[], object]], object] | None = None
    """Makes the requesting thread call a function soon, if it can write requests then."""

    def __init__(self, request_code: int, timeout_ms: int, started_at: float) -> None:
        self.request_code = request_code
        self.timeout_ms = timeout_ms
        self.started_at = started_at
        self.deadline = started_at + timeout_ms / 1000

    def on_response(self, response: RemotingCommand) -> None:
        """Receive the response; an exception raised here is passed to `on_error`."""
        raise NotImplementedError

    def on_error(self, error: Exception) -> None:
        """Receive the error: there is no response, or it cannot be used."""
        raise NotImplementedError

    def cancel_write(self, action: Callable[[], object]) -> None:
        """Stop writing the request, and call an action when none of its bytes is kept."""
        if self.buffer is None:
            action()
        else:
            self.buffer.cancel(self.opaque, action)


_python_rlock: Final = threading.RLock
_RLock: Any = type(threading.RLock())


class _FutureCondition(_RLock):  # type: ignore[misc]  # the class of a builtin
    """The condition of a future, whose with statement runs no Python code.

    A future is entered about four times; with `threading.Condition` a `send_async` takes 3 µs more,
    a tenth of its time.
    """

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[Any] = []

    def wait(self, timeout: float | None = None) -> bool:
        seconds = -1 if timeout is None else max(timeout, 0)
        notified = allocate_lock()
        notified.acquire()
        self._waiting.append(notified)
        try:
            self._release_save()
            return notified.acquire(timeout=seconds)
        finally:
            self._acquire_restore((1, get_ident()))
            if notified in self._waiting:
                self._waiting.remove(notified)

    def notify_all(self) -> None:
        while self._waiting:
            self._waiting.pop().release()


def _future_condition() -> Any:
    if _RLock is _thread.RLock and threading.RLock is _python_rlock:
        return _FutureCondition()
    return threading.Condition()  # the threads are gevent's, or simulated


class ForkSafeFuture(Future[_Result]):
    """A future of the process that made it; in a forked child it raises an error at once."""

    def __init__(self) -> None:
        super().__init__()
        self._condition = _future_condition()
        self._process_id = os.getpid()

    def result(self, timeout: float | None = None) -> _Result:
        """Return the result, or raise the error, waiting up to ``timeout`` seconds."""
        return self._wait_in_slices(timeout, super().result)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the error, or None if there is none, waiting up to ``timeout`` seconds."""
        return self._wait_in_slices(timeout, super().exception)

    def _before_wait(self, timeout: float | None) -> float | None:
        """Return the seconds to wait; a subclass may first read from the connection itself."""
        return timeout

    def _wait_in_slices(self, timeout: float | None, wait: Callable[[float], _Outcome]) -> _Outcome:
        """Return the result of ``wait``, called for `SIGNAL_CHECK_SECONDS` at a time."""
        self.check_process()
        timeout = self._before_wait(timeout)
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = SIGNAL_CHECK_SECONDS if deadline is None else deadline - time.monotonic()
            try:
                return wait(min(left, SIGNAL_CHECK_SECONDS))
            except FutureTimeout:  # a second has gone by
                self.check_process()  # a signal's handler may have forked meanwhile
                if self.done():
                    return wait(0)
                if deadline is not None and time.monotonic() >= deadline:
                    raise

    def check_process(self) -> None:
        """Raise `ClientShutDown` if the future belongs to another process."""
        if self._process_id != os.getpid():
            raise wrong_process_error()


class ResponseSource(Protocol):
    """The connection of a response; if no thread reads from it, the waiting thread does."""

    def discard(self, pending: PendingRequest) -> None:
        """Ignore the response if it arrives."""

    def read_until(self, response: ResponseFuture[Any], timeout: float | None) -> float | None:
        """Read until the response arrives, if necessary; return the seconds left to wait."""


class ResponseFuture(ForkSafeFuture[_Result], PendingRequest):
    """A future whose waiting thread reads from the connection, if no other thread does."""

    def __init__(
        self,
        source: ResponseSource,
        request_code: int,
        timeout_ms: int,
        started_at: float,
        interpret: Callable[[RemotingCommand], _Result],
    ) -> None:
        ForkSafeFuture.__init__(self)
        PendingRequest.__init__(self, request_code, timeout_ms, started_at)
        self._source = source
        self._interpret = interpret

    def on_response(self, command: RemotingCommand) -> None:
        """Interpret the response, and resolve the future."""
        value = self._interpret(command)
        if self.set_running_or_notify_cancel():
            self.set_result(value)

    def on_error(self, error: Exception) -> None:
        """Make the future fail, even if there was no memory to resolve it."""
        if self.running() or self.set_running_or_notify_cancel():
            self.set_exception(error)

    def abandon(self) -> None:
        """Discard the request: no callback runs, and a late response is ignored."""
        self._source.discard(self)

    def _before_wait(self, timeout: float | None) -> float | None:
        return self._source.read_until(self, timeout)


class PendingRequests:
    """The pending requests of one connection, by opaque. All methods are thread-safe."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._lock = threading.Lock()
        self._opaque = 0
        self._pending: dict[int, PendingRequest] = {}
        self._expired_opaques: dict[int, None] = {}
        self._unsolicited_count = 0
        self.next_deadline = inf
        """The earliest time at which a request may expire."""
        self.close_error: ClientError | None = None

    def __len__(self) -> int:
        return len(self._pending)

    def check_open(self) -> None:
        """Raise `ConnectionClosed` if the connection has ended, `ClientShutDown` after a fork."""
        if isinstance(self.close_error, ClientShutDown):
            raise self.close_error
        if self.close_error is not None:
            raise ConnectionClosed(
                self._address, str(getattr(self.close_error, "why", self.close_error))
            )

    def next_opaque(self) -> int:
        """Return an opaque for a one-way request."""
        with self._lock:
            self.check_open()
            self._opaque = (self._opaque + 1) & _OPAQUE_MAX
            return self._opaque

    def add(self, pending: PendingRequest) -> int:
        """Add a request, and return the opaque that its response will have."""
        with self._lock:
            self.check_open()
            self._opaque = pending.opaque = opaque = (self._opaque + 1) & _OPAQUE_MAX
            self._pending[opaque] = pending
            self.next_deadline = min(self.next_deadline, pending.deadline)
        return opaque

    def remove(self, pending: PendingRequest) -> bool:
        """Remove a request that was not sent; return whether it was still pending."""
        with self._lock:
            return self._pending.pop(pending.opaque, None) is not None

    def is_pending(self, pending: PendingRequest) -> bool:
        """Return whether a request is still pending."""
        return pending.opaque in self._pending

    def resolve(self, response: RemotingCommand) -> None:
        """Pass a response to its request."""
        with self._lock:
            waiter = self._pending.pop(response.opaque, None)
            if waiter is None:
                if self._expired_opaques.pop(response.opaque, response) is None:
                    return
                self._unsolicited_count += 1
                if self._unsolicited_count <= UNSOLICITED_MAX:
                    return
                why = (
                    f"{self._unsolicited_count} responses to no request, the last with opaque "
                    f"{response.opaque}"
                )
                raise ProtocolError(self._address, why)
        try:
            waiter.on_response(response)
        except WireError as error:
            waiter.on_error(ProtocolError(self._address, str(error)))
        except Exception as error:  # noqa: BLE001  # the waiter gets the error, not the reading thread
            waiter.on_error(error)

    def overdue(self, now: float) -> list[PendingRequest]:
        """Return the requests whose deadline has passed."""
        with self._lock:
            waiters = self._pending.values()
            self.next_deadline = min(
                (each.deadline for each in waiters if each.deadline > now), default=inf
            )
            return [waiter for waiter in waiters if waiter.deadline <= now]

    def expire(self, pending: PendingRequest, error: ClientError) -> bool:
        """Fail a request that got no response in time; return whether it was still pending."""
        with self._lock:
            if pending.opaque not in self._pending:
                return False
            # first: if memory is short, the request stays pending
            self._ignore_late_response(pending)
            del self._pending[pending.opaque]
        try:
            pending.on_error(error)
        except MemoryError:  # memory may be available by now
            pending.on_error(error)
        return True

    def discard(self, pending: PendingRequest) -> None:
        """Discard a request without calling it; a late response is ignored."""
        with self._lock:
            if self._pending.pop(pending.opaque, None) is not None:
                self._ignore_late_response(pending)

    def _ignore_late_response(self, pending: PendingRequest) -> None:
        self._expired_opaques[pending.opaque] = None
        if len(self._expired_opaques) > _EXPIRED_MAX:
            del self._expired_opaques[next(iter(self._expired_opaques))]

    def close(self, error: ClientError) -> list[PendingRequest] | None:
        """Close, and return the requests to fail; None if it was closed before."""
        with self._lock:
            if self.close_error is not None:
                return None
            waiters = list(self._pending.values())
            self.close_error, self._pending = error, {}
        return waiters

    def after_fork(self) -> None:
        """Discard all requests without calling them: they are pending in the parent process."""
        self._lock = threading.Lock()
        self._pending = {}
        self.close_error = wrong_process_error()


def wrong_process_error() -> ClientShutDown:
    """Return the error for a call during which a signal handler forked, which nothing retries."""
    return ClientShutDown(
        "the response goes to the parent of this process, which has sent the request"
    )


def fail_each(requests: Iterable[PendingRequest], error: ClientError) -> None:
    """Fail several requests, each with a separate error if memory allows."""
    for waiter in requests:
        try:
            waiter.on_error(type(error)(*error.args))
        except Exception:  # noqa: BLE001, PERF203  # the others are notified as well
            with suppress(Exception):
                waiter.on_error(error)
