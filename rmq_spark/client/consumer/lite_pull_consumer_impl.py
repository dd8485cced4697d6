"""LitePullConsumerImpl: `poll` returns messages that were pulled ahead in the background.

    rebalance or assign ──▶ assigned queues ──▶ a pull task each ──▶ request cache ──▶ poll

`commit` stores the group's offsets. `seek` drops what was pulled ahead, and `pause` keeps it.
See `assigned_queues` for what counts as consumed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from rmq_spark.client import observer
from rmq_spark.client.arguments import (
    check_kind,
    check_number,
    check_offset,
    check_queue,
    check_queues,
    check_time_ms,
    check_timestamp_ms,
    check_topic,
)
from rmq_spark.client.concurrency.fork_hooks import ForkAware
from rmq_spark.client.concurrency.scheduler import RepeatedTask, Scheduler
from rmq_spark.client.consumer.base_consumer_impl import BaseConsumerImpl
from rmq_spark.client.consumer.brokers.broker_client import DecodedPull, PullSpec
from rmq_spark.client.consumer.dispatch.listeners import check_listener
from rmq_spark.client.consumer.group_lifecycle import ServiceState
from rmq_spark.client.consumer.offsets.offset_manager import (
    AutoCommit,
    CommitRequest,
    store_offsets,
)
from rmq_spark.client.consumer.pull.pull_task import (
    FIRST_OFFSET_MS,
    FLOW_CONTROL_MS,
    PAUSED_MS,
    AbandonFunction,
    PullCallback,
    PullTask,
    RoomFunction,
)
from rmq_spark.client.consumer.queues.assigned_queues import (
    AssignedQueue,
    AssignedQueues,
    ConsumeRequest,
    ConsumeRequestCache,
)
from rmq_spark.client.consumer.queues.process_queue import monotonic_ms
from rmq_spark.client.consumer.rebalance.rebalance_service import TopicAssignment
from rmq_spark.client.consumer.settings import LitePullSettings, effective_settings
from rmq_spark.client.errors import (
    ClientError,
    NotAssigned,
    OffsetOutOfRange,
    SubscriptionConflict,
)
from rmq_spark.client.failure_log import FailureLog, OutageLog
from rmq_spark.client.instance.instance import ClientInstance, require_topics
from rmq_spark.client.message import MessageExt
from rmq_spark.client.results import PullStatus
from rmq_spark.client.subscriptions import (
    ALL,
    MessageSelector,
    by_tag,
    check_selector,
    subscription_data,
)
from rmq_spark.client.times import Start
from rmq_spark.errors import format_count
from rmq_spark.wire.bodies.clients import ConsumeType
from rmq_spark.wire.message_queue import MessageQueue

if TYPE_CHECKING:
    from rmq_spark.wire.bodies.operators import ProcessQueueInfo


TopicMessageQueueChangeListener: TypeAlias = Callable[[str, frozenset[MessageQueue]], object]
"""Called with the topic and its queues, after an operator has changed them."""

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class TopicChangeMonitor:
    """Watches topics for changes of their queues, for the listeners of one consumer."""

    workers: Scheduler
    queues_of: Callable[[str], frozenset[MessageQueue]]
    refresh: Callable[[str], object]
    """Asks a name server for a topic's queues again."""
    interval_ms: int
    checks: list[RepeatedTask] = field(default_factory=list)
    failures: FailureLog = field(default_factory=FailureLog)
    is_started: bool = False

    def add(self, topic: str, listener: TopicMessageQueueChangeListener) -> None:
        """Call a listener whenever the queues of a topic have changed."""
        known = self.queues_of(topic)
        what = f"checking the queues of {topic} for changes"

        def check() -> None:
            nonlocal known
            try:
                self.refresh(topic)
                found = self.queues_of(topic)
            except ClientError as error:
                self.failures.record_failure(what, error, time.monotonic())
                return
            self.failures.record_success(what, time.monotonic())
            if found != known:
                known = found
                try:
                    listener(topic, found)
                except BaseException:  # noqa: BLE001  # a listener's error must not stop others
                    _log.exception("the listener for changes of %s failed", topic)

        repeated = RepeatedTask(self.workers, check, self.interval_ms)
        self.checks.append(repeated)
        if self.is_started:
            repeated.start(self.interval_ms)

    def start(self) -> None:
        """Begin to check for changes; no thread starts before the consumer does."""
        self.is_started = True
        for check in self.checks:
            check.start(self.interval_ms)

    def stop(self) -> None:
        """Stop checking for changes."""
        for check in self.checks:
            check.stop()


MessageQueueListener = Callable[[str, frozenset[MessageQueue], frozenset[MessageQueue]], object]
"""Called with the topic, all of its queues and this consumer's, after these have changed."""

ListenerOutcome = Callable[[BaseException | None], object]
"""Called when a listener has returned, with its error if it raised one."""

LISTENER_RETRY_MS = 1_000
"""Milliseconds until a listener that has raised is called again, while new queues wait for it."""


class LitePullConsumerImpl(BaseConsumerImpl):
    """The implementation of `Consumer`, including what other modules call."""

    consume_type = ConsumeType.CONSUME_ACTIVELY
    _public_name = "Consumer"

    def __init__(
        self,
        group: str,
        namesrv: str | Iterable[str] | None = None,
        settings: LitePullSettings | None = None,
        message_queue_listener: MessageQueueListener | None = None,
        *,
        instance: ClientInstance | None = None,
        start: Start | None = None,
        namespace: str | None = None,
    ) -> None:
        self._lite_settings = effective_settings(LitePullSettings, settings, start)
        if message_queue_listener is not None:
            parameters = ("topic", "all_queues", "own_queues")
            check_listener("message_queue_listener", message_queue_listener, *parameters)
        super().__init__(group, namesrv, instance, self._lite_settings, namespace)
        self._listener = message_queue_listener
        self._assigned_queues = AssignedQueues(monotonic_ms)
        self._is_manually_assigned = False
        self._assign_selector = by_tag()
        self._request_cache = ConsumeRequestCache()
        self._tasks: dict[MessageQueue, LitePullTask] = {}
        # topics whose listener has raised, with waiting queues
        self._failed_topics: set[str] = set()
        self._has_warned = False
        self._outage_log = OutageLog("pulling")
        self._tasks_lock = threading.Lock()
        self._auto_commit = self._new_auto_commit()
        self._topic_monitor = TopicChangeMonitor(
            self._service_scheduler,
            self.fetch_message_queues,
            lambda topic: self._instance.routes.refresh(self.namespace.wrap(topic)),
            self._lite_settings.topic_metadata_check_interval_ms,
        )
        ForkAware.__init__(self)

    def _new_auto_commit(self) -> AutoCommit:
        is_enabled = self._lite_settings.auto_commit
        return AutoCommit(self._assigned_queues, self._offset_store, is_enabled=is_enabled)

    def _persist(self) -> int:
        self._auto_commit.publish()
        return super()._persist()

    # ---- assigned queues

    def _check_subscribable(self) -> None:
        if self._is_manually_assigned:
            raise SubscriptionConflict

    def assign(self, queues: Iterable[MessageQueue], selector: MessageSelector | str = ALL) -> None:
        """Consume these queues and no others; a later call replaces them.

        Args:
            queues: The queues, of any topics.
            selector: Tags, as ``"red || blue"``, or a selector, as `by_sql` returns. All messages
                by default.

        Raises:
            SubscriptionConflict: The consumer has subscribed to topics.
            BrokerRefused: The consumer is running, and the brokers do not support the filter.
                Nothing has changed.
            RouteNotFound: It is running, and the brokers that must check the filter are not known.
        """
        self._check_startable_or_running()
        wanted = self._full_queues(queues)
        selector = by_tag(selector) if isinstance(selector, str) else selector
        check_selector(selector)
        if self._subscriptions:
            raise SubscriptionConflict
        if self.is_running:
            self._check_filter(wanted, selector)
        self._is_manually_assigned = True
        is_changed = selector != self._assign_selector
        self._assign_selector = selector
        self._replace_queues(wanted, None)
        if is_changed:
            for topic in {queue.topic for queue in wanted}:
                self._restart_pulls(topic)

    def _check_filter(self, queues: Iterable[MessageQueue], selector: MessageSelector) -> None:
        """Raise an error if brokers do not support the filter: some would return every message."""
        for topic in sorted({queue.topic for queue in queues}):
            self._brokers.check_subscription(subscription_data(topic, selector, 0))

    def fetch_message_queues(self, topic: str) -> frozenset[MessageQueue]:
        """Return all readable queues of a ``topic``, as the name servers know them.

        Raises:
            RouteNotFound: There is no such topic, or none of its queues can be read.
            MessageRejected: The topic's name is not valid.
            NoNameServer: No name server answers.
        """
        topic = self.namespace.wrap(check_topic(topic))
        return self.namespace.strip_queues(self._brokers.queues(topic))

    def _full_queues(self, queues: Iterable[MessageQueue]) -> frozenset[MessageQueue]:
        return frozenset(map(self.namespace.wrap_queue, check_queues(queues)))

    def register_topic_message_queue_change_listener(
        self, topic: str, listener: TopicMessageQueueChangeListener
    ) -> None:
        """Call a listener with a topic and its queues when these change.

        A running consumer checks every ``topic_metadata_check_interval_ms``, a setting of 30 s by
        default.

        Args:
            topic: Name of the topic.
            listener: Function of ``(topic, queues)``.

        Raises:
            MessageRejected: The topic's name is not valid.
        """
        self._check_startable_or_running()
        check_listener("listener", listener, "topic", "queues")
        self._topic_monitor.add(topic, listener)

    def _pulled_queues(self) -> list[AssignedQueue]:
        return self._assigned_queues.all()

    def apply_assignment(self, topic: str, share: TopicAssignment) -> bool:
        """Apply these queues of a ``topic``, and call the listener; revoked queues end now.

        New queues are assigned, but not pulled until the listener has returned, because it may
        seek.
        """
        own_queues = frozenset(share.own)
        is_changed = self._replace_queues(own_queues, topic)
        if self._listener is None or not (is_changed or topic in self._failed_topics):
            return True
        with self._tasks_lock:
            tasks = self._tasks.items()
            new = [task for queue, task in tasks if queue.topic == topic and not task.is_started]
        outcome = partial(self._on_listener_done, topic, new, topic in self._failed_topics)
        self._failed_topics.discard(topic)
        self._call_listener(topic, frozenset(share.all_queues), own_queues, outcome)
        return True

    def _call_listener(
        self,
        topic: str,
        all_queues: frozenset[MessageQueue],
        own_queues: frozenset[MessageQueue],
        on_done: ListenerOutcome,
    ) -> None:
        if self._listener is None:
            return
        try:
            names = self.namespace
            own = names.strip_queues(own_queues)
            self._listener(names.strip(topic), names.strip_queues(all_queues), own)
        except BaseException as error:  # noqa: BLE001  # whatever it raises, the member continues
            on_done(error)
        else:
            on_done(None)

    def _on_listener_done(
        self,
        topic: str,
        new_tasks: Sequence[LitePullTask],
        has_failed_before: bool,  # noqa: FBT001  # the first arguments of a `partial`
        error: BaseException | None,
    ) -> None:
        """Start pulling new queues, or, if the listener raised, schedule another call."""
        if error is None:
            if has_failed_before:
                _log.warning("the message queue listener of %s recovered", self.group)
            with self._tasks_lock:
                self._start_tasks(new_tasks)
            return
        if not self.is_running:  # the listener was cancelled, or called a consumer that stops
            return
        held = [task for task in new_tasks if not task.assigned.is_dropped]
        if not has_failed_before:
            text = "the message queue listener of %s failed for %s%s"
            waiting = f"; retrying every second, {format_count(len(held), 'new queue')} waiting"
            _log.error(text, self.group, topic, waiting if held else "", exc_info=error)
        if held:
            self._failed_topics.add(topic)
            self._service_scheduler.schedule(self._rebalance_task.wake, LISTENER_RETRY_MS)

    def _replace_queues(self, queues: frozenset[MessageQueue], topic: str | None) -> bool:
        with self._tasks_lock:
            if topic is not None and topic not in self._subscriptions:
                queues = frozenset()  # unsubscribed during the rebalance
            new, removed = self._assigned_queues.replace(queues, topic)
            for assigned in removed:
                self._release_queue(assigned)
            if self.is_running:
                tasks = self._new_tasks(new)
                if topic is None or self._listener is None:
                    self._start_tasks(tasks)
        return bool(new or removed)

    def _restart_pulls(self, topic: str) -> None:
        with self._tasks_lock:
            for task in self._tasks.values():
                if task.assigned.queue.topic == topic:
                    task.assigned.rewind_to_delivered()
                    task.wake()
            self._request_cache.discard_stale()

    def _release_queue(self, assigned: AssignedQueue) -> None:
        task = self._tasks.pop(assigned.queue, None)
        if task is not None:
            task.cancel()
        self._auto_commit.release(assigned)
        self._request_cache.discard_stale()
        if task is not None:
            self._offset_manager.release(assigned.queue, assigned.fingerprint)

    def _new_tasks(self, new: Sequence[AssignedQueue]) -> list[LitePullTask]:
        tasks = [
            LitePullTask(
                assigned,
                self,
                self._broker_executor.for_broker(assigned.queue.broker_name),
                self._lite_settings.limits,
                self._outage_log,
                self._lite_settings.pull_time_delay_ms_when_exception,
            )
            for assigned in new
        ]
        self._tasks.update((task.assigned.queue, task) for task in tasks)
        return tasks

    def _start_tasks(self, tasks: Sequence[LitePullTask]) -> None:
        kept = [each for each in tasks if self._tasks.get(each.assigned.queue) is each]
        self._offset_manager.schedule_prefetch(
            [each.assigned.queue for each in kept if each.assigned.pull_position()[1] is None]
        )
        for task in kept:
            task.start()

    def _join_group(self) -> None:
        queues = self._assigned_queues.queues
        require_topics(self._instance, sorted({queue.topic for queue in queues}))
        self._check_filter(queues, self._assign_selector)
        super()._join_group()

    def _start(self) -> None:
        super()._start()
        with self._tasks_lock:
            known = self._assigned_queues.all()
            new = [each for each in known if each.queue not in self._tasks]
            self._start_tasks(self._new_tasks(new))
        self._topic_monitor.start()

    def _stop_consuming(self) -> None:
        self._topic_monitor.stop()
        with self._tasks_lock:
            for task in self._tasks.values():
                task.cancel()
            for assigned in self._assigned_queues.all():
                self._auto_commit.release(assigned)
        self._request_cache.close()

    def _after_fork(self) -> None:
        super()._after_fork()
        is_not_started = self.service_state is ServiceState.CREATE_JUST
        self._assigned_queues = (
            self._assigned_queues.copy_after_fork()
            if is_not_started
            else AssignedQueues(monotonic_ms)
        )
        self._request_cache = ConsumeRequestCache()
        self._tasks = {}
        self._failed_topics = set()
        self._tasks_lock = threading.Lock()
        self._auto_commit = self._new_auto_commit()

    # ---- interface for pull tasks

    def is_ready(self, queue: MessageQueue) -> bool:
        """Return whether the queue's broker is connected, so that it can be asked at once."""
        return self._brokers.is_ready(queue)

    def pull(
        self,
        queue: MessageQueue,
        queue_offset: int,
        callback: PullCallback,
        room_bytes: RoomFunction,
    ) -> AbandonFunction:
        """Pull messages of a queue from ``queue_offset``; ``callback`` gets the response."""
        subscription = self._subscriptions.get(queue.topic)
        if subscription is None:
            subscription = subscription_data(queue.topic, self._assign_selector, 0)
        return self._brokers.pull(
            PullSpec(
                queue,
                queue_offset,
                subscription,
                self._lite_settings.pull_batch_size,
                self._lite_settings.broker_suspend_max_time_ms,
                self._lite_settings.consumer_timeout_ms_when_suspend,
                is_lite=True,
            ),
            callback,
            room_bytes,
        )

    def deliver(self, request: ConsumeRequest) -> None:
        """Hand the pulled messages of a ``request`` to `poll`."""
        self._request_cache.put(request)

    def send_to_dlq(self, assigned: AssignedQueue, epoch: int, message: MessageExt) -> None:
        """Make a dead letter of an unreadable message of the ``assigned`` queue's ``epoch``."""

        def done() -> None:
            assigned.acknowledge_unreadable(epoch, message)
            self._auto_commit.record_returned(assigned)

        self._dead_letter_queue.send(message, lambda: not assigned.is_stale(epoch), done)

    @property
    def cached_messages(self) -> int:
        """Number of messages that `poll` may return without a pull."""
        return self._assigned_queues.message_count

    # ---- messages

    def poll(self, timeout_ms: int | None = None) -> list[MessageExt]:
        """Return messages of one queue, waiting for them; an empty list if none come in time.

        Args:
            timeout_ms: Milliseconds to wait; by default the setting ``poll_timeout_ms``.

        Raises:
            ClientShutDown: The consumer is not running.
            MessageRejected: ``timeout_ms`` is negative, or longer than 24 days.
            TypeError: ``timeout_ms`` is not a number.
        """
        self._check_running()
        if timeout_ms is not None:
            check_time_ms("timeout_ms", timeout_ms)
        else:
            timeout_ms = self._lite_settings.poll_timeout_ms
        self._auto_commit.confirm_returned()
        return self._poll_cache(timeout_ms) or self._warn_without_queues()

    def _warn_without_queues(self) -> list[MessageExt]:
        """Log once that this consumer has no topics and no queues; return no messages."""
        if not (self._has_warned or self.topics or self._is_manually_assigned):
            self._has_warned = True
            _log.warning(
                "%s: poll returned nothing, because this consumer has no topics and no queues. "
                "Call subscribe or assign",
                self.group,
            )
        return []

    def _poll_cache(self, timeout_ms: int, messages_max: int | None = None) -> list[MessageExt]:
        try:  # Without the lock: another thread may have an earlier deadline.
            if (request := self._request_cache.poll(timeout_ms, messages_max)) is None:
                return []
            self._record_returned(request.assigned)
            messages = observer.observe_poll(self.group, request.messages)
            if self.namespace:
                messages = [*map(self.namespace.strip_message, messages)]
            if self._tracer is not None:
                self._tracer.record_poll(messages)
            request.assigned.returned_offset = request.assigned.delivered_offset
        except BaseException:  # a signal handler may raise at any line
            self._requeue_undelivered()
            raise
        return messages

    def _requeue_undelivered(self) -> None:
        """Put back messages that were taken from the cache and did not reach the caller."""
        with self._tasks_lock:
            for task in self._tasks.values():
                task.assigned.rewind_to_returned()
                task.wake()
            self._request_cache.discard_stale()

    def _record_returned(self, assigned: AssignedQueue) -> None:
        """Record that messages of a queue are returned; pull more before the cache is empty."""
        self._auto_commit.record_returned(assigned)
        for task in list(self._tasks.values()):
            limit = self._lite_settings.limits.pull_threshold_for_queue // 2
            if task.is_throttled and task.assigned.process_queue.message_count <= limit:
                task.resume_throttled()

    # ---- offsets of the group, and positions

    def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Store the group's offsets, and wait until the brokers have them.

        Args:
            offsets: The offset at which to resume, by queue; by default past all messages that
                `poll` has returned.

        Raises:
            NotAssigned: One of the queues is not this consumer's.
            MessageRejected: An offset is negative.
            ClientError: A broker does not answer. Its offsets are sent again later; the other
                brokers have stored theirs.
        """
        self._store_commit(self.new_commit(offsets))

    def new_commit(self, offsets: Mapping[MessageQueue, int] | None) -> CommitRequest:
        """Return what `commit` stores: the given offsets, or those past all returned messages."""
        self._check_running()
        if offsets is None:
            return CommitRequest.from_returned(self._assigned_queues.all())
        check_kind("offsets", offsets, Mapping, "a mapping of queues to offsets", "{queue: 42}")
        moves: dict[MessageQueue, int] = {}
        full: dict[MessageQueue, int] = {}
        for queue, offset in offsets.items():
            assigned = self._get_assigned(queue, "a key of offsets")
            moves[assigned.queue] = assigned.reset_count
            check_offset("offset", offset)
            full[assigned.queue] = offset
        return CommitRequest(full, moves)

    def _store_commit(self, commit: CommitRequest) -> None:
        with self._tasks_lock:  # an operator's reset runs either before this, or after
            offsets = commit.current_offsets(self._assigned_queues.all())
            for queue, offset in offsets.items():  # kept in memory in case the broker fails
                self._offset_store.update_offset(queue, offset, increase_only=False)
        known = self._fingerprints()
        self._offset_manager.save_last_messages(known)

        def is_known(queue: MessageQueue) -> bool:
            return queue not in known or known[queue].is_same_queue(queue, self.message_at)

        def reset_count_of(queue: MessageQueue) -> int:
            assigned = self._assigned_queues.get(queue)
            return 0 if assigned is None else assigned.reset_count

        store_offsets(self._offset_store, commit, offsets, reset_count_of, is_known)

    def committed(self, queue: MessageQueue) -> int | None:
        """Return the offset that this group has stored for a queue, or None.

        It is read from the queue's broker, or in BROADCASTING from this member's file, and does not
        include what `poll` has returned since the last commit.

        Args:
            queue: The queue, which may be another member's.

        Raises:
            RouteNotFound, BrokerNotFound: The queue's topic or its broker is not known.
        """
        self._check_running()
        check_queue("queue", queue)
        return self._offset_store.stored_offset(self.namespace.wrap_queue(queue))

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Resume a ``queue`` at an ``offset``; drop messages pulled ahead.

        Raises:
            OffsetOutOfRange: The queue has no such offset.
        """
        queue = self._get_assigned(queue).queue
        check_number("offset", offset, 42)
        least, most = self._brokers.min_offset(queue), self._brokers.max_offset(queue)
        if not least <= offset <= most:
            raise OffsetOutOfRange(queue, offset, least, most)
        self._seek(queue, offset)

    def seek_to_begin(self, queue: MessageQueue) -> None:
        """Resume at the first offset that a ``queue`` still holds; drop messages pulled ahead."""
        queue = self._get_assigned(queue).queue
        self._seek(queue, self._brokers.min_offset(queue))

    def seek_to_end(self, queue: MessageQueue) -> None:
        """Resume past the last message of a ``queue``; drop messages pulled ahead."""
        queue = self._get_assigned(queue).queue
        self._seek(queue, self._brokers.max_offset(queue))

    def seek_to_time(self, queue: MessageQueue, timestamp_ms: int) -> None:
        """Resume a ``queue`` at the first message stored at or after a time, or at its end.

        Args:
            queue: The queue.
            timestamp_ms: The time, in milliseconds since 1970.

        Raises:
            MessageRejected: The time is before 1970, or in seconds.
        """
        queue = self._get_assigned(queue).queue
        check_timestamp_ms("timestamp_ms", timestamp_ms)
        self._seek(queue, self._brokers.search_offset(queue, timestamp_ms))

    def offset_for_timestamp(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset in a queue of the first message stored at a time or later, or its end.

        Args:
            queue: The queue, which may be another member's.
            timestamp_ms: The time, in milliseconds since 1970.

        Raises:
            MessageRejected: The time is before 1970, or in seconds.
            RouteNotFound: The queue's topic does not exist.
            BrokerNotFound: The topic is not on the queue's broker.
        """
        self._check_running()
        check_queue("queue", queue)
        check_timestamp_ms("timestamp_ms", timestamp_ms)
        return self._brokers.search_offset(self.namespace.wrap_queue(queue), timestamp_ms)

    def _seek(self, queue: MessageQueue, offset: int) -> None:
        if not self._change_position(queue, lambda assigned: assigned.seek(offset)):
            raise NotAssigned(queue)
        self._offset_manager.record_start(queue, offset)

    def _reset_queue(self, queue: MessageQueue, offset: int) -> bool:
        def move(assigned: AssignedQueue) -> None:  # in one step, between commits
            assigned.reset(offset)
            self._offset_store.update_offset(queue, offset, increase_only=False)

        return self._change_position(queue, move)

    def _change_position(
        self, queue: MessageQueue, change: Callable[[AssignedQueue], None]
    ) -> bool:
        with self._tasks_lock:
            assigned, task = self._assigned_queues.get(queue), self._tasks.get(queue)
            if assigned is None:
                return False
            change(assigned)
            self._request_cache.discard_stale()
            if task is not None:
                task.wake()
            return True

    def _get_assigned(self, queue: MessageQueue, name: str = "queue") -> AssignedQueue:
        self._check_running()
        check_queue(name, queue)
        queue = self.namespace.wrap_queue(queue)
        assigned = self._assigned_queues.get(queue)
        if assigned is None:
            raise NotAssigned(queue)
        return assigned

    # ---- suspended queues

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Return and pull no messages of these ``queues`` until `resume`.

        Raises:
            NotAssigned: One of the queues is not this consumer's. None is paused.
        """
        for assigned in [self._get_assigned(queue) for queue in check_queues(queues)]:
            assigned.is_paused = True

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Return and pull messages of paused ``queues`` again; other queues stay as they are.

        Raises:
            NotAssigned: One of the queues is not this consumer's.
        """
        for queue in sorted(self._full_queues(queues)):
            if (task := self._tasks.get(queue)) is not None:
                task.assigned.fingerprint.record_pause()  # the task may not have noticed the pause
            self._get_assigned(queue).is_paused = False
            if task is not None:
                task.wake()
        self._request_cache.wake()

    # ---- reports to operators

    def _queue_infos(self, now_ms: int) -> Mapping[MessageQueue, ProcessQueueInfo]:
        return {
            assigned.queue: assigned.process_queue.info(assigned.consume_offset, now_ms)
            for assigned in self._assigned_queues.all()
        }


class LitePullTask(PullTask[AssignedQueue, LitePullConsumerImpl]):
    """Pulls one assigned queue of a lite pull consumer; a seek begins a new epoch."""

    first_offset_delay_ms = FIRST_OFFSET_MS

    @property
    def assigned(self) -> AssignedQueue:
        """The queue that the task pulls."""
        return self._queue

    def _wait_ms(self) -> int:
        self.assigned.process_queue.touch_pull()
        if self.assigned.is_paused:
            self.assigned.fingerprint.record_pause()
            return PAUSED_MS
        is_full = self._consumer.cached_messages >= self._limits.pull_threshold_for_all
        self.is_throttled = is_full or self._is_cache_full()
        return FLOW_CONTROL_MS if self.is_throttled else 0

    def _restart_at(self, epoch: int, offset: int) -> int:
        if self.assigned.restart_at(epoch, offset) != epoch:
            self._consumer.move_offset_back(self.assigned.queue, offset)
        return 0

    def _send(self, offset: int, callback: PullCallback) -> AbandonFunction:
        return self._consumer.pull(self.assigned.queue, offset, callback, self.room_bytes)

    def _on_success(self, epoch: int, offset: int, result: DecodedPull) -> int:
        last_known = self.assigned.fingerprint  # read first: a seek replaces it
        next_offset = result.next_begin_offset
        if result.status is PullStatus.OFFSET_ILLEGAL:
            legal = last_known.legal_offset(self.assigned.queue, offset, result)
            if legal is None:
                return 0
            next_offset = legal
        if not self.assigned.add_pulled(epoch, result.messages, next_offset, result.unreadable):
            return 0
        if next_offset < offset:
            self._consumer.move_offset_back(self.assigned.queue, next_offset)
        last_known.observe(result.messages)
        for message in result.unreadable:
            self._consumer.send_to_dlq(self.assigned, epoch, message)
        if result.messages:
            self._consumer.deliver(ConsumeRequest(self.assigned, epoch, result.messages))
        return 0

    def _may_continue(self) -> bool:
        last_known = self.assigned.fingerprint
        is_verified = not (last_known.must_relocate or last_known.is_unverified)
        return is_verified and self._consumer.is_ready(self.assigned.queue)
