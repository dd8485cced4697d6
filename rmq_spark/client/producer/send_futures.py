"""SendFuture: the result of a send, for its caller; and the thread that runs its callbacks.

A callback may take as long as it likes, raise what it likes, and use the client: it runs in a
thread of its producer, and not in the one that reads the answers of all who share the connection.
Where callbacks are slower than answers, senders wait until fewer callbacks do; a callback that
sends waits for none of the others, which could not run meanwhile.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from rmq_spark.client.connections.waiters import OwnFuture
from rmq_spark.client.results import SendResult
from rmq_spark.client.threads.mutex import SIGNALS_SECONDS, mutex
from rmq_spark.client.threads.starting import start_thread

_log = logging.getLogger(__name__)

IDLE_SECONDS = 1.0
"""Seconds that the thread waits for more callbacks before it ends."""


class SendOutcome(Protocol):
    """The part of a future that a send needs, to tell its result."""

    def cancelled(self) -> bool:
        """Return whether nobody wants the result any more."""

    def set_running_or_notify_cancel(self) -> bool:
        """Return whether a result may be set, which is next."""

    def set_result(self, result: SendResult, /) -> None:
        """Take the result: the message is stored."""

    def set_exception(self, error: Exception, /) -> None:
        """Take the error: the message is not known to be stored."""


class Callbacks:
    """Runs callbacks one after the other, in a thread that is there while there are some."""

    def __init__(self, name: str, waiting_max: int) -> None:
        """Make it; with ``waiting_max`` callbacks that wait, senders have to wait as well."""
        self._name = name
        self._waiting_max = waiting_max
        self._is_of_parent = False
        self._begin()

    def _begin(self) -> None:
        self._mutex = mutex()
        self._has_come = threading.Condition(self._mutex)
        self._has_room = threading.Condition(self._mutex)
        self._calls: deque[Callable[[], object]] = deque()
        self._has_thread = False
        self._runs_in: int | None = None

    def forked(self) -> None:
        """Run none of the parent's callbacks; its thread ends, should a callback have forked."""
        self._is_of_parent = True
        self._begin()

    @property
    def waiting(self) -> int:
        """Number of callbacks that wait."""
        return len(self._calls)

    @property
    def thread_count(self) -> int:
        """Number of threads that run callbacks: one, while there are some."""
        return int(self._has_thread)

    @property
    def has_room(self) -> bool:
        """True if who sends now need not wait for callbacks."""
        return len(self._calls) < self._waiting_max or self._runs_in == threading.get_ident()

    def wait_for_room(self, seconds: float) -> bool:
        """Wait until fewer callbacks wait; return False if there are still too many."""
        if self.has_room:
            return True
        deadline = time.monotonic() + seconds
        with self._mutex:
            while not self.has_room:
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    return False
                self._has_room.wait(min(remaining, SIGNALS_SECONDS))
        return True

    def call(self, action: Callable[[], object]) -> None:
        """Have a callback run soon, after those that came before."""
        with self._mutex:
            self._calls.append(action)
            if self._has_thread:
                self._has_come.notify()
                return
            self._has_thread = True
        try:
            start_thread(threading.Thread(target=self._run, name=self._name, daemon=True))
        except RuntimeError:  # at a limit of threads, or as Python ends: then here
            self._run()

    def _run(self) -> None:
        self._runs_in = threading.get_ident()
        while not self._is_of_parent and (action := self._next()) is not None:
            _run(action)

    def _next(self) -> Callable[[], object] | None:
        with self._mutex:
            if not self._calls:
                self._has_come.wait(IDLE_SECONDS)
            if self._calls:
                self._has_room.notify()
                return self._calls.popleft()
            self._has_thread = False
            self._runs_in = None
            return None


class SendFuture(OwnFuture[SendResult]):
    """A future whose callbacks run in a thread of the producer."""

    def __init__(self, callbacks: Callbacks) -> None:
        super().__init__()
        self._callbacks = callbacks

    def add_done_callback(self, fn: Callable[[Future[SendResult]], Any]) -> None:
        """Have a function called with this future when it is done, in a thread of the producer.

        If the future is done already, the function is called at once, in this thread.
        """
        if self.done():
            super().add_done_callback(fn)
        else:
            super().add_done_callback(lambda future: self._callbacks.call(lambda: fn(future)))

    if not TYPE_CHECKING:  # for type checkers it is no awaitable, so that they refuse as well

        def __await__(self) -> NoReturn:
            """Refuse: Python's own error would name neither the producer to use nor a way out."""
            raise TypeError(
                "await: needed the producer of asyncio, found a SendFuture of rocketpoll.Producer; "
                "use rocketpoll.aio.Producer and `await producer.send(...)`, or here "
                "`await asyncio.wrap_future(future)`"
            )


def _run(callback: Callable[[], object]) -> None:
    try:
        callback()
    except BaseException:  # noqa: BLE001  # whatever it raises, sys.exit as well, harms no other
        _log.exception("a callback of a send failed")


def forget_frames(error: BaseException) -> None:
    """Drop the tracebacks of an error and its causes, and with them all that their frames hold."""
    found: list[BaseException | None] = [error]
    seen: set[int] = set()
    while found:
        each = found.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            each.__traceback__ = None
            found += (each.__cause__, each.__context__)
