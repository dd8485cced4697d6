"""RequestFutureHolder: the requests of one client that wait for their replies.

    register ──> resolve, when the reply arrives
             ├─> fail: the request could not be sent, or its producer is shut down
             └─> expire, at the deadline: a later reply is dropped

The reply comes from another client, by way of a broker (PUSH_REPLY_MESSAGE_TO_CLIENT), and names
the request by its correlation id. Each request ends once.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from typing import Final, Protocol

from rmq_spark.client.concurrency.fork_hooks import ForkAware
from rmq_spark.client.concurrency.scheduler import Task, ThreadScheduler
from rmq_spark.client.errors import ClientShutDown, ReplyTimeout
from rmq_spark.client.message import MessageExt
from rmq_spark.client.results import SendResult
from rmq_spark.errors import BodyError, excerpt, sanitize
from rmq_spark.wire.compression import uncompress_body
from rmq_spark.wire.headers.members import ReplyMessageRequestHeader
from rmq_spark.wire.message.properties import (
    ARRIVE_TIME,
    CORRELATION_ID,
    UNIQ_KEY,
    decode_properties,
)
from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.remoting.command import RemotingCommand

_log = logging.getLogger(__name__)

_UNKNOWN: Final = -1


class ReplyPromise(Protocol):
    """The part of a future that a request needs to set its reply."""

    def set_running_or_notify_cancel(self) -> bool:
        """Return whether a result may be set; the caller sets it next."""

    def set_result(self, result: MessageExt, /) -> None:
        """Set the reply."""

    def set_exception(self, error: Exception, /) -> None:
        """Set the error: there is no reply."""


class SentFuture(Protocol):
    """A future of a send's result that is done."""

    def cancelled(self) -> bool:
        """Return whether the future was cancelled."""

    def exception(self) -> BaseException | None:
        """Return the error, if the send failed."""

    def result(self) -> SendResult:
        """Return the result."""


class RequestFuture:
    """A request that waits for its reply."""

    def __init__(
        self,
        holder: RequestFutureHolder,
        owner: object,
        topic: str,
        timeout_ms: int,
        promise: ReplyPromise,
    ) -> None:
        self.correlation_id = str(uuid.uuid4())
        self.owner = owner
        self.topic = topic
        self.timeout_ms = timeout_ms
        self.promise = promise
        self.deadline = 0.0
        self._holder = holder
        self._sent: SendResult | None = None

    def on_sent(self, future: SentFuture) -> None:
        """Note where the request is stored, or fail with the error of its send."""
        if future.cancelled():
            self.discard()
            return
        error = future.exception()
        if error is None:
            self._sent = future.result()
        elif isinstance(error, Exception):
            self._holder.fail(self, error)

    def timeout_error(self) -> ReplyTimeout:
        """Return the error of a request whose reply did not arrive in time."""
        return ReplyTimeout(self.topic, self.timeout_ms, self._sent)

    def shutdown_error(self) -> ClientShutDown:
        """Return the error of a request whose producer was shut down before the reply arrived."""
        where = ReplyTimeout(self.topic, self.timeout_ms, self._sent).where
        return ClientShutDown(
            f"the producer was shut down while a request to {self.topic} waited for its reply; "
            f"{where}"
        )

    def discard(self) -> None:
        """Stop waiting: a late reply is dropped."""
        self._holder.discard(self)


class RequestFutureHolder(ForkAware):
    """The requests of one client, by correlation id. Methods may be called from any thread."""

    def __init__(self) -> None:
        self._after_fork()
        ForkAware.__init__(self)

    def _after_fork(self) -> None:
        """Hold no request: those of the parent are answered there."""
        self._lock = threading.Lock()
        self._requests: dict[str, RequestFuture] = {}
        self._scheduler = ThreadScheduler("rocketpoll request timeouts")
        self._timer: Task | None = None

    def count(self, owner: object) -> int:
        """Return the number of requests of an owner that wait."""
        with self._lock:
            return sum(each.owner is owner for each in self._requests.values())

    @property
    def thread_count(self) -> int:
        """Number of threads that expire requests."""
        return self._scheduler.thread_count

    def register(
        self,
        owner: object,
        topic: str,
        timeout_ms: int,
        promise: ReplyPromise,
        left_ms: int | None = None,
    ) -> RequestFuture:
        """Return a new request of ``owner``, which waits from now on.

        Of its ``timeout_ms``, ``left_ms`` are left; by default all.
        """
        left_ms = timeout_ms if left_ms is None else left_ms
        request = RequestFuture(self, owner, topic, timeout_ms, promise)
        request.deadline = time.monotonic() + left_ms / 1000
        with self._lock:
            self._requests[request.correlation_id] = request
            if self._timer is None or request.deadline < self._timer.due_at:
                self._set_timer(left_ms)
        return request

    def _set_timer(self, delay_ms: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._scheduler.schedule(self._expire, delay_ms)

    def _expire(self) -> None:
        with self._lock:
            now, waiting = time.monotonic(), list(self._requests.values())
            expired = [each for each in waiting if each.deadline <= now]
            for each in expired:
                del self._requests[each.correlation_id]
            self._timer = None
            if self._requests:
                next_deadline = min(each.deadline for each in self._requests.values())
                self._set_timer(int((next_deadline - now) * 1000) + 1)
        for each in expired:
            _fail(each, each.timeout_error())

    def resolve(
        self,
        header: ReplyMessageRequestHeader,
        pushed: RemotingCommand,
        now_ms: int,
        max_body_bytes: int,
    ) -> None:
        """Pass the reply that a broker has pushed (code 326) to the request that waits for it.

        Raises:
            BodyError: The reply is compressed, and cannot be inflated; its request fails with this.
        """
        correlation_id = decode_properties(header.properties or "").get(CORRELATION_ID)
        request = self._pop(correlation_id)
        if request is None:
            _log.info(
                "a reply from %s was dropped, because no request waits for it (correlation id %s)",
                sanitize(header.born_host),
                excerpt(correlation_id),
            )
            return
        try:
            reply = _reply_of(header, pushed, now_ms, max_body_bytes)
        except BodyError as error:
            _fail(request, error)
            raise
        if request.promise.set_running_or_notify_cancel():
            request.promise.set_result(reply)

    def fail(self, request: RequestFuture, error: Exception) -> None:
        """End a request with an error, if it still waits."""
        if self._pop(request.correlation_id) is not None:
            _fail(request, error)

    def discard(self, request: RequestFuture) -> None:
        """Stop waiting for a request's reply, without calling its promise."""
        self._pop(request.correlation_id)

    def shut_down(self, owner: object = None) -> None:
        """Fail the requests of an owner, or, without one, all of them; then the timer ends."""
        with self._lock:
            found = [
                each for each in self._requests.values() if owner is None or each.owner is owner
            ]
            for each in found:
                del self._requests[each.correlation_id]
            if owner is None:
                self._scheduler.stop(0)
        for each in found:
            _fail(each, each.shutdown_error())

    def _pop(self, correlation_id: str | None) -> RequestFuture | None:
        with self._lock:
            return self._requests.pop(correlation_id or "", None)


def _fail(request: RequestFuture, error: Exception) -> None:
    if request.promise.set_running_or_notify_cancel():
        request.promise.set_exception(error)


def _reply_of(
    header: ReplyMessageRequestHeader, pushed: RemotingCommand, now_ms: int, max_body_bytes: int
) -> MessageExt:
    properties = decode_properties(header.properties or "")
    properties[ARRIVE_TIME] = str(now_ms)
    body = bytes(uncompress_body(pushed.body, header.sys_flag, max_body_bytes))
    return MessageExt(
        topic=header.topic,
        body=body,
        properties=properties,
        queue=MessageQueue(header.topic, "", header.queue_id),
        queue_offset=_UNKNOWN,  # the broker stores a reply after its delivery
        message_id=properties.get(UNIQ_KEY, ""),
        offset_message_id="",
        commit_log_offset=_UNKNOWN,
        born_timestamp=header.born_timestamp,
        born_host=header.born_host.removeprefix("/"),  # Java prints addresses with a slash
        store_timestamp=header.store_timestamp,
        store_host=header.store_host.removeprefix("/"),
        reconsume_times=header.reconsume_times or 0,
        flag=header.flag,
        sys_flag=header.sys_flag,
        prepared_transaction_offset=0,
    )
