"""AsyncSender: sends that return futures, retried if a connection fails.

    send ──> request ──> response: the future has the result, or the refusal
                └─ connection fails ──> retried at another broker, by a thread of the sender,
                                        because the one that notices has responses to read

Limits apply to the sends that wait for responses, to their bytes, and to the callbacks that wait to
run. At a limit the caller waits, and gets an error if that takes too long. A send that has timed
out keeps its permit until its request is written or dropped, because until then it occupies memory.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol, TypeVar

from rmq_spark.client.api.broker_api import send_result
from rmq_spark.client.concurrency.scheduler import ThreadScheduler
from rmq_spark.client.concurrency.threads import start_thread, wait_for
from rmq_spark.client.errors import (
    UNREACHABLE_ERRORS,
    BrokerNotFound,
    ClientError,
    ClientShutDown,
    MessageRejected,
    SendFailed,
    TooManyPending,
)
from rmq_spark.client.message import MessageExt
from rmq_spark.client.producer.prepared_message import PreparedMessage
from rmq_spark.client.producer.topic_sender import TopicSender, has_time_to_retry, is_route_stale
from rmq_spark.client.results import SendResult
from rmq_spark.client.transport.frame_writer import CallSoon
from rmq_spark.client.transport.pending_requests import ForkSafeFuture, PendingRequest
from rmq_spark.wire.codes import RequestCode
from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.remoting.command import RemotingCommand


class SendPermits:
    """Limits the sends that wait for responses, and the bytes of their bodies. Thread-safe."""

    def __init__(self, count_max: int, bytes_max: int) -> None:
        self.count_max = count_max
        self.bytes_max = bytes_max
        self.bytes = 0
        self._sizes: dict[object, int] = {}  # by the future of each send
        self._mutex = threading.Lock()
        self._wait_queue: deque[threading.Condition] = deque()  # one for each waiting thread

    @property
    def count(self) -> int:
        """Number of sends that have a permit."""
        return len(self._sizes)

    def acquire(self, future: object, size: int, seconds: float) -> bool:
        """Acquire room for a body of ``size`` bytes; return False if there was none in time."""
        with self._mutex:
            has_room = not self._wait_queue and self._fits(size)
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
        condition = threading.Condition(self._mutex)
        self._wait_queue.append(condition)
        try:
            return wait_for(
                condition, lambda: self._wait_queue[0] is condition and self._fits(size), deadline
            )
        finally:
            self._wait_queue.remove(condition)
            self._wake_first()  # there may be room for the next one as well

    def release(self, future: object) -> None:
        """Release the permit of a send, if it has one."""
        with self._mutex:
            size = self._sizes.pop(future, None)
            if size is None:
                return
            self.bytes -= size
            self._wake_first()

    def _wake_first(self) -> None:
        if self._wait_queue:
            self._wait_queue[0].notify()  # one thread: waking hundreds costs more than their sends


_log = logging.getLogger(__name__)

IDLE_SECONDS = 1.0
"""Seconds that the thread waits for more callbacks before it ends."""


class SendPromise(Protocol):
    """The part of a future that a send needs to set its result."""

    def cancelled(self) -> bool:
        """Return whether the future was cancelled."""

    def set_running_or_notify_cancel(self) -> bool:
        """Return whether a result may be set; the caller sets it next."""

    def set_result(self, result: SendResult, /) -> None:
        """Set the result: the message is stored."""

    def set_exception(self, error: Exception, /) -> None:
        """Set the error: the message is not known to be stored."""


class CallbackExecutor:
    """Runs callbacks one after the other, in a thread that lives while there are some."""

    def __init__(self, name: str, pending_max: int) -> None:
        """Make an executor; senders have to wait while ``pending_max`` callbacks are waiting."""
        self._name = name
        self._pending_max = pending_max
        self._is_parents = False
        self._reset()

    def _reset(self) -> None:
        self._mutex = threading.Lock()
        self._has_calls = threading.Condition(self._mutex)
        self._has_room = threading.Condition(self._mutex)
        self._calls: deque[Callable[[], object]] = deque()
        self._has_thread = False
        self._thread_id: int | None = None

    def after_fork(self) -> None:
        """Drop the parent's callbacks; the thread ends, if a callback has forked."""
        self._is_parents = True
        self._reset()

    @property
    def pending_count(self) -> int:
        """Number of waiting callbacks."""
        return len(self._calls)

    @property
    def thread_count(self) -> int:
        """Number of threads that run callbacks: one, while there are some."""
        return int(self._has_thread)

    @property
    def has_room(self) -> bool:
        """True if a send need not wait for callbacks."""
        return len(self._calls) < self._pending_max or self._thread_id == threading.get_ident()

    def wait_for_room(self, seconds: float) -> bool:
        """Wait until fewer callbacks wait; return False if there are still too many."""
        if self.has_room:
            return True
        deadline = time.monotonic() + seconds
        with self._mutex:
            return wait_for(self._has_room, lambda: self.has_room, deadline)

    def submit(self, action: Callable[[], object]) -> None:
        """Run a callback soon, after the earlier ones."""
        with self._mutex:
            self._calls.append(action)
            if self._has_thread:
                self._has_calls.notify()
                return
            self._has_thread = True
        try:
            start_thread(threading.Thread(target=self._run, name=self._name, daemon=True))
        except RuntimeError:  # at a limit of threads, or as Python ends: run the callbacks here
            self._run()

    def _run(self) -> None:
        self._thread_id = threading.get_ident()
        while not self._is_parents and (action := self._next()) is not None:
            try:
                action()
            except BaseException:  # noqa: BLE001, PERF203  # not even sys.exit stops the others
                _log.exception("a callback of a send failed")

    def _next(self) -> Callable[[], object] | None:
        with self._mutex:
            if not self._calls:
                self._has_calls.wait(IDLE_SECONDS)
            if self._calls:
                self._has_room.notify()
                return self._calls.popleft()
            self._has_thread = False
            self._thread_id = None
            return None


_Result = TypeVar("_Result")


class ProducerFuture(ForkSafeFuture[_Result]):
    """A future whose callbacks run in a thread of the producer."""

    _method = "send"

    def __init__(self, callbacks: CallbackExecutor) -> None:
        super().__init__()
        self._callbacks = callbacks

    def add_done_callback(self, fn: Callable[[Future[_Result]], Any]) -> None:
        """Call a function with this future when it is done, in a thread of the producer.

        If the future is done already, the function is called at once, in this thread.
        """
        if self.done():
            super().add_done_callback(fn)
        else:
            super().add_done_callback(lambda future: self._callbacks.submit(lambda: fn(future)))

    if not TYPE_CHECKING:  # hidden from type checkers, so that they refuse `await` as well

        def __await__(self) -> NoReturn:
            """Refuse: Python's own error would name neither the producer to use nor a way out."""
            raise TypeError(
                f"await: needed the producer of asyncio, found a {type(self).__name__} of "
                f"rocketpoll.Producer; use rocketpoll.aio.Producer and "
                f"`await producer.{self._method}(...)`, or here "
                "`await asyncio.wrap_future(future)`"
            )


class SendFuture(ProducerFuture[SendResult]):
    """The future of a send."""


class ReplyFuture(ProducerFuture[MessageExt]):
    """The future of a request's reply."""

    _method = "request"


def clear_tracebacks(error: BaseException) -> None:
    """Drop the tracebacks of an error and its causes, and thus what their frames hold."""
    found: list[BaseException | None] = [error]
    seen: set[int] = set()
    while found:
        each = found.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            each.__traceback__ = None
            found += (each.__cause__, each.__context__)


_RETRY_THREADS_MAX: Final = 4


class AsyncSender:
    """The asynchronous sends of one producer. All methods may be called from any thread."""

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
        self._reset()

    def _reset(self) -> None:
        self.permits = SendPermits(self._pending_max, self._pending_bytes_max)
        self._callbacks = CallbackExecutor("rocketpoll callbacks", self._pending_max)
        self._retry_scheduler = ThreadScheduler("rocketpoll sends again", _RETRY_THREADS_MAX)
        self._mutex = threading.Lock()
        self._retries: dict[_AsyncSend, None] = {}

    def start(self) -> None:
        """Retry failures from now on; drop sends that were pending in another process."""
        self._reset()

    def after_fork(self) -> None:
        """Drop the parent's sends, which the parent completes, callbacks included."""
        self._callbacks.after_fork()
        self._reset()

    def stop(self) -> None:
        """Retry nothing from now on."""
        self._retry_scheduler.stop(0)
        with self._mutex:
            left, self._retries = self._retries, {}
        for send in left:
            send.fail_with_attempts()

    def send(
        self, prepared: PreparedMessage, fixed: MessageQueue | None, timeout_ms: int
    ) -> SendFuture:
        """Send a message and return a future; with a ``fixed`` queue, there is one attempt only.

        Raises:
            TooManyPending: Too many sends or bytes are pending, and no room was made in time.
            MessageRejected: The instance has no threads that would read the response.
        """
        if self.sender.instance.connections.reads_itself:
            needed = "a ClientInstance whose connections are read by threads"
            raise MessageRejected("send_async", needed, "reads_itself=True")
        deadline = time.monotonic() + timeout_ms / 1000
        if not self._callbacks.wait_for_room(timeout_ms / 1000):
            raise TooManyPending(
                self.permits.count, self.permits.bytes, self._callbacks.pending_count
            )
        future = SendFuture(self._callbacks)
        try:
            if not self.permits.acquire(future, len(prepared.body), deadline - time.monotonic()):
                raise TooManyPending(self.permits.count, self.permits.bytes)  # noqa: TRY301  # the permit is released below
            _AsyncSend(self, prepared, fixed, timeout_ms, future).attempt()
        except BaseException:  # Ctrl-C, for example: no caller gets the future
            self.permits.release(future)
            raise
        return future

    def new_reply_future(self) -> ReplyFuture:
        """Return the future of a reply; its callbacks run in the thread of those of sends."""
        return ReplyFuture(self._callbacks)

    def send_nonblocking(
        self,
        prepared: PreparedMessage,
        fixed: MessageQueue | None,
        timeout_ms: int,
        promise: SendPromise,
        call_soon: CallSoon,
    ) -> bool:
        """Send a message without waiting; return False if there is no room for it.

        ``call_soon`` schedules the write, which includes all requests that gather until then. If a
        route must be fetched or a broker connected, a thread does so, and writes.
        """
        try:
            if not self.permits.acquire(promise, len(prepared.body), 0):
                return False
            send = _AsyncSend(self, prepared, fixed, timeout_ms, promise)
            send.call_soon = call_soon
            send.attempt(may_wait=False)
        except BaseException:
            self.permits.release(promise)
            raise
        return True

    @property
    def thread_count(self) -> int:
        """Number of threads for callbacks and retries."""
        return self._callbacks.thread_count + self._retry_scheduler.thread_count

    def schedule_retry(self, send: _AsyncSend) -> bool:
        """Retry a send soon; return False if no thread can do that."""
        with self._mutex:
            self._retries[send] = None
        task = self._retry_scheduler.schedule(lambda: self._retry(send))
        # A cancelled task has run already, or never will: no thread could start, or the sender
        # stopped. Removing the send shows which.
        may_be_left = task.is_cancelled or not self._retry_scheduler.thread_count
        return not (may_be_left and self._claim(send))

    def _retry(self, send: _AsyncSend) -> None:
        if self._claim(send):
            send.attempt()

    def _claim(self, send: _AsyncSend) -> bool:
        with self._mutex:
            return self._retries.pop(send, send) is None


class _AsyncSend(PendingRequest):
    """One send, which waits for the responses to its tries."""

    def __init__(
        self,
        sender: AsyncSender,
        prepared: PreparedMessage,
        fixed_queue: MessageQueue | None,
        timeout_ms: int,
        future: SendPromise,
    ) -> None:
        super().__init__(RequestCode.SEND_MESSAGE_V2, timeout_ms, time.monotonic())
        self.future = future
        self._async_sender = sender
        self._prepared = prepared
        self._fixed_queue = fixed_queue
        self._errors: list[ClientError] = []
        self._failed_broker: str | None = None
        self._selected_queue: MessageQueue | None = (
            None  # the queue of a try that waits for a thread
        )
        self._turn: int | None = None  # the turn, if the queues are not known yet

    def attempt(self, *, may_wait: bool = True) -> None:
        """Send the message to a queue that has not failed; in a thread, if that may block."""
        if self.future.cancelled():
            self._release()
            self.future.set_running_or_notify_cancel()
            return
        try:
            address = None if may_wait else self._ready_address()
            if may_wait or address is not None:
                self._send(address)
                return
        except Exception as error:  # noqa: BLE001  # any error must reach the future
            self.on_error(error)
            return
        self.call_soon = None  # valid in this thread only; other threads make the further tries
        if not self._async_sender.schedule_retry(self):
            self._fail(ClientShutDown("cannot start a thread that connects"))

    def _ready_address(self) -> str | None:
        """Choose the queue, and return its broker's address, or None if it is not connected."""
        sender = self._async_sender.sender
        queues = sender.instance.routes.known_publish_queues(self._prepared.topic)
        if not queues:
            # taken now, so that turns follow the order of calls, not that of the sending threads
            self._turn = sender.queue_selector.next_turn()
            return None
        if self._selected_queue is None:
            self._selected_queue = self._fixed_queue or sender.queue_selector.select(
                queues, self._failed_broker
            )
        try:
            address = sender.instance.routes.master_address(self._selected_queue.broker_name)
        except BrokerNotFound:
            return None  # the thread finds the same error, and reports it
        return address if sender.instance.connections.is_ready(address) else None

    def _send(self, ready_address: str | None) -> None:
        sender, prepared = self._async_sender.sender, self._prepared
        chosen, self._selected_queue = self._selected_queue or self._fixed_queue, None
        if chosen is None:
            queues, (turn, self._turn) = sender.publish_queues(prepared.topic), (self._turn, None)
            chosen = sender.queue_selector.select(queues, self._failed_broker, turn)
        self._failed_broker = chosen.broker_name  # the queue to avoid, should this try fail
        self.started_at = time.monotonic()
        self._header = prepared.header(chosen)
        if ready_address is None:
            self._address = sender.instance.routes.master_address(chosen.broker_name)
            sender.instance.connections.connect(self._address, self._connect_timeout_ms())
        else:
            self._address = ready_address
        sender.instance.api.submit_send(
            self, self._address, self._header, prepared.body, is_reply=prepared.is_reply
        )

    def _connect_timeout_ms(self) -> int:
        """Return how long connecting may take, so that time is left to try other brokers."""
        tries_left = 0 if self._fixed_queue else self._async_sender.retries - len(self._errors)
        return max(int((self.deadline - self.started_at) * 1000), 1) // (max(tries_left, 0) + 1)

    def on_response(self, command: RemotingCommand) -> None:
        result = send_result(
            self._address, self.request_code, command, self._header, self._prepared.message_id
        )
        result = self._async_sender.sender.strip_result(result)
        sender, cost_ms = self._async_sender.sender, (time.monotonic() - self.started_at) * 1000
        sender.queue_selector.record_latency(self._header.broker_name or "", cost_ms)
        if sender.tracer is not None:
            sender.tracer.record_send(self._prepared, self._address, result, int(cost_ms))
        self._release()
        if self.future.set_running_or_notify_cancel():
            self.future.set_result(result)

    def on_error(self, error: Exception) -> None:
        if isinstance(error, ClientError):
            clear_tracebacks(error)  # otherwise a future that is kept would keep the message alive
        if isinstance(error, UNREACHABLE_ERRORS) and self._fixed_queue is None:
            self._errors.append(error)
            if self._failed_broker is not None:
                self._async_sender.sender.queue_selector.record_failure(self._failed_broker)
            self.call_soon = None  # another thread makes the retry
            is_retried = (
                len(self._errors) <= self._async_sender.retries
                and has_time_to_retry(self.deadline, time.monotonic())
                and self._async_sender.schedule_retry(self)
            )
            if not is_retried:
                self.fail_with_attempts()
        else:
            if is_route_stale(error):
                self._async_sender.sender.instance.refresh_routes_soon()
            self._fail(error)

    def fail_with_attempts(self) -> None:
        if not self._errors:  # no try was made
            self._fail(ClientShutDown("the producer was shut down before the first try"))
            return
        self._fail(SendFailed(self._prepared.topic, self._errors))

    def _fail(self, error: Exception) -> None:
        self.cancel_write(self._release)  # a request being written still occupies memory
        if self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)

    def _release(self) -> None:
        self._async_sender.permits.release(self.future)
