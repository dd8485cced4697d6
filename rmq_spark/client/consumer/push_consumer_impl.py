"""PushConsumerImpl: calls a listener with the messages of the subscribed topics.

    rebalance ──▶ pull requests ──▶ pull message service ──▶ process queues ──▶ consume service
                                                                                   └──▶ listener

A concurrent listener is called by many threads in no order, and may get each message again later.
An orderly listener gets each queue's messages one after the other, from queues that the broker has
locked. An orderly queue is released only after the listener has finished, because no other consumer
may have it before. Offsets follow what was consumed, and are persisted every 5 s.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from rmq_spark.client.concurrency.fork_hooks import ForkAware
from rmq_spark.client.concurrency.lifecycle import Latch
from rmq_spark.client.concurrency.scheduler import (
    PerBrokerExecutor,
    RepeatedTask,
    Scheduler,
    ThreadScheduler,
)
from rmq_spark.client.consumer.base_consumer_impl import BaseConsumerImpl
from rmq_spark.client.consumer.brokers.broker_client import DecodedPull, PullSpec
from rmq_spark.client.consumer.dispatch.consume_services import (
    LOCK_INTERVAL_MS,
    BrokerQueueLocks,
    ConsumeMessageConcurrentlyService,
    ConsumeMessageOrderlyService,
)
from rmq_spark.client.consumer.dispatch.listeners import (
    ConsumeConcurrentlyContext,
    ConsumeConcurrentlyStatus,
    ConsumeOrderlyContext,
    ConsumeOrderlyStatus,
    MessageListenerConcurrently,
    MessageListenerOrderly,
    check_listener,
)
from rmq_spark.client.consumer.dispatch.redelivery import (
    CONCURRENT_TIMES_MAX,
    ORDERLY_TIMES_MAX,
    Redelivery,
)
from rmq_spark.client.consumer.pull.pull_task import (
    FLOW_CONTROL_MS,
    NOT_LOCKED_MS,
    OWNERSHIPS,
    PAUSED_MS,
    AbandonFunction,
    PullCallback,
    PullRequest,
    PullTask,
    RoomFunction,
)
from rmq_spark.client.consumer.queues.process_queue import ProcessQueue, monotonic_ms
from rmq_spark.client.consumer.queues.queue_identity import QueueFingerprint
from rmq_spark.client.consumer.rebalance.rebalance_service import TopicAssignment
from rmq_spark.client.consumer.settings import PushSettings, effective_settings
from rmq_spark.client.failure_log import OutageLog
from rmq_spark.client.instance.instance import ClientInstance
from rmq_spark.client.message import MessageExt
from rmq_spark.client.namespace import Namespace
from rmq_spark.client.observer import observe_listener
from rmq_spark.client.results import PullStatus
from rmq_spark.client.subscriptions import by_tag, subscription_data
from rmq_spark.client.times import Start
from rmq_spark.wire.bodies.clients import ConsumeType, MessageModel
from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.names import retry_topic

if TYPE_CHECKING:
    from rmq_spark.wire.bodies.operators import ConsumeMessageDirectlyResult, ProcessQueueInfo


def call_listener_directly(
    service: ConsumeMessageConcurrentlyService | ConsumeMessageOrderlyService,
    message: MessageExt,
    broker_name: str,
) -> ConsumeMessageDirectlyResult:
    """Call a service's listener with a message; return the result and the time that it took."""
    from rmq_spark.wire.bodies.operators import ConsumeMessageDirectlyResult, ConsumeResult  # noqa: PLC0415  # rarely needed

    started_at = time.monotonic()
    queue = replace(message.queue, broker_name=broker_name or message.queue.broker_name)
    request = PullRequest(queue, ProcessQueue(monotonic_ms), 0)
    if isinstance(service, ConsumeMessageOrderlyService):
        status, _ = service.call_listener(request, (message,))
        succeeded = status is ConsumeOrderlyStatus.SUCCESS
    else:
        succeeded = service.call_listener(request, (message,))[0] > 0
    return ConsumeMessageDirectlyResult(
        order=service.is_orderly,
        consume_result=ConsumeResult.CR_SUCCESS if succeeded else ConsumeResult.CR_LATER,
        spent_time_mills=int((time.monotonic() - started_at) * 1000),
    )


_log = logging.getLogger(__name__)

_Context = TypeVar("_Context", ConsumeConcurrentlyContext, ConsumeOrderlyContext)
_Status = TypeVar("_Status", ConsumeConcurrentlyStatus, ConsumeOrderlyStatus)


class PushConsumerImpl(BaseConsumerImpl):
    """The implementation of `PushConsumer`, including what other modules call."""

    consume_type = ConsumeType.CONSUME_PASSIVELY
    _public_name = "PushConsumer"

    def __init__(
        self,
        group: str,
        namesrv: str | Iterable[str] | None = None,
        *,
        instance: ClientInstance | None = None,
        listener: MessageListenerConcurrently | None = None,
        orderly_listener: MessageListenerOrderly | None = None,
        settings: PushSettings | None = None,
        start: Start | None = None,
        namespace: str | None = None,
    ) -> None:
        self._push_settings = effective_settings(PushSettings, settings, start)
        super().__init__(group, namesrv, instance, self._push_settings, namespace)
        self._is_clustering = self._push_settings.message_model is MessageModel.CLUSTERING
        self._requests: dict[MessageQueue, PullRequest] = {}
        self._requests_lock = threading.RLock()
        self.is_paused = False
        self._listener_scheduler = ThreadScheduler(
            f"{group} listener", self._push_settings.consume_thread_max
        )
        self._outage_log = OutageLog("pulling")
        self._locks = BrokerQueueLocks(
            self._brokers,
            self._broker_executor,
            self._pulled_queues,
            self._offset_manager.persist_now,
            self._on_unlocked,
            self._offset_manager.prefetch,
        )
        self._service = self._new_service(listener, orderly_listener)
        self._needs_locks = self._service.is_orderly and self._is_clustering
        self._listener_latch = Latch(self._stop_now, self)
        self._lock_task = RepeatedTask(
            self._service_scheduler, self._locks.lock_all, LOCK_INTERVAL_MS
        )
        self._expiry_task = RepeatedTask(
            self._service_scheduler, self._clean_expired, self._push_settings.consume_timeout_ms
        )
        ForkAware.__init__(self)

    def _new_service(
        self,
        listener: MessageListenerConcurrently | None,
        orderly_listener: MessageListenerOrderly | None,
    ) -> ConsumeMessageConcurrentlyService | ConsumeMessageOrderlyService:
        size = self._push_settings.consume_message_batch_max_size
        if listener is not None and orderly_listener is None:
            check_listener("listener", listener, "messages", "context")
            return ConsumeMessageConcurrentlyService(
                listener=self._wrap(listener, ConsumeConcurrentlyStatus.CONSUME_SUCCESS),
                threads=self._listener_scheduler,
                retry_executor=self._retry_executor,
                retries=self._new_redelivery(CONCURRENT_TIMES_MAX),
                acknowledge=self._acknowledge,
                batch_size=size,
            )
        if orderly_listener is not None and listener is None:
            check_listener("orderly_listener", orderly_listener, "messages", "context")
            return ConsumeMessageOrderlyService(
                listener=self._wrap(orderly_listener, ConsumeOrderlyStatus.SUCCESS),
                threads=self._listener_scheduler,
                retries=self._new_redelivery(ORDERLY_TIMES_MAX),
                acknowledge=self._acknowledge,
                is_locked=self._locks.check_locked if self._is_clustering else None,
                on_listener_done=self._on_listener_done,
                batch_size=size,
                suspend_ms=self._push_settings.suspend_current_queue_time_ms,
            )
        found = "neither" if listener is None else "both"
        needed = "either listener= or orderly_listener="
        raise TypeError(f"a push consumer has one listener: needed {needed}, found {found}")

    def _wrap(
        self, listener: Callable[[list[MessageExt], _Context], _Status | None], success: _Status
    ) -> Callable[[list[MessageExt], _Context], _Status | None]:
        """Return a listener that is traced and observed, and gets names within the namespace."""
        listener = self._strip_names(listener)
        if self._tracer is not None:
            listener = self._tracer.trace_listener(listener, success)
        return observe_listener(self.group, listener, success)

    def _strip_names(
        self, listener: Callable[[list[MessageExt], _Context], _Status | None]
    ) -> Callable[[list[MessageExt], _Context], _Status | None]:
        """Return a listener that calls the given one with names within the namespace."""
        namespace: Namespace = self.namespace
        if not namespace:
            return listener

        def listen(messages: list[MessageExt], context: _Context) -> _Status | None:
            context.queue = namespace.strip_queue(context.queue)
            return listener([*map(namespace.strip_message, messages)], context)

        return listen

    def _new_redelivery(self, times_max: int) -> Redelivery | None:
        if not self._is_clustering:
            return None
        times = self._push_settings.max_reconsume_times
        return Redelivery(
            self.group,
            self._brokers,
            self._instance.api,
            self._instance.routes,
            times_max if times < 0 else times,
        )

    # ---- life cycle

    def _join_group(self) -> None:
        if self._is_clustering:
            topic = retry_topic(self.group)
            data = subscription_data(topic, by_tag(), time.time_ns() // 1_000_000)
            self._set_subscription(data)
        super()._join_group()
        if self._needs_locks:
            self._lock_task.start(LOCK_INTERVAL_MS)
        if not self._service.is_orderly:
            self._expiry_task.start(self._push_settings.consume_timeout_ms)

    def _stop_consuming(self) -> None:
        self._expiry_task.stop()
        self.is_paused = True
        # Offsets of listeners that finish in time are stored; no further message is started.
        self._listener_scheduler.stop(self._push_settings.await_termination_ms)
        requests = self._pulled_queues()
        self._listener_latch.add(*requests)
        through = [request for request in requests if self._try_retire(request)]
        if self._needs_locks:
            self._locks.unlock(through)
        self._listener_latch.count_down(*through)

    def _stop_after_listeners(self) -> None:
        """Shut down when listeners have released all queues; locks are held for a limited time."""
        self._service_scheduler.schedule(
            self._abandon_listeners, self._push_settings.consume_timeout_ms
        )
        self._listener_latch.count_down(self)

    def _abandon_listeners(self) -> None:
        text = (
            "%s left the group %d ms ago, but a listener still runs: its queue locks are no "
            "longer renewed"
        )
        _log.warning(text, self.group, self._push_settings.consume_timeout_ms)
        self._listener_latch.release()

    def stop_threads(self, wait_ms: int = 0) -> None:
        """Stop all threads; those of listeners finish their messages first."""
        super().stop_threads(wait_ms)
        self._listener_scheduler.stop(0)

    def _after_fork(self) -> None:
        super()._after_fork()
        self._requests_lock = threading.RLock()
        for request in self._requests.values():
            request.process_queue.after_fork()
        self._requests = {}

    def suspend(self) -> None:
        """Stop pulling until `resume`; messages that were pulled are still consumed."""
        self._check_startable_or_running()
        self.is_paused = True

    def resume(self) -> None:
        """Pull again after `suspend`."""
        self._check_startable_or_running()
        for request in self._pulled_queues():  # the tasks may not have noticed the pause
            request.fingerprint.record_pause()
        self.is_paused = False

    # ---- assigned queues

    def _pulled_queues(self) -> list[PullRequest]:
        with self._requests_lock:
            return list(self._requests.values())

    def _schedulers(self) -> list[Scheduler | PerBrokerExecutor]:
        return [*super()._schedulers(), self._listener_scheduler]

    def assigned_topics(self) -> Iterable[str]:
        """Return the topics of this consumer's queues; a busy orderly listener may keep one."""
        return [queue.topic for queue in self._own_queues()]

    def _restart_pulls(self, topic: str) -> None:
        for request in self._pulled_queues():
            if request.queue.topic == topic and isinstance(request.task, PushPullTask):
                request.task.restart()

    def apply_assignment(self, topic: str, share: TopicAssignment) -> bool:
        """Apply these queues of a ``topic``; return False if a busy listener keeps others."""
        own_queues = frozenset(share.own)
        has_released_all = True
        for request in self._pulled_queues():
            if request.queue.topic == topic:
                cache = request.process_queue
                if request.queue not in own_queues or cache.is_pull_expired or cache.is_retired:
                    has_released_all &= self._release_queue(request)
        with self._requests_lock:  # so that a broker's queues are locked together
            new = sorted(own_queues - self._requests.keys())
            # a locked queue is prefetched later: until the lock, its previous owner may commit
            if not self._needs_locks:
                self._offset_manager.schedule_prefetch(new)
            for queue in new:
                self._add_request(queue, None)
        return has_released_all

    def _add_request(
        self, queue: MessageQueue, offset: int | None, fingerprint: QueueFingerprint | None = None
    ) -> None:
        """Start pulling a queue, unless it was unsubscribed or the consumer shut down meanwhile."""
        cluster = frozenset(self._instance.name_servers.addresses)
        request = PullRequest(
            queue,
            ProcessQueue(monotonic_ms),
            offset,
            fingerprint=fingerprint or QueueFingerprint(),
            ownership=OWNERSHIPS.get((cluster, self._instance.client_id, self.group, queue)),
        )
        if offset is not None:
            request.process_queue.set_initial_offset(offset)
        request.task = PushPullTask(
            *(request, self, self._broker_executor.for_broker(queue.broker_name)),
            *(self._push_settings.limits, self._outage_log),
            self._push_settings.pull_time_delay_ms_when_exception,
            self._push_settings.pull_interval_ms,
        )
        with self._requests_lock:
            if not self.is_running or queue.topic not in self._subscriptions:
                return
            self._requests[queue] = request
        request.task.start()

    def _release_queue(self, request: PullRequest) -> bool:
        """Release a queue; return False if an orderly listener is still busy with it."""
        if not self._try_retire(request):
            return False
        with self._requests_lock:
            is_current = self._requests.get(request.queue) is request
            if is_current:
                del self._requests[request.queue]
        if is_current:
            self._offset_manager.release(request.queue, request.fingerprint)
            if self._needs_locks:
                self._locks.unlock((request,))
        return True

    def _try_retire(self, request: PullRequest) -> bool:
        """Drop a queue; if a listener is busy with it, only retire it and return False."""
        if not self._needs_locks:
            request.process_queue.drop()
            return True
        request.process_queue.retire()
        # without the ownership, no listener of this member has its messages
        if request.ownership.owner is not self._locks:
            request.process_queue.drop()
            return True
        if not request.ownership.listener_lock.acquire(blocking=False):
            return False
        request.process_queue.drop()
        request.ownership.listener_lock.release()
        return True

    def _on_listener_done(self, request: PullRequest) -> None:
        """Release the queue of a ``request`` if only a busy listener had prevented that.

        Its messages may have been dropped meanwhile by a reset.
        """
        with self._requests_lock:
            current = self._requests.get(request.queue)
        if current is None or not current.process_queue.is_retired:
            return
        if self.is_running or self._listener_latch.has(current):
            self._release_queue(current)

    def _on_unlocked(self, requests: Sequence[PullRequest]) -> None:
        self._listener_latch.count_down(*requests)
        for request in requests:  # nothing else releases the queues meanwhile
            self._on_listener_done(request)

    def on_connection_closed(self, address: str) -> None:
        """Lock the queues of the broker at ``address`` again before more is consumed."""
        if self._needs_locks:
            self._locks.invalidate(address)

    # ---- interface for pull tasks

    def may_pull(self, request: PullRequest) -> bool:
        """Return whether a queue may be pulled; an orderly consumer must lock it first.

        All queues of a broker are locked with one request.
        """
        return not self._needs_locks or self._locks.ensure_locked(request)

    def pull(
        self, request: PullRequest, callback: PullCallback, room_bytes: RoomFunction
    ) -> AbandonFunction:
        """Pull messages for a ``request``; ``callback`` gets the response."""
        subscription = self._subscriptions.get(request.queue.topic)
        if subscription is None:
            request.process_queue.retire()  # unsubscribed just now
            return lambda: None
        committed = None
        if self._is_clustering and not request.fingerprint.may_be_recreated:
            committed = self._offset_store.known_offset(request.queue)
        return self._brokers.pull(
            PullSpec(
                request.queue,
                request.next_offset or 0,
                subscription,
                self._push_settings.pull_batch_size,
                self._push_settings.broker_suspend_max_time_ms,
                self._push_settings.consumer_timeout_ms_when_suspend,
                committed or None,
            ),
            callback,
            room_bytes,
        )

    def send_to_dlq(self, request: PullRequest, message: MessageExt) -> None:
        """Acknowledge an unreadable message of a ``request`` once it is a dead letter."""
        cache = request.process_queue
        self._dead_letter_queue.send(
            message, lambda: not cache.is_dropped, lambda: self._acknowledge(request, (message,))
        )

    def consume(self, request: PullRequest, messages: tuple[MessageExt, ...]) -> None:
        """Hand the pulled messages of a ``request`` to the listener."""
        self._service.submit(request, messages)

    def correct_tags_offset(self, request: PullRequest) -> None:
        """Count what the filter skipped for a ``request``, and all before it, as consumed."""
        self._acknowledge(request, ())

    def correct_illegal_offset(self, request: PullRequest, offset: int) -> None:
        """Restart a ``request``'s queue at an offset, which messages in listeners move no more."""
        self._restart_queue(request, offset, request.fingerprint)

    def _restart_queue(
        self, request: PullRequest, offset: int, fingerprint: QueueFingerprint
    ) -> bool:
        with self._requests_lock:
            if self._requests.get(request.queue) is not request or not self.is_running:
                return False
            request.process_queue.drop()
            self._offset_store.update_offset(request.queue, offset, increase_only=False)
            self._add_request(request.queue, offset, fingerprint)
        self._offset_manager.schedule_persist(request.queue)
        return True

    def _reset_queue(self, queue: MessageQueue, offset: int) -> bool:
        with self._requests_lock:
            request = self._requests.get(queue)
        return request is not None and self._restart_queue(request, offset, QueueFingerprint())

    # ---- what was consumed

    def _acknowledge(self, request: PullRequest, messages: Sequence[MessageExt]) -> bool:
        cache = request.process_queue

        def publish(offset: int) -> None:
            # The filter may have skipped messages past the last one.
            reached = offset if cache.message_count else max(offset, request.next_offset or 0)
            self._offset_store.update_offset(request.queue, reached, increase_only=True)

        if not cache.acknowledge(messages, publish):
            return False
        if (task := request.task) is not None and task.is_throttled:
            limit = self._push_settings.limits.pull_threshold_for_queue // 2
            if cache.message_count <= limit:
                task.resume_throttled()
        return True

    def _clean_expired(self) -> None:
        if isinstance(self._service, ConsumeMessageConcurrentlyService):
            self._service.clean_expired(
                self._pulled_queues(), self._push_settings.consume_timeout_ms
            )

    # ---- requests of brokers

    def consume_directly(
        self, message: MessageExt, broker_name: str
    ) -> ConsumeMessageDirectlyResult:
        """Call the listener with a message of ``broker_name`` that an operator has sent."""
        return call_listener_directly(self._service, message, broker_name)

    def _extra_properties(self) -> Mapping[str, str]:
        return {
            "PROP_CONSUMEORDERLY": "true" if self._service.is_orderly else "false",
            "PROP_THREADPOOL_CORE_SIZE": str(self._push_settings.consume_thread_max),
        }

    def _queue_infos(self, now_ms: int) -> Mapping[MessageQueue, ProcessQueueInfo]:
        known_offset = self._offset_store.known_offset
        return {
            request.queue: request.process_queue.info(known_offset(request.queue), now_ms)
            for request in self._pulled_queues()
        }


class PushPullTask(PullTask[PullRequest, PushConsumerImpl]):
    """Pulls one queue of a push consumer; another subscription begins a new epoch."""

    def restart(self) -> None:
        """Abandon the held pull, and pull with the current subscription."""
        with self._mutex:
            if self._pulling_epoch is None:
                return  # the next pull uses the new subscription
            self._queue.epoch += 1
            abandon, self._abandon = self._abandon, None
        self._schedule(0)
        if abandon is not None:
            abandon()

    def _wait_ms(self) -> int | None:
        queue = self._queue.process_queue
        if queue.is_dropped or queue.is_retired:
            return None
        queue.touch_pull()
        self.is_throttled = self._is_cache_full()
        if self.is_throttled:
            return FLOW_CONTROL_MS
        if self._consumer.is_paused:
            self._queue.fingerprint.record_pause()
            return PAUSED_MS
        return 0 if self._consumer.may_pull(self._queue) else NOT_LOCKED_MS

    def _restart_at(self, epoch: int, offset: int) -> None:  # noqa: ARG002  # this task ends
        self._consumer.correct_illegal_offset(self._queue, offset)

    def _send(self, offset: int, callback: PullCallback) -> AbandonFunction:  # noqa: ARG002  # the request has the offset
        return self._consumer.pull(self._queue, callback, self.room_bytes)

    def _on_success(self, epoch: int, offset: int, result: DecodedPull) -> int | None:
        request, consumer = self._queue, self._consumer
        if result.status is PullStatus.OFFSET_ILLEGAL:
            legal = request.fingerprint.legal_offset(request.queue, offset, result)
            if legal is None:
                return 0
            # This waits for brokers, which the thread that reads responses must not do.
            self._scheduler.schedule(lambda: consumer.correct_illegal_offset(request, legal))
            return None
        with self._mutex:  # `restart` runs before this (the response is stale) or after
            # In this order: with an empty process queue, the next offset counts as consumed.
            if epoch != request.epoch or not request.process_queue.put_messages(
                result.messages, result.unreadable
            ):
                return 0
            request.next_offset = result.next_begin_offset
        request.fingerprint.observe(result.messages)
        for message in result.unreadable:
            consumer.send_to_dlq(request, message)
        if result.messages:
            consumer.consume(request, result.messages)
            return self._pull_interval_ms
        consumer.correct_tags_offset(request)
        return 0

    def _may_continue(self) -> bool:
        return False  # the lock or the first offset may be missing
