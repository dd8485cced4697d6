"""Consume services: pass pulled messages to a listener, and process its results.

A concurrent listener is called from many threads, in no order. Messages that it failed to consume,
or has had for too long, are sent back to the broker. If no broker accepts them, they stay in this
process and are retried. The committed offset is that of the first unfinished message.

An orderly listener gets the messages of each queue in turn; in CLUSTERING only while the queue's
broker has locked it for this consumer. A message that fails is retried in place, and no later
message of the queue overtakes it. After the maximum number of retries it becomes a dead letter.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar, Final

from rmq_spark.client.concurrency.scheduler import PerBrokerExecutor, Scheduler, ThreadScheduler
from rmq_spark.client.consumer.brokers.broker_client import GroupBrokerClient, group_by_broker
from rmq_spark.client.consumer.dispatch.listeners import (
    ConsumeConcurrentlyContext,
    ConsumeConcurrentlyStatus,
    ConsumeOrderlyContext,
    ConsumeOrderlyStatus,
    ListenerFailureLog,
    MessageListenerConcurrently,
    MessageListenerOrderly,
    call_listener,
    clamp_listener_value,
    restore_properties,
)
from rmq_spark.client.consumer.dispatch.redelivery import DEAD_LETTER, FIRST_DELAY_LEVEL, Redelivery
from rmq_spark.client.consumer.pull.pull_task import NOT_LOCKED_MS, PullRequest
from rmq_spark.client.consumer.queues.process_queue import monotonic_ms
from rmq_spark.client.consumer.settings import SUSPEND_MS_MIN
from rmq_spark.client.errors import ClientError
from rmq_spark.client.message import MessageExt
from rmq_spark.errors import excerpt
from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.remoting.java_numbers import INT32_MAX

_log = logging.getLogger(__name__)

LOCAL_RETRY_MS = 5_000
_FailedMessage = tuple[MessageExt, MessageExt]
"""A message as a listener has left it, and as it was delivered."""

_SUCCESS = ConsumeConcurrentlyStatus.CONSUME_SUCCESS


AcknowledgeFunction = Callable[[PullRequest, Sequence[MessageExt]], bool]
"""Acknowledges messages of a queue; returns False if the queue was dropped.

It moves the offset to be committed, and resumes a throttled pull task.
"""


@dataclass(slots=True, eq=False)
class ConsumeMessageConcurrentlyService:
    """Calls a concurrent listener, and sends messages that it failed to consume back to brokers."""

    is_orderly: ClassVar = False

    listener: MessageListenerConcurrently
    threads: Scheduler
    retry_executor: PerBrokerExecutor
    """Sends messages back, so that no listener waits for a broker."""
    retries: Redelivery | None
    """None in BROADCASTING: messages that fail are logged and not retried."""
    acknowledge: AcknowledgeFunction
    batch_size: int
    failures: ListenerFailureLog = field(default_factory=ListenerFailureLog)

    def submit(self, request: PullRequest, messages: Sequence[MessageExt]) -> None:
        """Submit messages to the listener, in batches."""
        for start in range(0, len(messages), self.batch_size):
            batch = messages[start : start + self.batch_size]
            self.threads.schedule(partial(self._consume, request, batch))

    def _consume(self, request: PullRequest, batch: Sequence[MessageExt]) -> None:
        # Some messages may have taken too long, and been sent back before this retry.
        batch = [message for message in batch if request.process_queue.is_waiting(message)]
        if not batch or request.process_queue.is_dropped:
            return
        request.process_queue.start_consuming(batch)
        properties = [dict(message.properties) for message in batch]
        failed_from, delay_level = self.call_listener(request, batch)
        if request.process_queue.is_dropped:  # also true in a child that the listener forked
            return
        if done := batch[:failed_from]:
            self.acknowledge(request, done)
        if failed := batch[failed_from:]:
            sent = restore_properties(failed, properties[failed_from:])
            pairs = list(zip(failed, sent, strict=True))
            self.retry_executor.for_broker(request.queue.broker_name).schedule(
                lambda: self._retry_failed(request, pairs, delay_level)
            )

    def _retry_failed(
        self, request: PullRequest, failed: Sequence[_FailedMessage], delay_level: int
    ) -> None:
        """Send failed messages back to a broker; if that fails, retry them in this process."""
        if request.process_queue.is_dropped:
            return
        kept: list[_FailedMessage] = []
        for message, sent in failed:
            if self.retries is None:
                text = "%s failed, and is not redelivered, because the group is in BROADCASTING"
                _log.warning(text, message.message_id)
            elif request.process_queue.is_waiting(message) and not self.retries.send_back(
                sent, delay_level
            ):
                kept.append((message, sent))
        incremented = [replace(sent, reconsume_times=sent.reconsume_times + 1) for _, sent in kept]
        kept_messages = [message for message, _ in kept]
        request.process_queue.replace_messages(list(zip(kept_messages, incremented, strict=True)))
        acknowledged = [message for message, _ in failed if message not in kept_messages]
        if self.acknowledge(request, acknowledged) and incremented:
            self.threads.schedule(lambda: self._consume(request, incremented), LOCAL_RETRY_MS)

    def call_listener(self, request: PullRequest, batch: Sequence[MessageExt]) -> tuple[int, int]:
        """Call the listener; return the index of the first failure, and the retry's delay level."""
        context = ConsumeConcurrentlyContext(request.queue)
        status = call_listener(self.listener, batch, context, _SUCCESS, self.failures)
        name, level = "delay_level_when_next_consume", context.delay_level_when_next_consume
        delay_level = clamp_listener_value(name, level, 0, DEAD_LETTER, INT32_MAX)
        if status is not _SUCCESS:
            return 0, delay_level
        if context.ack_index is None:
            return len(batch), delay_level
        last = clamp_listener_value("ack_index", context.ack_index, -1, -1, len(batch) - 1)
        return last + 1, delay_level

    def clean_expired(self, requests: Sequence[PullRequest], timeout_ms: int) -> None:
        """Send back messages that listeners have had for too long: they hold the offset back."""
        for request in requests:
            for message in request.process_queue.pop_expired(timeout_ms):
                self.retry_executor.for_broker(request.queue.broker_name).schedule(
                    partial(self._send_back_expired, request, message, timeout_ms)
                )

    def _send_back_expired(
        self, request: PullRequest, message: MessageExt, timeout_ms: int
    ) -> None:
        cache = request.process_queue
        if cache.is_dropped or not cache.is_waiting(message):
            return
        if self.retries is None:  # the message stays: nobody redelivers it in BROADCASTING
            text = (
                "the listener has had %s for more than %d ms; in BROADCASTING, the offset is "
                "stored only after it returns"
            )
            _log.warning(text, message.message_id, timeout_ms)
        elif self.retries.send_back(message, FIRST_DELAY_LEVEL):
            _log.warning(
                "%s took longer than %d ms, and was sent back for redelivery",
                message.message_id,
                timeout_ms,
            )
            self.acknowledge(request, (message,))
            return
        cache.start_consuming((message,))


# ---- ConsumeMessageOrderlyService: consumes each queue in order, and several queues at once.

CONTINUOUSLY_MS_MAX = 60_000
YIELD_MS = 10
JAVA_DEFAULT = -1
"""Delay that stands for the consumer's setting in Java; here None stands for it as well."""


@dataclass(slots=True, eq=False)
class ConsumeMessageOrderlyService:
    """Calls an orderly listener with the messages of each queue in turn."""

    is_orderly: ClassVar = True

    listener: MessageListenerOrderly
    threads: ThreadScheduler
    retries: Redelivery | None
    """None in BROADCASTING: messages that fail are retried forever."""
    acknowledge: AcknowledgeFunction
    is_locked: Callable[[PullRequest], bool] | None
    """Returns at once whether this consumer has locked a queue; if not, requests the lock."""
    on_listener_done: Callable[[PullRequest], object]
    """Called with a revoked queue once no listener uses it any more."""
    batch_size: int
    suspend_ms: int
    failures: ListenerFailureLog = field(default_factory=ListenerFailureLog)

    def submit(self, request: PullRequest, messages: Sequence[MessageExt] = ()) -> None:  # noqa: ARG002  # messages wait in the process queue
        """Submit waiting messages to the listener, unless the queue is suspended."""
        if not request.is_suspended:
            self.threads.schedule(lambda: self._consume_queue(request))

    def _suspend_queue(self, request: PullRequest, delay_ms: int) -> None:
        def resume() -> None:
            request.is_suspended = False
            self._consume_queue(request)

        request.is_suspended = True
        self.threads.schedule(resume, delay_ms)

    def _consume_queue(self, request: PullRequest) -> None:
        queue = request.process_queue
        while queue.has_waiting and _is_active(request) and not request.is_suspended:
            if not queue.consuming.acquire(blocking=False):
                return  # the thread that holds the lock checks again after releasing it
            delay_ms = self.suspend_ms  # if anything fails
            try:
                delay_ms = self._consume_exclusively(request)
            finally:
                if delay_ms:
                    self._suspend_queue(request, delay_ms)
                queue.consuming.release()

    def _consume_exclusively(self, request: PullRequest) -> int:
        """Consume waiting messages; return a delay if a listener still has earlier ones."""
        if not request.ownership.listener_lock.acquire(blocking=False):
            return YIELD_MS
        try:
            return self._consume_waiting(request)
        finally:
            request.ownership.listener_lock.release()
            if not _is_active(request):
                self.on_listener_done(request)

    def _consume_waiting(self, request: PullRequest) -> int:
        """Consume until no message waits; return 0, or the milliseconds until the next call."""
        since = time.monotonic()
        while _is_active(request):
            if self.is_locked is not None and not self.is_locked(request):
                return NOT_LOCKED_MS
            if (time.monotonic() - since) * 1000 > CONTINUOUSLY_MS_MAX:
                return YIELD_MS
            batch = request.process_queue.take_messages(self.batch_size)
            if not batch:
                break
            delay_ms = self._consume(request, batch)
            if delay_ms:
                return delay_ms
        return 0

    def _consume(self, request: PullRequest, batch: Sequence[MessageExt]) -> int:
        properties = [dict(message.properties) for message in batch]
        try:
            status, suspend_ms = self.call_listener(request, batch)
            if status is not ConsumeOrderlyStatus.SUCCESS:
                batch = restore_properties(batch, properties)
                retried = [message for message in batch if not self._sent_to_dlq(message)]
                if retried:
                    request.process_queue.put_back(
                        [
                            replace(each, reconsume_times=each.reconsume_times + 1)
                            for each in retried
                        ]
                    )
                    dead_letters = [message for message in batch if message not in retried]
                    self.acknowledge(request, dead_letters)
                    return suspend_ms
            self.acknowledge(request, batch)
        except BaseException:  # unfinished messages go back to the front of the queue
            request.process_queue.put_back(restore_properties(batch, properties))
            raise
        return 0

    def call_listener(
        self, request: PullRequest, batch: Sequence[MessageExt]
    ) -> tuple[ConsumeOrderlyStatus, int]:
        """Call the listener; return its status, and the milliseconds to wait if it failed."""
        context = ConsumeOrderlyContext(request.queue)
        status = call_listener(
            *(self.listener, batch, context, ConsumeOrderlyStatus.SUCCESS), self.failures
        )
        suspend_ms = context.suspend_current_queue_time_ms
        return (
            ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT if status is None else status,
            self.suspend_ms if suspend_ms is None else self._check_suspend_ms(suspend_ms),
        )

    def _check_suspend_ms(self, found: object) -> int:
        """Return the delay that a listener has set; the default if it is not a valid time."""
        name = "suspend_current_queue_time_ms"
        if isinstance(found, int) and found < 0:
            if found != JAVA_DEFAULT:
                text = (
                    "the listener set %s to %s: needed a number of %d or more, or None for the "
                    "setting's %d"
                )
                _log.error(text, name, excerpt(found), SUSPEND_MS_MIN, self.suspend_ms)
            return self.suspend_ms
        return clamp_listener_value(name, found, self.suspend_ms, SUSPEND_MS_MIN, INT32_MAX)

    def _sent_to_dlq(self, message: MessageExt) -> bool:
        retries = self.retries
        return (
            retries is not None
            and message.reconsume_times >= retries.max_reconsume_times
            and retries.send_to_dlq(message)
        )


def _is_active(request: PullRequest) -> bool:
    return not request.process_queue.is_dropped and not request.process_queue.is_retired


# ---- BrokerQueueLocks: the brokers' locks of an orderly member. Requests run in the brokers'
# executors. If another member of this process had the queue before, its lock is requested only
# after that member's listener has finished.
#
#     acquired     before the first pull of a queue, all of a broker at once; retried each second
#     renewed      every 20 s; a lock counts for 30 s here, and for 60 s at the broker
#     released     after the offset is stored, when no listener has messages of the queue any more

LOCK_INTERVAL_MS: Final = 20_000
_LOCK_WAIT_MS: Final = 5_000


@dataclass(slots=True, eq=False)
class BrokerQueueLocks:
    """The locks of one member's queues. Methods may be called from any thread."""

    brokers: GroupBrokerClient
    executor: PerBrokerExecutor
    requests: Callable[[], Iterable[PullRequest]]
    """Returns the member's queues."""
    persist: Callable[[Iterable[MessageQueue]], None]
    """Stores the offsets at which the next owners begin."""
    on_unlocked: Callable[[Sequence[PullRequest]], None]
    """Called with queues after their unlock request, whatever its outcome."""
    prefetch_offsets: Callable[[Iterable[MessageQueue]], None]
    """Called with the queues of one broker that are locked and about to start."""

    def lock_all(self) -> None:
        """Lock all queues, or renew their locks."""
        queues = [request.queue for request in self.requests()]
        self.executor.run_for_each(group_by_broker(queues), self._lock, _LOCK_WAIT_MS)

    def _lock(self, broker_name: str) -> None:
        requests = [
            each
            for each in self.requests()
            if each.queue.broker_name == broker_name
            and not each.process_queue.is_dropped
            and each.ownership.acquire(self)
        ]
        # The lock counts from the request on: the broker may grant it long before it answers.
        requested_at_ms = monotonic_ms()
        for request in requests:
            request.lock_requested_at_ms = requested_at_ms
        locked = self.brokers.lock(request.queue for request in requests)
        for request in requests:
            request.process_queue.set_locked(requested_at_ms, locked=request.queue in locked)
        self.prefetch_offsets(
            request.queue
            for request in requests
            if request.queue in locked and request.next_offset is None
        )

    def ensure_locked(self, request: PullRequest) -> bool:
        """Return whether a queue is locked; if not, request the lock, at most once a second."""
        queue, requested_at_ms = request.process_queue, request.lock_requested_at_ms
        if queue.is_locked:
            return True
        if requested_at_ms is None or monotonic_ms() - requested_at_ms >= NOT_LOCKED_MS:
            self._lock(request.queue.broker_name)
        return queue.is_locked

    def check_locked(self, request: PullRequest) -> bool:
        """Return whether a queue is locked; if not, request the lock in its broker's executor."""
        if not request.process_queue.is_locked:
            self.executor.for_broker(request.queue.broker_name).schedule(
                lambda: self.ensure_locked(request)
            )
        return request.process_queue.is_locked

    def invalidate(self, address: str) -> None:
        """Invalidate the locks of the broker at ``address``; its queues must be locked again.

        A restarted broker has no locks, and may grant them to others.
        """
        for request in self.requests():
            if self.brokers.may_be_at(request.queue.broker_name, address):
                request.process_queue.invalidate_lock()
                request.lock_requested_at_ms = None

    def unlock(self, requests: Iterable[PullRequest]) -> None:
        """Unlock revoked queues, after all earlier requests to their brokers."""
        given_up = {request.queue: request for request in requests}
        for broker_name, queues in group_by_broker(given_up).items():
            own = [given_up[queue] for queue in queues]
            self.executor.for_broker(broker_name).schedule(partial(self._unlock_now, own))

    def _unlock_now(self, requests: Sequence[PullRequest]) -> None:
        try:
            with ExitStack() as stack:
                own = [
                    request.queue
                    for request in requests
                    if stack.enter_context(request.ownership.pin(self))
                ]
                self.persist(own)
                self.brokers.unlock(own)
        except ClientError as error:
            _log.warning(
                "unlocking failed, %s stays locked for a minute: %s",
                requests[0].queue,
                error,
            )
        finally:
            self.on_unlocked(requests)
