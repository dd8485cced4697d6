"""AsyncSends: sends whose results come by futures, tried again where a connection fails.

    send ──> request ──> answered: the future has the result, or the refusal
                └─ connection fails ──> once more to another broker, by a thread of its own: the one
                                        that finds out has answers of others to read

Only so many sends, with so many bytes, may wait for answers at once, and only so many callbacks may
wait for their turn; a caller who wants to send more waits, and gets an error if that takes too
long. A send whose time is over counts until none of it is kept for writing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol

from rmq_spark.client.api.responses import sent
from rmq_spark.client.concurrency.locks import SIGNALS_SECONDS, mutex, start_thread
from rmq_spark.client.concurrency.scheduler import ScheduledTasks
from rmq_spark.client.errors import (
    CONNECTION_FAULTS,
    BrokerNotFound,
    ClientError,
    ClientShutDown,
    MessageRejected,
    SendFailed,
    TooManyPending,
)
from rmq_spark.client.producer.prepared_message import Outgoing
from rmq_spark.client.producer.topic_sender import TopicSender, may_be_elsewhere
from rmq_spark.client.results import SendResult
from rmq_spark.client.transport.frame_writer import Soon
from rmq_spark.client.transport.pending_requests import OwnFuture, Waiter
from rmq_spark.wire.codes import RequestCode
from rmq_spark.wire.command import RemotingCommand
from rmq_spark.wire.message_queue import MessageQueue

# ---- PendingSends: limits the sends that wait for their answers, and the bytes of their bodies.


class PendingSends:
    """The room for sends that wait. All methods may be called from any thread."""

    def __init__(self, count_max: int, bytes_max: int) -> None:
        self.count_max = count_max
        self.bytes_max = bytes_max
        self.bytes = 0
        self._sizes: dict[object, int] = {}  # by the future of each send
        self._mutex = mutex()
        self._line: deque[threading.Condition] = deque()  # of those who wait, one for each

    @property
    def count(self) -> int:
        """Number of sends that have room."""
        return len(self._sizes)

    def enter(self, future: object, size: int, seconds: float) -> bool:
        """Take room for a body of so many bytes; return False if there was none within the time."""
        with self._mutex:
            has_room = not self._line and self._fits(size)
            if not has_room and not self._wait(size, seconds):
                return False
            self._sizes[future] = size
            self.bytes += size
            return True

    def _fits(self, size: int) -> bool:
        count = len(self._sizes)
        return not count or (count < self.count_max and self.bytes + size <= self.bytes_max)

    def _wait(self, size: int, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        place = threading.Condition(self._mutex)
        self._line.append(place)
        try:
            while self._line[0] is not place or not self._fits(size):
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    return False
                place.wait(min(remaining, SIGNALS_SECONDS))
            return True
        finally:
            self._line.remove(place)
            self._wake_first()  # there may be room for it as well

    def leave(self, future: object) -> None:
        """Give the room of a send back, if it has any."""
        with self._mutex:
            size = self._sizes.pop(future, None)
            if size is None:
                return
            self.bytes -= size
            self._wake_first()

    def _wake_first(self) -> None:
        if self._line:
            self._line[0].notify()  # nobody else: hundreds that wake cost more than their sends


# ---- SendFuture: the result of a send, for its caller; and the thread that runs its callbacks.

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


RETRY_MS_MIN: Final = 50
"""Least milliseconds for a try; with less, it would be given up while the broker stores."""

_AGAIN_THREADS: Final = 4


class AsyncSends:
    """The sends of one producer that are under way. All methods may be called from any thread."""

    def __init__(
        self,
        sender: TopicSender,
        *,
        retries: int,
        pending_max: int,
        pending_bytes_max: int,
    ) -> None:
        self.sender = sender
        self.retries = retries
        self._pending_max = pending_max
        self._pending_bytes_max = pending_bytes_max
        self._begin()

    def _begin(self) -> None:
        self.pending = PendingSends(self._pending_max, self._pending_bytes_max)
        self._callbacks = Callbacks("rocketpoll callbacks", self._pending_max)
        self._again = ScheduledTasks("rocketpoll sends again", _AGAIN_THREADS)
        self._mutex = mutex()
        self._to_send_again: dict[_AsyncSend, None] = {}

    def start(self) -> None:
        """Have failures tried again from now on; forget sends that waited in another process."""
        self._begin()

    def forked(self) -> None:
        """Forget the parent's sends, which are answered there, as are their callbacks."""
        self._callbacks.forked()
        self._begin()

    def stop(self) -> None:
        """Try nothing again from now on."""
        self._again.stop(0)
        with self._mutex:
            left, self._to_send_again = self._to_send_again, {}
        for send in left:
            send.ends()

    def send(self, prepared: Outgoing, fixed: MessageQueue | None, timeout_ms: int) -> SendFuture:
        """Send a message and return the future of its result; to ``fixed``, if given, with one try.

        Raises:
            TooManyPending: Too much waits for answers, and no room was made within the time.
            MessageRejected: The instance has no threads that would read the answer.
        """
        if self.sender.instance.connections.reads_itself:
            needed = "a ClientInstance whose connections are read by threads"
            raise MessageRejected("send_async", needed, "reads_itself=True")
        deadline = time.monotonic() + timeout_ms / 1000
        if not self._callbacks.wait_for_room(timeout_ms / 1000):
            raise TooManyPending(self.pending.count, self.pending.bytes, self._callbacks.waiting)
        future = SendFuture(self._callbacks)
        try:
            if not self.pending.enter(future, len(prepared.body), deadline - time.monotonic()):
                raise TooManyPending(self.pending.count, self.pending.bytes)  # noqa: TRY301
            _AsyncSend(self, prepared, fixed, timeout_ms, future).attempt()
        except BaseException:  # Ctrl-C, for example: nobody gets the future
            self.pending.leave(future)
            raise
        return future

    def begin(
        self,
        prepared: Outgoing,
        fixed: MessageQueue | None,
        timeout_ms: int,
        outcome: SendOutcome,
        soon: Soon,
    ) -> bool:
        """Send a message without waiting for anybody; return False if there is no room for it.

        It is written when ``soon`` calls what it is given, with all that gather until then. Where a
        route has to be asked for, or a broker to be connected, a thread does so, and writes.
        """
        try:
            if not self.pending.enter(outcome, len(prepared.body), 0):
                return False
            _AsyncSend(self, prepared, fixed, timeout_ms, outcome).begin(soon)
        except BaseException:
            self.pending.leave(outcome)
            raise
        return True

    @property
    def thread_count(self) -> int:
        """Number of threads for callbacks and for what is sent again."""
        return self._callbacks.thread_count + self._again.thread_count

    def try_again(self, send: _AsyncSend) -> bool:
        """Have a send tried again soon; return False if no thread can do that."""
        with self._mutex:
            self._to_send_again[send] = None
        task = self._again.schedule(lambda: self._try_again(send))
        # A cancelled task has run already, or never will: there is no thread, or this has stopped.
        # Taking the send out tells which.
        may_be_left = task.is_cancelled or not self._again.thread_count
        return not (may_be_left and self._is_taken(send))

    def _try_again(self, send: _AsyncSend) -> None:
        if self._is_taken(send):
            send.attempt()

    def _is_taken(self, send: _AsyncSend) -> bool:
        with self._mutex:
            return self._to_send_again.pop(send, send) is None


class _AsyncSend(Waiter):
    """One send, which waits for the answers to its tries."""

    def __init__(
        self,
        sends: AsyncSends,
        prepared: Outgoing,
        fixed: MessageQueue | None,
        timeout_ms: int,
        future: SendOutcome,
    ) -> None:
        super().__init__(RequestCode.SEND_MESSAGE_V2, timeout_ms, time.monotonic())
        self.future = future
        self._sends = sends
        self._prepared = prepared
        self._fixed = fixed
        self._tries: list[ClientError] = []
        self._failed: str | None = None
        self._chosen: MessageQueue | None = None  # the queue of a try that waits for a thread
        self._turn: int | None = None  # the turn of one whose queues are not known yet

    def begin(self, soon: Soon) -> None:
        """Send the message without waiting, written by ``soon`` in this thread, or by others."""
        self.soon = soon
        self.attempt(may_wait=False)

    def attempt(self, *, may_wait: bool = True) -> None:
        """Send the message, to a queue that has not failed; or have a thread do so, if it waits."""
        if self.future.cancelled():
            self._leave()
            self.future.set_running_or_notify_cancel()
            return
        try:
            address = None if may_wait else self._ready_address()
            if may_wait or address is not None:
                self._ask(address)
                return
        except Exception as error:  # noqa: BLE001  # any error must reach the future
            self.failed(error)
            return
        self.soon = None  # of this thread alone: other tries are made by others
        if not self._sends.try_again(self):
            self._ends_with(ClientShutDown("no thread can be started that connects"))

    def _ready_address(self) -> str | None:
        """Choose the queue, and return its broker's address; None if that has to be waited for."""
        sender = self._sends.sender
        queues = sender.known_queues(self._prepared.topic)
        if not queues:
            self._turn = sender.choice.next_turn()  # the caller's, not that of the thread
            return None
        if self._chosen is None:
            self._chosen = self._fixed or sender.choice.choose(queues, self._failed)
        try:
            address = sender.instance.routes.master_address(self._chosen.broker_name)
        except BrokerNotFound:
            return None  # the thread finds that out as well, and says so
        return address if sender.instance.connections.is_ready(address) else None

    def _ask(self, ready_address: str | None) -> None:
        sender, prepared = self._sends.sender, self._prepared
        chosen, self._chosen = self._chosen or self._fixed, None
        if chosen is None:
            queues, (turn, self._turn) = sender.publish_queues(prepared.topic), (self._turn, None)
            chosen = sender.choice.choose(queues, self._failed, turn)
        self._failed = chosen.broker_name  # the queue to avoid, should this try fail
        self.asked_at = time.monotonic()
        self._header = prepared.header(chosen)
        if ready_address is None:
            self._address = sender.instance.routes.master_address(chosen.broker_name)
            sender.instance.connections.reach(self._address, self._connect_ms())
        else:
            self._address = ready_address
        sender.instance.api.send_to(self, self._address, self._header, prepared.body)

    def _connect_ms(self) -> int:
        """Return the milliseconds that connecting may take: other brokers have their share."""
        tries_left = 0 if self._fixed else self._sends.retries - len(self._tries)
        return max(int((self.deadline - self.asked_at) * 1000), 1) // (max(tries_left, 0) + 1)

    def answered(self, command: RemotingCommand) -> None:
        """Resolve the future: the message is stored, or refused."""
        result = sent(
            self._address, self.request_code, command, self._header, self._prepared.message_id
        )
        self._sends.sender.choice.sent(
            self._header.broker_name or "", (time.monotonic() - self.asked_at) * 1000
        )
        self._leave()
        if self.future.set_running_or_notify_cancel():
            self.future.set_result(result)

    def failed(self, error: Exception) -> None:
        """Have the send tried again, or let the future fail."""
        if isinstance(error, ClientError):
            forget_frames(error)  # a future that is kept would keep the message alive
        if isinstance(error, (*CONNECTION_FAULTS, BrokerNotFound)) and self._fixed is None:
            self._tries.append(error)
            if self._failed is not None:
                self._sends.sender.choice.failed(self._failed)
            self.soon = None  # it is another thread that tries again
            is_over = time.monotonic() + RETRY_MS_MIN / 1000 >= self.deadline
            if is_over or len(self._tries) > self._sends.retries or not self._sends.try_again(self):
                self.ends()
        else:
            if may_be_elsewhere(error):
                self._sends.sender.instance.refresh_routes_soon()
            self._ends_with(error)

    def ends(self) -> None:
        """Let the future fail: the send is not tried again."""
        if not self._tries:  # it has yet to be tried
            self._ends_with(ClientShutDown("the producer was shut down before the first try"))
            return
        error = SendFailed(self._prepared.topic, self._tries)
        error.__cause__ = self._tries[-1]
        self._ends_with(error)

    def _ends_with(self, error: Exception) -> None:
        self.when_released(self._leave)  # a request that is being written takes memory still
        if self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)

    def _leave(self) -> None:
        self._sends.pending.leave(self.future)
