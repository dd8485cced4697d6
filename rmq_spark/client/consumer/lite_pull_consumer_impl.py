"""LitePullMember: messages are asked for with `poll`; they were pulled ahead, in the background.

    rebalance or assign ──▶ assigned queues ──▶ a pull task each ──▶ request cache ──▶ poll

See `assigned_queues` for what counts as consumed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import NoneType
from typing import TYPE_CHECKING, TypeAlias

from rmq_spark.client import observing
from rmq_spark.client.arguments import check_kind, check_time_ms, check_topic, checked_queues
from rmq_spark.client.concurrency.fork_aware import ProcessBound
from rmq_spark.client.concurrency.locks import mutex
from rmq_spark.client.concurrency.scheduler import Repeated, Workers
from rmq_spark.client.consumer.base_consumer_impl import GroupMember
from rmq_spark.client.consumer.brokers.broker_client import Outages, Pull
from rmq_spark.client.consumer.clock import monotonic_ms
from rmq_spark.client.consumer.dispatch.listeners import check_listener
from rmq_spark.client.consumer.offsets.commit import AutoCommit
from rmq_spark.client.consumer.pull.poll_buffer import ConsumeRequestCache
from rmq_spark.client.consumer.pull.pull_task import Abandon, PullTask, Then
from rmq_spark.client.consumer.queues.assigned_queues import (
    AssignedQueue,
    AssignedQueues,
    ConsumeRequest,
)
from rmq_spark.client.consumer.queues.process_queue import ProcessQueue
from rmq_spark.client.consumer.queues.queue_identity import LastKnown, Place
from rmq_spark.client.consumer.rebalance.rebalance import Share
from rmq_spark.client.consumer.service_state import ConsumerInstance, ServiceState
from rmq_spark.client.consumer.settings import LitePullSettings
from rmq_spark.client.errors import ClientError, SubscriptionConflict
from rmq_spark.client.instance.require_topics import find_topics
from rmq_spark.client.message import MessageExt
from rmq_spark.client.subscriptions import (
    ALL,
    MessageSelector,
    by_tag,
    check_selector,
    subscription_data,
)
from rmq_spark.errors import counted
from rmq_spark.wire.bodies.clients import ConsumeType
from rmq_spark.wire.message_queue import MessageQueue

if TYPE_CHECKING:
    from rmq_spark.wire.bodies.client_info import ProcessQueueInfo


# ---- TopicChecks: listeners that are told when the queues of a topic have changed.

TopicMessageQueueChangeListener: TypeAlias = Callable[[str, frozenset[MessageQueue]], object]
"""Called with the topic and its queues, after an operator has changed them."""

_log = logging.getLogger(__name__)


class TopicChecks:
    """The topics that listeners of one consumer wait for."""

    def __init__(
        self,
        workers: Workers,
        queues_of: Callable[[str], frozenset[MessageQueue]],
        refresh: Callable[[str], object],
        interval_ms: int,
    ) -> None:
        """Take functions that return a topic's queues, and ask a name server for them again."""
        self._workers = workers
        self._queues_of = queues_of
        self._refresh = refresh
        self._interval_ms = interval_ms
        self._checks: list[Repeated] = []
        self._is_started = False

    def add(self, topic: str, listener: TopicMessageQueueChangeListener) -> None:
        """Call a listener whenever a topic has other queues than it had before."""
        known = self._queues_of(topic)
        is_away = False

        def check() -> None:
            nonlocal known, is_away
            try:
                self._refresh(topic)
                found = self._queues_of(topic)
            except ClientError as error:
                level = logging.DEBUG if is_away else logging.WARNING
                _log.log(level, "changes of %s cannot be looked for: %s", topic, error)
                is_away = True
                return
            if is_away:
                _log.warning("it is over that changes of %s cannot be looked for", topic)
                is_away = False
            if found != known:
                known = found
                try:
                    listener(topic, found)
                except BaseException:  # noqa: BLE001  # a listener's error must not stop others
                    _log.exception("the listener for changes of %s failed", topic)

        repeated = Repeated(self._workers, check, self._interval_ms)
        self._checks.append(repeated)
        if self._is_started:
            repeated.start(self._interval_ms)

    def start(self) -> None:
        """Look for changes from now on: no thread begins before its consumer is started."""
        self._is_started = True
        for check in self._checks:
            check.start(self._interval_ms)

    def stop(self) -> None:
        """Look for no changes any more."""
        for check in self._checks:
            check.stop()


MessageQueueListener = Callable[[str, frozenset[MessageQueue], frozenset[MessageQueue]], object]
"""Called with the topic, all of its queues and this consumer's, after these have changed."""

ListenerOutcome = Callable[[BaseException | None], object]
"""Called when a listener has returned, with its error if it raised one."""

LISTENER_RETRY_MS = 1_000
"""Milliseconds until a listener that has raised is called again, while new queues wait for it."""


class LitePullMember(GroupMember):
    """The consumer behind a `LitePullConsumer`, with all that other rooms need of it."""

    consume_type = ConsumeType.CONSUME_ACTIVELY
    _called = "LitePullConsumer"

    def __init__(
        self,
        group: str,
        instance: ConsumerInstance | str | None = None,
        settings: LitePullSettings | None = None,
        message_queue_listener: MessageQueueListener | None = None,
    ) -> None:
        example = "LitePullSettings(pull_batch_size=16)"
        check_kind("settings", settings, (LitePullSettings, NoneType), "LitePullSettings", example)
        self._lite = settings or LitePullSettings()
        if message_queue_listener is not None:
            parameters = ("topic", "all_queues", "own_queues")
            check_listener("message_queue_listener", message_queue_listener, *parameters)
        super().__init__(group, instance, self._lite)
        self._listener = message_queue_listener
        self._assigned = AssignedQueues(monotonic_ms)
        self._is_assigned_by_hand = False
        self._selector_for_assign = by_tag()
        self._cache = ConsumeRequestCache()
        self._tasks: dict[MessageQueue, PullTask] = {}
        self._failed_topics: set[str] = set()  # of which the listener has raised, and queues wait
        self._outages = Outages("cannot be pulled")
        self._changing_tasks = mutex()
        self._auto_commit = self._new_auto_commit()
        self._topic_checks = TopicChecks(
            self._services,
            self.fetch_message_queues,
            self._instance.routes.refresh,
            self._lite.topic_metadata_check_interval_ms,
        )
        ProcessBound.__init__(self)

    def _new_auto_commit(self) -> AutoCommit:
        return AutoCommit(
            lambda: self._assigned.all(),  # noqa: PLW0108  # a fork replaces it
            self._offset_store,
            is_enabled=self._lite.auto_commit,
        )

    def _persist(self) -> int:
        self._auto_commit.publish()
        return super()._persist()

    # ---- which queues

    def subscribe(self, topic: str, selector: MessageSelector | str = ALL) -> None:
        """Consume a topic together with the group.

        Args:
            topic: Name of the topic.
            selector: Tags, as ``"red || blue"``, or a selector, as `by_sql` returns. All messages
                by default.

        Raises:
            SubscriptionConflict: Queues were assigned before.
            TypeError: The topic is no text, or the selector none.
            MessageRejected: The topic's name is not valid, or the selector makes no sense.
            RouteNotFound: The consumer is running, and there is no such topic.
            BrokerRefused: It is running, and the brokers cannot filter like that.
            ClientShutDown: The consumer has ended, or is the parent process's.
        """
        if self._is_assigned_by_hand:
            raise SubscriptionConflict
        super().subscribe(topic, selector)

    def assign(self, queues: Iterable[MessageQueue], selector: MessageSelector | str = ALL) -> None:
        """Consume these queues and no others; a later call replaces them.

        Args:
            queues: The queues, of any topics.
            selector: Tags, as ``"red || blue"``, or a selector, as `by_sql` returns. All messages
                by default.

        Raises:
            SubscriptionConflict: The consumer has subscribed to topics.
            TypeError: ``queues`` is not several queues, or the selector none.
            BrokerRefused: The consumer is running, and the brokers cannot filter like that. Nothing
                has changed.
            RouteNotFound: It is running, and the brokers to ask about a condition are not known.
            ClientShutDown: The consumer has ended, or is the parent process's.
        """
        self._check_not_over()
        wanted = checked_queues("queues", queues)
        selector = by_tag(selector) if isinstance(selector, str) else selector
        check_selector(selector)
        if self._subscriptions:
            raise SubscriptionConflict
        if self.is_running:
            self._check_filtered(wanted, selector)
        self._is_assigned_by_hand = True
        is_changed = selector != self._selector_for_assign
        self._selector_for_assign = selector
        self._change_queues(wanted, None)
        if is_changed:
            for topic in {queue.topic for queue in wanted}:
                self._pull_anew(topic)

    def _check_filtered(self, queues: Iterable[MessageQueue], selector: MessageSelector) -> None:
        """Raise an error if brokers cannot filter like that: some then pass over nothing at all."""
        for topic in sorted({queue.topic for queue in queues}):
            self._brokers.check_subscription(subscription_data(topic, selector, 0))

    def assignment(self) -> frozenset[MessageQueue]:
        """Return the queues that this consumer has now."""
        return self._assigned.queues

    def fetch_message_queues(self, topic: str) -> frozenset[MessageQueue]:
        """Return all readable queues of a topic, as the name servers know them.

        Args:
            topic: Name of the topic.

        Raises:
            RouteNotFound: There is no such topic, or none of its queues can be read.
            MessageRejected: The topic's name is not valid.
            NoNameServer: No name server answers.
            TypeError: The name is no text.
        """
        return frozenset(self._brokers.queues(check_topic(topic)))

    def register_topic_message_queue_change_listener(
        self, topic: str, listener: TopicMessageQueueChangeListener
    ) -> None:
        """Have a listener called with a topic and its queues when these change.

        The consumer looks every 30 s, or as its setting ``topic_metadata_check_interval_ms`` says,
        from its start on.

        Args:
            topic: Name of the topic.
            listener: Function of ``(topic, queues)``.

        Raises:
            MessageRejected: The topic's name is not valid.
            TypeError: The name is no text, or the listener no such function.
            ClientShutDown: The consumer has ended, or is the parent process's.
        """
        self._check_not_over()
        check_listener("listener", listener, "topic", "queues")
        self._topic_checks.add(topic, listener)

    def _queues(self) -> frozenset[MessageQueue]:
        return self._assigned.queues

    def _last_known(self) -> Mapping[MessageQueue, LastKnown]:
        return {queue: task.assigned.last_known for queue, task in list(self._tasks.items())}

    def _process_queues(self) -> list[ProcessQueue[MessageExt]]:
        return [assigned.process_queue for assigned in self._assigned.all()]

    def take_share(self, topic: str, share: Share) -> bool:
        """Have these queues of a ``topic``, and call the listener; those that are gone end now.

        New queues are assigned, but not pulled before the listener has returned: it may seek.
        """
        mine = frozenset(share.mine)
        is_changed = self._change_queues(mine, topic)
        if self._listener is None or not (is_changed or topic in self._failed_topics):
            return True
        with self._changing_tasks:
            tasks = self._tasks.items()
            new = [task for queue, task in tasks if queue.topic == topic and not task.is_started]
        outcome = partial(self._listener_ended, topic, new, topic in self._failed_topics)
        self._failed_topics.discard(topic)
        self._call_listener(topic, frozenset(share.all), mine, outcome)
        return True

    def _call_listener(
        self,
        topic: str,
        all_queues: frozenset[MessageQueue],
        mine: frozenset[MessageQueue],
        outcome: ListenerOutcome,
    ) -> None:
        if self._listener is None:
            return
        try:
            self._listener(topic, all_queues, mine)
        except BaseException as error:  # noqa: BLE001  # whatever it raises, the member goes on
            outcome(error)
        else:
            outcome(None)

    def _listener_ended(
        self,
        topic: str,
        new: Sequence[PullTask],
        has_failed_before: bool,  # noqa: FBT001  # the first arguments of a `partial`
        error: BaseException | None,
    ) -> None:
        """Pull new queues now that the listener has returned; have it called again if it raised."""
        if error is None:
            if has_failed_before:
                _log.warning("the message queue listener of %s recovered", self.group)
            with self._changing_tasks:
                self._begin(new)
            return
        if not self.is_running:  # it was cancelled, or called a consumer that ends
            return
        held = [task for task in new if not task.assigned.is_dropped]
        if not has_failed_before:
            text = "the message queue listener of %s failed for %s%s"
            waiting = f"; retrying every second, {counted(len(held), 'new queue')} waiting"
            _log.error(text, self.group, topic, waiting if held else "", exc_info=error)
        if held:
            self._failed_topics.add(topic)
            self._services.schedule(self._rebalancing.wake, LISTENER_RETRY_MS)

    def _change_queues(self, queues: frozenset[MessageQueue], topic: str | None) -> bool:
        with self._changing_tasks:
            if topic is not None and topic not in self._subscriptions:
                queues = frozenset()  # unsubscribed while they were shared out
            new, gone = self._assigned.replace(queues, topic)
            for assigned in gone:
                self._let_go(assigned)
            if self.is_running:
                tasks = self._new_tasks(new)
                if topic is None or self._listener is None:
                    self._begin(tasks)
        return bool(new or gone)

    def _pull_anew(self, topic: str) -> None:
        with self._changing_tasks:
            for task in self._tasks.values():
                if task.assigned.queue.topic == topic:
                    task.assigned.pull_anew()
                    task.wake()
            self._cache.forget_stale()

    def _let_go(self, assigned: AssignedQueue) -> None:
        task = self._tasks.pop(assigned.queue, None)
        if task is not None:
            task.cancel()
        self._auto_commit.leave(assigned)
        self._cache.forget_stale()
        if task is not None:
            self._offsets.forget(assigned.queue, assigned.last_known)

    def _new_tasks(self, new: Sequence[AssignedQueue]) -> list[PullTask]:
        tasks = [
            PullTask(
                assigned,
                self,
                self._lanes.of(assigned.queue.broker_name),
                self._lite.limits,
                self._outages,
                self._lite.pull_time_delay_ms_when_exception,
            )
            for assigned in new
        ]
        self._tasks.update((task.assigned.queue, task) for task in tasks)
        return tasks

    def _begin(self, tasks: Sequence[PullTask]) -> None:
        kept = [each for each in tasks if self._tasks.get(each.assigned.queue) is each]
        self._offsets.begin_together(
            [each.assigned.queue for each in kept if each.assigned.begin()[1] is None]
        )
        for task in kept:
            task.start()

    def _join(self) -> None:
        find_topics(self._instance, sorted({queue.topic for queue in self._assigned.queues}))
        self._check_filtered(self._assigned.queues, self._selector_for_assign)
        super()._join()

    def _start(self) -> None:
        super()._start()
        with self._changing_tasks:
            known = self._assigned.all()
            self._begin(self._new_tasks([each for each in known if each.queue not in self._tasks]))
        self._topic_checks.start()

    def _stop_consuming(self) -> None:
        self._topic_checks.stop()
        with self._changing_tasks:
            for task in self._tasks.values():
                task.cancel()
            for assigned in self._assigned.all():
                self._auto_commit.leave(assigned)
        self._cache.close()

    def _forked(self) -> None:
        """Leave the queues of a consumer that was started to the parent process."""
        super()._forked()
        is_mine = self.service_state is ServiceState.CREATE_JUST
        self._assigned = self._assigned.forked() if is_mine else AssignedQueues(monotonic_ms)
        self._cache = ConsumeRequestCache()
        self._tasks = {}
        self._failed_topics = set()
        self._changing_tasks = mutex()
        self._auto_commit = self._new_auto_commit()

    # ---- what pull tasks need

    def first_offset(self, queue: MessageQueue) -> Place:
        """Return the place at which to begin a queue."""
        return self._offsets.begin_at(queue)

    def is_ready(self, queue: MessageQueue) -> bool:
        """Return whether the queue's broker is connected, so that it can be asked at once."""
        return self._brokers.is_ready(queue)

    def pull(self, queue: MessageQueue, queue_offset: int, then: Then) -> Abandon:
        """Ask the queue's broker for messages at ``queue_offset``; ``then`` gets its answer."""
        subscription = self._subscriptions.get(queue.topic)
        if subscription is None:
            subscription = subscription_data(queue.topic, self._selector_for_assign, 0)
        return self._brokers.pull(
            Pull(
                queue,
                queue_offset,
                subscription,
                self._lite.pull_batch_size,
                self._lite.broker_suspend_max_time_ms,
                self._lite.consumer_timeout_ms_when_suspend,
                is_lite=True,
            ),
            then,
        )

    def deliver(self, request: ConsumeRequest) -> None:
        """Hand the pulled messages of a ``request`` to `poll`."""
        self._cache.put(request)

    def bury(self, assigned: AssignedQueue, epoch: int, message: MessageExt) -> None:
        """Bury an unreadable message; the ``assigned`` queue's offset waits, in this ``epoch``."""

        def done() -> None:
            assigned.buried(epoch, message)
            self._auto_commit.returned(assigned)

        self._dead_letters.bury(message, lambda: not assigned.is_stale(epoch), done)

    @property
    def cached_messages(self) -> int:
        """Number of messages that `poll` may return without a pull."""
        return self._assigned.message_count

    @property
    def cached_bytes(self) -> int:
        """Number of bytes in the bodies of the messages that were pulled and not returned yet."""
        return self._assigned.body_bytes

    # ---- messages

    def poll(self, timeout_ms: int | None = None) -> list[MessageExt]:
        """Return messages of one queue, waiting for them; an empty list if none come in time.

        Args:
            timeout_ms: Milliseconds to wait; by default the setting ``poll_timeout_ms``.

        Raises:
            ClientShutDown: The consumer is not running.
            MessageRejected: ``timeout_ms`` is negative, or longer than 24 days.
            TypeError: ``timeout_ms`` is no number.
        """
        self._check_running()
        if timeout_ms is not None:
            check_time_ms("timeout_ms", timeout_ms)
        self._auto_commit.more_is_wanted()
        return self._take(self._lite.poll_timeout_ms if timeout_ms is None else timeout_ms)

    def _take(self, timeout_ms: int, most: int | None = None) -> list[MessageExt]:
        try:  # Without the lock: another thread may have less time.
            if (request := self._cache.poll(timeout_ms, most)) is None:
                return []
            self._note_returned(request.assigned)
            messages = observing.taken(self.group, request.messages)
            request.assigned.returned_offset = request.assigned.delivered_offset
        except BaseException:  # out of a signal handler, at any line
            self._return_again()
            raise
        return messages

    def _return_again(self) -> None:
        """Have come again what was taken and has not reached its caller."""
        with self._changing_tasks:
            for task in self._tasks.values():
                task.assigned.return_again()
                task.wake()
            self._cache.forget_stale()

    def _note_returned(self, assigned: AssignedQueue) -> None:
        """Note that messages of a queue are returned; pull on before the cache has run dry."""
        self._auto_commit.returned(assigned)
        for task in list(self._tasks.values()):
            limit = self._lite.limits.pull_threshold_for_queue // 2
            if task.is_throttled and task.assigned.process_queue.message_count <= limit:
                task.is_throttled = False
                task.wake()

    def _queue_infos(self, now_ms: int) -> Mapping[MessageQueue, ProcessQueueInfo]:
        return {
            assigned.queue: assigned.process_queue.info(assigned.consume_offset, now_ms)
            for assigned in self._assigned.all()
        }
