"""BaseConsumerImpl: the part of the consumers' implementation that both kinds share.

It registers with the client's instance, rebalances every 20 s and when a broker says that the group
has changed, persists offsets every 5 s, and answers brokers' requests to consumers. Background
requests to brokers run in one executor per broker, so that a broker that cannot be reached delays
no other's queues. `lite_pull_consumer_impl` and `push_consumer_impl` add the rest.
"""

from __future__ import annotations

import logging
import time
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from rmq_spark.client.arguments import check_group, check_topic
from rmq_spark.client.concurrency.lifecycle import run_steps
from rmq_spark.client.concurrency.scheduler import (
    PerBrokerExecutor,
    RepeatedTask,
    Scheduler,
    WorkerThreads,
)
from rmq_spark.client.consumer.brokers.broker_client import GroupBrokerClient
from rmq_spark.client.consumer.dispatch.redelivery import DeadLetterQueue
from rmq_spark.client.consumer.group_lifecycle import GroupLifecycle, ServiceState
from rmq_spark.client.consumer.offsets.offset_manager import InitialOffsetRule, OffsetManager
from rmq_spark.client.consumer.offsets.offset_store import OffsetStore, RemoteBrokerOffsetStore
from rmq_spark.client.consumer.pull.pull_task import PulledQueue
from rmq_spark.client.consumer.queues.process_queue import monotonic_ms
from rmq_spark.client.consumer.queues.queue_identity import QueueFingerprint, StartPosition
from rmq_spark.client.consumer.rebalance.rebalance_service import (
    Rebalance,
    RebalanceService,
    TopicAssignment,
)
from rmq_spark.client.consumer.settings import ConsumerSettings
from rmq_spark.client.errors import ClientError, MessageRejected, OffsetMoved
from rmq_spark.client.instance.instance import (
    THREAD_JOIN_MS_MAX,
    ClientInstance,
    require_topics,
)
from rmq_spark.client.message import MessageExt
from rmq_spark.client.namespace import Namespace
from rmq_spark.client.producer.trace_dispatcher import TraceDispatcher
from rmq_spark.client.results import ConsumerHealth
from rmq_spark.client.subscriptions import (
    ALL,
    MessageSelector,
)
from rmq_spark.wire.bodies.clients import ConsumeFromWhere, ConsumerData, ConsumeType, MessageModel
from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.names import RETRY_PREFIX
from rmq_spark.wire.remoting.command import CURRENT_VERSION

if TYPE_CHECKING:
    from rmq_spark.wire.bodies.operators import (
        ConsumeMessageDirectlyResult,
        ConsumerRunningInfo,
        ProcessQueueInfo,
    )

_log = logging.getLogger(__name__)


class BaseConsumerImpl(GroupLifecycle):
    """A member of a consumer group: the base class of both kinds.

    Its methods may be called from any thread. Users hold a `GroupConsumer`, never this class.
    """

    consume_type: ConsumeType
    namespace: Namespace
    """The namespace of the names that users pass and get; this class uses full names."""

    def __init__(
        self,
        group: str,
        namesrv: str | Iterable[str] | None,
        instance: ClientInstance | None,
        settings: ConsumerSettings,
        namespace: str | None = None,
    ) -> None:
        group = check_group(group)
        settings.check()
        super().__init__(group, namesrv, instance, namespace)
        self._settings = settings
        self.namespace = self._instance.namespace
        self.group = self._full_group
        self._tracer = (
            TraceDispatcher(self._instance, group, settings.trace_topic)
            if settings.enable_trace
            else None
        )
        self._topics_cache = self._subscriptions, frozenset[str]()
        current = lambda topic: self._subscriptions.get(topic, None)  # noqa: E731  # changes replace the dict
        self._brokers = GroupBrokerClient(
            *(self._instance, self.group, current),
            starts_at_time=settings.consume_from_where is ConsumeFromWhere.CONSUME_FROM_TIMESTAMP,
        )
        self._offset_store = self._new_offset_store()
        rule = Rebalance(settings.message_model, settings.allocate_message_queue_strategy)
        self._rebalance_service = RebalanceService(self, rule, self._brokers, self._instance)
        threads = self._consumer_threads()
        self._broker_executor = threads.broker_executor
        first = InitialOffsetRule(settings.consume_from_where, settings.consume_timestamp_ms)
        self._offset_manager = OffsetManager(
            *(self._offset_store, self._brokers, self._broker_executor, first),
            self._fingerprints,
            self.message_at,
        )
        self._retry_executor = threads.retry_executor  # messages are sent back one by one
        executor, is_clustering = (
            self._retry_executor,
            settings.message_model is MessageModel.CLUSTERING,
        )
        self._dead_letter_queue = DeadLetterQueue(
            self.group, self._brokers, executor, is_clustering=is_clustering
        )
        self._service_scheduler = threads.service_scheduler
        rebalance_ms = settings.rebalance_interval_ms
        self._is_heartbeat_due = False  # a heartbeat must announce changed subscriptions
        workers, persist_ms = self._service_scheduler, settings.persist_interval_ms
        self._rebalance_task = RepeatedTask(workers, self._do_rebalance, rebalance_ms)
        self._persist_task = RepeatedTask(workers, self._persist, persist_ms)
        self._started_ms = 0

    def _consumer_threads(self) -> WorkerThreads:
        return WorkerThreads(self.group)

    def _new_offset_store(self) -> OffsetStore:
        if self._settings.message_model is MessageModel.BROADCASTING:
            from rmq_spark.client.consumer.offsets.local_offset_store import (  # noqa: PLC0415  # needed for BROADCASTING only
                LocalFileOffsetStore,
                offset_file,
            )

            directory = self._settings.local_offset_directory
            return LocalFileOffsetStore(
                lambda: offset_file(self._instance.persistent_id, self.group, directory)
            )
        return RemoteBrokerOffsetStore(self._brokers)

    # ---- life cycle

    @property
    def service_state(self) -> ServiceState:
        """The state that this consumer is in: created, starting, running, shut down."""
        return self._state_machine.state

    def health(self) -> ConsumerHealth:
        """Return the state of this consumer right now, from memory, without waiting."""
        queues = sorted(self._own_queues())
        return ConsumerHealth(
            is_running=self.is_running,
            queues=len(queues),
            unreachable_queues=tuple(
                self.namespace.strip_queue(each)
                for each in queues
                if not self._brokers.is_ready(each)
            ),
            cached_messages=sum(each.process_queue.message_count for each in self._pulled_queues()),
            cached_bytes=self.cached_bytes,
            dropped_traces=0 if self._tracer is None else self._tracer.dropped_count,
            threads=sum(each.thread_count for each in self._schedulers())
            + (0 if self._tracer is None else self._tracer.thread_count),
            instance_threads=self._instance.thread_count,
        )

    def _schedulers(self) -> list[Scheduler | PerBrokerExecutor]:
        return [self._service_scheduler, self._broker_executor, self._retry_executor]

    def start(self) -> None:
        """Join the group. A consumer can be started only once.

        Raises:
            ClientShutDown: The consumer was started before, or was shut down while it started.
            RouteNotFound: The name servers do not know a topic that is subscribed to.
            ClientError: The brokers cannot be reached, or refuse the subscriptions.
        """
        self._start()

    def _start(self) -> None:
        super()._start()
        self._persist_task.start(self._settings.persist_interval_ms)
        self._rebalance_task.start(0)

    def _prepare_start(self) -> None:
        self._started_ms = time.time_ns() // 1_000_000
        self._offset_store.load()

    def _abandon_start(self) -> None:
        self.stop_threads()

    def _join_group(self) -> None:
        every = self._subscriptions.values()
        own = [each for each in every if not each.topic.startswith(RETRY_PREFIX)]
        # A heartbeat creates the retry topic.
        require_topics(self._instance, (each.topic for each in own))
        for subscription in own:
            self._brokers.check_subscription(subscription)
        self._instance.register_consumer(self.group, self)
        self._is_registered = True
        self._is_heartbeat_due = False
        self._instance.heartbeat()

    def shutdown(self) -> None:
        """Store the offsets and leave the group within two seconds (`GroupConsumer.close`)."""
        self._shut_down()

    def _leave_group(self) -> None:
        if not self._has_joined:
            return
        self._rebalance_task.stop()
        self._persist_task.stop()
        run_steps(
            self.group,
            self._stop_consuming,
            self._persist,
            self._offset_store.stop_overwriting,
            lambda: self._instance.unregister_consumer(self.group),
            self._stop_after_listeners,
        )

    def _stop_after_listeners(self) -> None:
        """End the threads and the instance once no listener needs them."""
        self._stop_now()

    def _stop_now(self) -> None:
        if self._tracer is not None:
            self._tracer.stop()
        run_steps(self.group, self.stop_threads, self._instance.stop)
        self.stop_threads(THREAD_JOIN_MS_MAX // 3)

    def stop_threads(self, wait_ms: int = 0) -> None:
        """Stop all threads except those of listeners, after the instance or this member stopped."""
        for each in (self._service_scheduler, self._broker_executor, self._retry_executor):
            each.stop(wait_ms)

    def _check_startable_or_running(self) -> None:
        if self._state_machine.state not in {ServiceState.CREATE_JUST, ServiceState.STARTING}:
            self._check_running()

    # ---- subscriptions

    def subscribe(self, topic: str, selector: MessageSelector | str = ALL) -> None:
        """Consume a topic together with the group.

        Args:
            topic: Name of the topic.
            selector: Tags, as ``"red || blue"``, or what `by_sql` returns; by default all messages.

        Raises:
            SubscriptionConflict: Queues were assigned to a lite pull consumer before.
            MessageRejected: The topic's name or the selector is not valid.
            RouteNotFound: The consumer is running, and there is no such topic. Nothing has changed.
            BrokerRefused: It is running, and brokers do not support the filter. Nothing has
                changed.
        """
        self._check_subscribable()
        self._check_startable_or_running()
        data = self._new_subscription(topic, selector)
        topic = data.topic  # a plain str, even if the caller passed an enum
        if self.is_running:
            if not topic.startswith(RETRY_PREFIX):
                require_topics(self._instance, (topic,))
            self._brokers.check_subscription(data)
        before = self._set_subscription(data) or data
        self._subscriptions_changed()
        if (before.sub_string, before.expression_type) != (data.sub_string, data.expression_type):
            self._restart_pulls(topic)

    def _check_subscribable(self) -> None:
        """Raise an error if topics cannot be subscribed to, because queues were assigned."""

    def unsubscribe(self, topic: str) -> None:
        """Stop consuming a ``topic`` and its assigned queues, after a busy listener has finished.

        Raises:
            MessageRejected: The topic's name is not valid, or is that of a retry topic.
        """
        self._check_startable_or_running()
        topic = self.namespace.wrap(check_topic(topic))
        if topic.startswith(RETRY_PREFIX):
            raise MessageRejected(
                "topic",
                "a topic that is not a retry topic (consumers subscribe to their own by "
                "themselves)",
                topic,
            )
        self._remove_subscription(topic)
        self.apply_assignment(topic, TopicAssignment((), ()))
        self._subscriptions_changed()

    def _subscriptions_changed(self) -> None:
        self._is_heartbeat_due = True
        if self.is_running:
            self._rebalance_task.wake()

    def _do_rebalance(self) -> int | None:
        """Rebalance; first send one heartbeat for all subscription changes made so far."""
        if self._is_heartbeat_due and self.is_running:
            self._is_heartbeat_due = False
            self._instance.heartbeat()
        return self._rebalance_service.do_rebalance()

    @property
    def topics(self) -> frozenset[str]:
        """The subscribed topics."""
        of, topics = self._topics_cache
        if of is not self._subscriptions:  # a rebalance asks several times for each topic
            of = self._subscriptions
            topics = frozenset(of)
            self._topics_cache = of, topics
        return topics

    def consumer_data(self) -> ConsumerData:
        """Return the description of this consumer that heartbeats carry."""
        return ConsumerData(
            group_name=self.group,
            consume_type=self.consume_type,
            message_model=self._settings.message_model,
            consume_from_where=self._settings.consume_from_where,
            subscription_data_set=tuple(self._subscriptions.values()),
        )

    # ---- rebalancing and offsets

    def _persist(self) -> int:
        began_ms = monotonic_ms()
        self._offset_manager.persist(self._own_queues())
        return max(0, self._settings.persist_interval_ms - (monotonic_ms() - began_ms))

    def move_offset_back(self, queue: MessageQueue, offset: int) -> None:
        """Move the group's offset back to an offset of a queue that was recreated."""
        self._offset_manager.move_back(queue, offset)

    def first_offset(self, queue: MessageQueue) -> StartPosition:
        """Return the position at which to begin a ``queue``."""
        return self._offset_manager.start_position(queue)

    def offset_since(self, queue: MessageQueue, store_ms: int) -> int:
        """Return the offset in a queue of the first message stored at ``store_ms`` or later."""
        return self._brokers.search_offset(queue, store_ms)

    def message_at(self, queue: MessageQueue, queue_offset: int) -> MessageExt | None:
        """Return the message at ``queue_offset`` of a queue, if it is there.

        If the broker answers with an offset to which an operator has moved the group, this consumer
        resumes there.
        """
        try:
            return self._brokers.message_at(queue, queue_offset)
        except OffsetMoved as error:
            moved = {queue: error.next_begin_offset}
            reset = partial(self.reset_offsets, queue.topic, moved)
            if self.is_running:
                self._broker_executor.for_broker(queue.broker_name).schedule(reset)
            else:  # this member is leaving: its executor may end first
                reset()
            return None

    def assigned_topics(self) -> Iterable[str]:
        """Return topics whose queues this consumer may have without a subscription to them."""
        return ()

    @abstractmethod
    def apply_assignment(self, topic: str, assignment: TopicAssignment) -> bool:
        """Apply these queues of a topic, and no others; return False to be called again soon.

        Implementations must not wait for brokers or listeners.
        """

    @abstractmethod
    def _restart_pulls(self, topic: str) -> None:
        """Restart the pulls of a topic's queues with the current subscription; drop older pulls."""

    @abstractmethod
    def _pulled_queues(self) -> Iterable[PulledQueue]:
        """Return the state of each queue that this consumer has."""

    def assignment(self) -> frozenset[MessageQueue]:
        """Return the queues that this consumer has now."""
        return self.namespace.strip_queues(self._own_queues())

    def _own_queues(self) -> frozenset[MessageQueue]:
        return frozenset(each.queue for each in self._pulled_queues())

    def _fingerprints(self) -> Mapping[MessageQueue, QueueFingerprint]:
        return {each.queue: each.fingerprint for each in self._pulled_queues()}

    @property
    def cached_bytes(self) -> int:
        """Number of bytes in the bodies of all messages that were pulled and not yet consumed."""
        return sum(each.process_queue.body_bytes for each in self._pulled_queues())

    @abstractmethod
    def _stop_consuming(self) -> None:
        """Stop pulling, and put the last offsets into the store."""

    # ---- requests of brokers

    def request_rebalance(self) -> None:
        """Rebalance soon, because a broker says that the group has changed."""
        if self.is_running:
            self._rebalance_task.wake()

    def on_connection_closed(self, address: str) -> None:
        """Note that the connection to ``address`` has ended, with the locks granted over it."""

    def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Resume at offsets that an operator has set, in this consumer's queues of a topic."""
        own = {queue: each for queue, each in offsets.items() if queue.topic == topic and each >= 0}
        # Reset all queues before waiting for a broker.
        moved = {queue for queue in own if self.is_running and self._reset_queue(queue, own[queue])}
        for queue, offset in own.items():
            try:
                if self._store_reset_offset(queue, offset, is_moved=queue in moved):
                    _log.warning("%s: %s was reset to offset %d", self.group, queue, offset)
                    self._offset_manager.record_start(queue, offset)
            except ClientError as error:  # noqa: PERF203  # the next persist stores the offset
                _log.warning("storing the reset offset of %s failed, retrying: %s", queue, error)

    def _store_reset_offset(self, queue: MessageQueue, offset: int, *, is_moved: bool) -> bool:
        if self._state_machine.state is ServiceState.SHUTDOWN_ALREADY:
            return self._offset_manager.store_reset_while_leaving(queue, offset)
        if is_moved:
            self._offset_manager.store_reset(queue, offset)
        elif self.is_running:
            self._offset_manager.store_released_reset(queue, offset)
        return is_moved

    @abstractmethod
    def _reset_queue(self, queue: MessageQueue, offset: int) -> bool:
        """Drop a queue's messages and resume at an offset; return False if not assigned."""

    def consume_status(self, topic: str) -> Mapping[MessageQueue, int]:
        """Return the offsets that this consumer has reached in a topic, as they are in memory."""
        return self._offset_store.offsets(topic)

    def running_info(self) -> ConsumerRunningInfo:
        """Return this consumer's report for operators."""
        from rmq_spark.wire.bodies.operators import ConsumerRunningInfo  # noqa: PLC0415  # rarely needed

        return ConsumerRunningInfo(
            properties={
                "PROP_NAMESERVER_ADDR": ";".join(self._instance.name_servers.addresses),
                "PROP_CONSUME_TYPE": self.consume_type.name,
                "PROP_CLIENT_VERSION": f"V{CURRENT_VERSION}",
                "PROP_CONSUMER_START_TIMESTAMP": str(self._started_ms),
                **self._extra_properties(),
            },
            subscription_set=tuple(self._subscriptions.values()),
            mq_table=self._queue_infos(time.time_ns() // 1_000_000),
        )

    def consume_directly(
        self,
        message: MessageExt,  # noqa: ARG002  # there is no listener to call
        broker_name: str,  # noqa: ARG002  # there is no listener to call
    ) -> ConsumeMessageDirectlyResult:
        """Refuse an operator's message from ``broker_name``, as there is no listener to call."""
        from rmq_spark.wire.bodies.operators import ConsumeMessageDirectlyResult, ConsumeResult  # noqa: PLC0415  # rarely needed

        return ConsumeMessageDirectlyResult(
            consume_result=ConsumeResult.CR_LATER, remark="a pull consumer has no listener to call"
        )

    def _extra_properties(self) -> Mapping[str, str]:
        return {"PROP_CONSUMEORDERLY": "false", "PROP_THREADPOOL_CORE_SIZE": "0"}

    @abstractmethod
    def _queue_infos(self, now_ms: int) -> Mapping[MessageQueue, ProcessQueueInfo]:
        """Return the report on each queue for operators."""
