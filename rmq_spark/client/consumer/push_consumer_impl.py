"""PushMember: a listener is called with the messages of the topics that are subscribed to.

    rebalance ──▶ pull requests ──▶ pull message service ──▶ process queues ──▶ consume service
                                                                                   └──▶ listener

A concurrent listener is called by many threads in no order, and may get each message again later;
an orderly one gets each queue's messages one after the other, from queues that the broker has
locked. Such a queue is given up only when the listener has ended what it is doing: nobody else may
have it before. Offsets follow what was consumed, and are persisted every 5 s.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from types import NoneType
from typing import TYPE_CHECKING

from rmq_spark.client.arguments import check_kind
from rmq_spark.client.concurrency.fork_aware import ProcessBound
from rmq_spark.client.concurrency.lifecycle import Countdown
from rmq_spark.client.concurrency.locks import reentrant_mutex
from rmq_spark.client.concurrency.per_broker_executor import Lanes
from rmq_spark.client.concurrency.scheduler import Repeated, ScheduledTasks, Workers
from rmq_spark.client.consumer.base_consumer_impl import GroupMember
from rmq_spark.client.consumer.brokers.broker_client import Pull
from rmq_spark.client.consumer.clock import monotonic_ms
from rmq_spark.client.consumer.dispatch.consume_concurrently import (
    ConsumeMessageConcurrentlyService,
)
from rmq_spark.client.consumer.dispatch.consume_directly import consumed_directly
from rmq_spark.client.consumer.dispatch.consume_orderly import ConsumeMessageOrderlyService
from rmq_spark.client.consumer.dispatch.listeners import (
    ConsumeConcurrentlyStatus,
    ConsumeOrderlyStatus,
    MessageListenerConcurrently,
    MessageListenerOrderly,
    check_listener,
)
from rmq_spark.client.consumer.dispatch.queue_locks import LOCK_INTERVAL_MS, BrokerLocks
from rmq_spark.client.consumer.dispatch.redelivery import (
    CONCURRENT_TIMES_MAX,
    ORDERLY_TIMES_MAX,
    Retries,
)
from rmq_spark.client.consumer.offsets.offset_store import ReadOffsetType
from rmq_spark.client.consumer.pull.pull_message_service import PullMessageService, PullRequest
from rmq_spark.client.consumer.pull.pull_task import Abandon, Then
from rmq_spark.client.consumer.queues.process_queue import ProcessQueue
from rmq_spark.client.consumer.queues.queue_identity import LastKnown, Place
from rmq_spark.client.consumer.queues.queue_ownership import HOLDINGS
from rmq_spark.client.consumer.rebalance.rebalance import Share
from rmq_spark.client.consumer.service_state import ConsumerInstance
from rmq_spark.client.consumer.settings import PushSettings
from rmq_spark.client.message import MessageExt
from rmq_spark.client.observing import observed
from rmq_spark.client.subscriptions import by_tag, subscription_data
from rmq_spark.wire.bodies.clients import ConsumeType, MessageModel
from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.names import retry_topic

if TYPE_CHECKING:
    from rmq_spark.wire.bodies.client_info import ConsumeMessageDirectlyResult, ProcessQueueInfo

_log = logging.getLogger(__name__)


class PushMember(GroupMember):
    """The consumer behind a `PushConsumer`, with all that other rooms need of it."""

    consume_type = ConsumeType.CONSUME_PASSIVELY
    _called = "PushConsumer"

    def __init__(
        self,
        group: str,
        instance: ConsumerInstance | str | None = None,
        *,
        listener: MessageListenerConcurrently | None = None,
        orderly_listener: MessageListenerOrderly | None = None,
        settings: PushSettings | None = None,
    ) -> None:
        check_kind(
            "settings",
            settings,
            (PushSettings, NoneType),
            "PushSettings",
            "PushSettings(pull_batch_size=16)",
        )
        self._push = settings or PushSettings()
        super().__init__(group, instance, self._push)
        self._is_clustering = self._push.message_model is MessageModel.CLUSTERING
        self._requests: dict[MessageQueue, PullRequest] = {}
        self._changing_requests = reentrant_mutex()
        self._is_paused = False
        self._threads = ScheduledTasks(f"{group} listener", self._push.consume_thread_max)
        self._pull_service = PullMessageService(
            self,
            self._lanes,
            self._push.limits,
            self._push.pull_interval_ms,
            self._push.pull_time_delay_ms_when_exception,
        )
        self._locks = BrokerLocks(
            self._brokers,
            self._lanes,
            self._all_requests,
            self._offsets.persist_now,
            self._unlocked,
            self._offsets.expect,
        )
        self._service = self._new_service(listener, orderly_listener)
        self._needs_locks = self._service.is_orderly and self._is_clustering
        self._last_listener = Countdown(self._end, self)
        self._locking = Repeated(self._services, self._locks.lock_all, LOCK_INTERVAL_MS)
        self._cleaning = Repeated(
            self._services, self._clean_expired, self._push.consume_timeout_ms
        )
        ProcessBound.__init__(self)

    def _new_service(
        self,
        listener: MessageListenerConcurrently | None,
        orderly_listener: MessageListenerOrderly | None,
    ) -> ConsumeMessageConcurrentlyService | ConsumeMessageOrderlyService:
        size = self._push.consume_message_batch_max_size
        if listener is not None and orderly_listener is None:
            check_listener("listener", listener, "messages", "context")
            return ConsumeMessageConcurrentlyService(
                listener=observed(self.group, listener, ConsumeConcurrentlyStatus.CONSUME_SUCCESS),
                threads=self._threads,
                lanes=self._retry_lanes,
                retries=self._retries(CONCURRENT_TIMES_MAX),
                acknowledge=self._acknowledge,
                batch_size=size,
            )
        if orderly_listener is not None and listener is None:
            check_listener("orderly_listener", orderly_listener, "messages", "context")
            return ConsumeMessageOrderlyService(
                listener=observed(self.group, orderly_listener, ConsumeOrderlyStatus.SUCCESS),
                threads=self._threads,
                retries=self._retries(ORDERLY_TIMES_MAX),
                acknowledge=self._acknowledge,
                lock=self._locks.has_now if self._is_clustering else None,
                ended=self._listener_ended,
                batch_size=size,
                suspend_ms=self._push.suspend_current_queue_time_ms,
            )
        found = "neither" if listener is None else "both"
        needed = "listener= or orderly_listener="
        raise TypeError(f"a push consumer has one listener: needed {needed}, found {found}")

    def _retries(self, times_max: int) -> Retries | None:
        if not self._is_clustering:
            return None
        times = self._push.max_reconsume_times
        return Retries(
            self.group,
            self._brokers,
            self._instance.api,
            self._instance.routes,
            times_max if times < 0 else times,
        )

    # ---- life

    def _join(self) -> None:
        if self._is_clustering:
            topic = retry_topic(self.group)
            data = subscription_data(topic, by_tag(), time.time_ns() // 1_000_000)
            with self._changing_subscriptions:
                self._subscriptions = {**self._subscriptions, topic: data}
        super()._join()
        if self._needs_locks:
            self._locking.start(LOCK_INTERVAL_MS)
        if not self._service.is_orderly:
            self._cleaning.start(self._push.consume_timeout_ms)

    def _stop_consuming(self) -> None:
        self._cleaning.stop()
        self._is_paused = True
        # Offsets of listeners that end in time count; what has not begun does not begin.
        self._threads.stop(self._push.await_termination_ms)
        requests = self._all_requests()
        self._last_listener.wait_for(*requests)
        through = [request for request in requests if self._is_through(request)]
        if self._needs_locks:
            self._locks.unlock(through)
        self._last_listener.ended(*through)

    def _end_behind_listeners(self) -> None:
        """End when all queues are given up; until then they stay locked, up to a stated time."""
        self._services.schedule(self._give_up_on_listeners, self._push.consume_timeout_ms)
        self._last_listener.ended(self)

    def _give_up_on_listeners(self) -> None:
        text = "%s has left %d ms ago, and is at a listener still: its locks are renewed no more"
        _log.warning(text, self.group, self._push.consume_timeout_ms)
        self._last_listener.end()

    def end_threads(self, wait_ms: int = 0) -> None:
        """Have all threads end, those of listeners behind what they are doing."""
        super().end_threads(wait_ms)
        self._threads.stop(0)

    def _forked(self) -> None:
        """Drop all queues of a consumer that was started: the parent process consumes them."""
        super()._forked()
        self._changing_requests = reentrant_mutex()
        for request in self._requests.values():
            request.process_queue.forked()
        self._requests = {}

    def suspend(self) -> None:
        """Stop pulling until `resume`; messages that were pulled are still consumed."""
        self._check_not_over()
        self._is_paused = True

    def resume(self) -> None:
        """Pull again after `suspend`."""
        self._check_not_over()
        for request in self._all_requests():  # their lane may have noticed no pause
            request.last_known.paused()
        self._is_paused = False

    @property
    def is_paused(self) -> bool:
        """True while pulling is suspended."""
        return self._is_paused

    # ---- which queues

    def _queues(self) -> frozenset[MessageQueue]:
        with self._changing_requests:
            return frozenset(self._requests)

    def _last_known(self) -> Mapping[MessageQueue, LastKnown]:
        with self._changing_requests:
            return {queue: request.last_known for queue, request in self._requests.items()}

    def _process_queues(self) -> list[ProcessQueue[MessageExt]]:
        return [request.process_queue for request in self._all_requests()]

    def _all_requests(self) -> list[PullRequest]:
        with self._changing_requests:
            return list(self._requests.values())

    def _schedulers(self) -> list[Workers | Lanes]:
        return [*super()._schedulers(), self._threads]

    def assignment(self) -> frozenset[MessageQueue]:
        """Return the queues that this consumer has now."""
        return self._queues()

    def topics_of_queues(self) -> Iterable[str]:
        """Return the topics of this consumer's queues: an orderly listener may keep one."""
        return [queue.topic for queue in self._queues()]

    def _pull_anew(self, topic: str) -> None:
        for request in self._all_requests():
            if request.queue.topic == topic:
                self._pull_service.pull_anew(request)

    def take_share(self, topic: str, share: Share) -> bool:
        """Have these queues of a ``topic``; return False if a listener is busy with another."""
        mine = frozenset(share.mine)
        with self._changing_requests:
            leaving = [
                request
                for queue, request in self._requests.items()
                if queue.topic == topic and (queue not in mine or _is_over(request.process_queue))
            ]
        settled = True
        for request in leaving:
            settled &= self._let_go(request)
        with self._changing_requests:  # so that a broker's queues are locked together
            new = sorted(mine - self._requests.keys())
            if not self._needs_locks:  # else when they are: who has them locked may go on till then
                self._offsets.begin_together(new)
            for queue in new:
                self._put_request(queue, None)
        return settled

    def _put_request(
        self, queue: MessageQueue, offset: int | None, last_known: LastKnown | None = None
    ) -> None:
        """Have a queue pulled, unless it was unsubscribed, or the consumer shut down, meanwhile."""
        cluster = frozenset(self._instance.name_servers.addresses)
        request = PullRequest(
            queue,
            ProcessQueue(monotonic_ms),
            offset,
            last_known=last_known or LastKnown(),
            holding=HOLDINGS.of((cluster, self._instance.client_id, self.group, queue)),
        )
        if offset is not None:
            request.process_queue.begin_at(offset)
        with self._changing_requests:
            if not self.is_running or queue.topic not in self._subscriptions:
                return
            self._requests[queue] = request
        self._pull_service.execute_pull_request_immediately(request)

    def _let_go(self, request: PullRequest) -> bool:
        """Give a queue up; return False if an orderly listener is still busy with it."""
        if not self._is_through(request):
            return False
        with self._changing_requests:
            is_mine = self._requests.get(request.queue) is request
            if is_mine:
                del self._requests[request.queue]
        if is_mine:
            self._offsets.forget(request.queue, request.last_known)
            if self._needs_locks:
                self._locks.unlock((request,))
        return True

    def _is_through(self, request: PullRequest) -> bool:
        """Drop what is left of a queue; return False, and begin no more, if it is at a listener."""
        if not self._needs_locks:
            request.process_queue.drop()
            return True
        request.process_queue.retire()
        if not request.holding.is_of(self._locks):  # a listener that is at it is another member's
            request.process_queue.drop()
            return True
        if not request.holding.listening.acquire(blocking=False):
            return False
        request.process_queue.drop()
        request.holding.listening.release()
        return True

    def _listener_ended(self, request: PullRequest) -> None:
        """Give the queue of a ``request`` up, if only a listener was in the way of that.

        What it had may be dropped by now, by a reset while it was given up.
        """
        with self._changing_requests:
            current = self._requests.get(request.queue)
        if current is None or not current.process_queue.is_retired:
            return
        if self.is_running or self._last_listener.waits_for(current):
            self._let_go(current)

    def _unlocked(self, requests: Sequence[PullRequest]) -> None:
        self._last_listener.ended(*requests)
        for request in requests:  # meanwhile it could not be given up once more
            self._listener_ended(request)

    def connection_ended(self, address: str) -> None:
        """Have the queues of the broker at ``address`` locked again, before more is consumed."""
        if self._needs_locks:
            self._locks.lose(address)

    # ---- what the pull message service needs

    def may_pull(self, request: PullRequest) -> bool:
        """Return whether a queue may be pulled: one of an orderly consumer must be locked first.

        All queues of a broker are locked with one request.
        """
        return not self._needs_locks or self._locks.has(request)

    def first_offset(self, request: PullRequest) -> Place:
        """Return the place at which to begin the queue of a ``request``."""
        return self._offsets.begin_at(request.queue)

    @property
    def cached_bytes(self) -> int:
        """Number of bytes in the bodies of all messages that were pulled and not yet consumed."""
        return sum(cache.body_bytes for cache in self._process_queues())

    def pull(self, request: PullRequest, then: Then) -> Abandon:
        """Ask the broker of a ``request`` for messages; ``then`` gets its answer."""
        subscription = self._subscriptions.get(request.queue.topic)
        if subscription is None:
            request.process_queue.retire()  # unsubscribed just now
            return lambda: None
        committed = None
        if self._is_clustering and not request.last_known.may_be_another:
            committed = self._offset_store.read_offset(
                request.queue, ReadOffsetType.READ_FROM_MEMORY
            )
        return self._brokers.pull(
            Pull(
                request.queue,
                request.next_offset or 0,
                subscription,
                self._push.pull_batch_size,
                self._push.broker_suspend_max_time_ms,
                self._push.consumer_timeout_ms_when_suspend,
                committed or None,
            ),
            then,
        )

    def bury(self, request: PullRequest, message: MessageExt) -> None:
        """Acknowledge an unreadable message of a ``request`` once it is a dead letter."""
        cache = request.process_queue
        self._dead_letters.bury(
            message, lambda: not cache.is_dropped, lambda: self._acknowledge(request, (message,))
        )

    def consume(self, request: PullRequest, messages: tuple[MessageExt, ...]) -> None:
        """Hand the pulled messages of a ``request`` to the listener."""
        self._service.submit(request, messages)

    def correct_tags_offset(self, request: PullRequest) -> None:
        """Count what the filter passed over for a ``request``, and all before, as consumed."""
        self._acknowledge(request, ())

    def correct_illegal_offset(self, request: PullRequest, offset: int) -> None:
        """Begin the queue of a ``request`` at an offset; what listeners still have moves none."""
        self._restart(request, offset, request.last_known)

    def _restart(self, request: PullRequest, offset: int, last_known: LastKnown) -> bool:
        with self._changing_requests:
            if self._requests.get(request.queue) is not request or not self.is_running:
                return False
            request.process_queue.drop()
            self._offset_store.update_offset(request.queue, offset, increase_only=False)
            self._put_request(request.queue, offset, last_known)
        self._offsets.persist_soon(request.queue)
        return True

    def _go_on_at(self, queue: MessageQueue, offset: int) -> bool:
        with self._changing_requests:
            request = self._requests.get(queue)
        return request is not None and self._restart(request, offset, LastKnown())

    # ---- what was consumed

    def _acknowledge(self, request: PullRequest, messages: Sequence[MessageExt]) -> bool:
        cache = request.process_queue

        def publish(offset: int) -> None:
            # The filter may pass over messages behind the last one.
            reached = offset if cache.message_count else max(offset, request.next_offset or 0)
            self._offset_store.update_offset(request.queue, reached, increase_only=True)

        if not cache.acknowledge(messages, publish):
            return False
        limit = self._push.limits.pull_threshold_for_queue // 2
        if request.is_throttled and cache.message_count <= limit:
            self._pull_service.room_was_made(request)
        return True

    def _clean_expired(self) -> None:
        if isinstance(self._service, ConsumeMessageConcurrentlyService):
            self._service.clean_expired(self._all_requests(), self._push.consume_timeout_ms)

    # ---- what brokers ask

    def consume_directly(
        self, message: MessageExt, broker_name: str
    ) -> ConsumeMessageDirectlyResult:
        """Call the listener with a message of ``broker_name`` that an operator has sent."""
        return consumed_directly(self._service, message, broker_name)

    def _more_properties(self) -> Mapping[str, str]:
        return {
            "PROP_CONSUMEORDERLY": "true" if self._service.is_orderly else "false",
            "PROP_THREADPOOL_CORE_SIZE": str(self._push.consume_thread_max),
        }

    def _queue_infos(self, now_ms: int) -> Mapping[MessageQueue, ProcessQueueInfo]:
        read, memory = self._offset_store.read_offset, ReadOffsetType.READ_FROM_MEMORY
        return {
            request.queue: request.process_queue.info(read(request.queue, memory), now_ms)
            for request in self._all_requests()
        }


def _is_over(queue: ProcessQueue[MessageExt]) -> bool:
    """Return whether a queue has to begin again, if it is still this consumer's."""
    return queue.is_pull_expired or queue.is_retired
