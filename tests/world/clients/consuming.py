"""The consumer of a process in a simulated world: created, started, listening or polling, shut
down.
"""

import threading
import time
from functools import partial
from math import inf

from world.clients.listening import Listener, queue_of

from rmq_spark.client.consumer.lite_pull_consumer import LitePullConsumer
from rmq_spark.client.consumer.pull.pull_task import PullLimits
from rmq_spark.client.consumer.push_consumer import PushConsumer
from rmq_spark.client.consumer.rebalance.strategies import (
    AllocateMessageQueueAveragely,
    AllocateMessageQueueAveragelyByCircle,
    AllocateMessageQueueConsistentHash,
)
from rmq_spark.client.consumer.settings import LitePullSettings, PushSettings
from rmq_spark.client.errors import ClientError
from rmq_spark.client.instance.instance import SHUTDOWN_MS
from rmq_spark.wire.bodies.clients import ConsumeFromWhere, MessageModel

CONSUME = "consume"
POLL_MS = 1_000
_ON_TOP_SECONDS = 0.1
_LEAVES_SECONDS = 1.0
"""Seconds for leaving. A member that takes longer, on a slow connection, logs the offsets that it
could not store."""
_START_SECONDS = 30.0
_START_AGAIN_SECONDS = 1.0
_ALONE_SECONDS = 1.0
_SETTLE_SECONDS = 5.0
_COMMIT_SECONDS = 6.0 + 8 * 6.0
"""Seconds for a commit: connecting and negotiating, then a check and an offset for each queue of a
broker. Each request may take just less than its three seconds on a slow connection."""

STRATEGIES = {
    "averagely": AllocateMessageQueueAveragely,
    "by circle": AllocateMessageQueueAveragelyByCircle,
    "consistent hash": AllocateMessageQueueConsistentHash,
}
WHERE = {
    "first": ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
    "last": ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
    "timestamp": ConsumeFromWhere.CONSUME_FROM_TIMESTAMP,
}


class Consuming:
    """Successive consumers with the same settings."""

    def __init__(
        self,
        life,
        kind,
        group,
        topics,
        *,
        broadcasting,
        moods,
        settings,
        queue_messages_max=1_000,
        auto_commit=True,
        where="first",
        strategy="averagely",
        client_id=None,
        is_assigned=False,
        speaks_plainly=False,
    ):
        """``queue_messages_max`` limits the cache of each queue.

        Successive clients have the same ``client_id``; a consumer that ``is_assigned`` takes all
        queues by hand; a client that ``speaks_plainly`` uses no extensions.
        """
        self._life = life
        self._world = life.world
        self.kind = kind
        self.group = group
        self.topics = topics
        self._is_broadcasting = broadcasting
        self._auto_commit = auto_commit
        common = {
            "message_model": MessageModel.BROADCASTING if broadcasting else MessageModel.CLUSTERING,
            "consume_from_where": WHERE[where],
            "allocate_message_queue_strategy": STRATEGIES[strategy](),
            "local_offset_directory": life.world.directory,
            "limits": PullLimits(pull_threshold_for_queue=queue_messages_max),
        }
        if kind == "lite":
            self._settings = LitePullSettings(**common, **settings, auto_commit=auto_commit)
        else:
            self._settings = PushSettings(**common, **settings)
        timeout_ms, tries_max = (
            settings.get("consume_timeout_ms"),
            settings.get("max_reconsume_times", -1),
        )
        self.reader = life.world.ledger.reader(
            f"{group} at {life.host.name}" if broadcasting else group,
            group=group,
            topics=tuple(topics),
            is_orderly=kind == "orderly",
            is_broadcasting=broadcasting,
            gives_back_after=inf if timeout_ms is None or broadcasting else timeout_ms / 1000,
            tries_max=inf if tries_max < 0 or broadcasting else tries_max + 1,
        )
        self.reader.begins_anywhere |= where != "first"
        self.client = {"client_id": client_id} if client_id is not None else {}
        if speaks_plainly:
            self.client["extensions"] = frozenset()
        self.is_assigned = is_assigned
        self.listener = Listener(life.world, life.process, self.reader, moods, life.dice)
        self.instance = None
        self.consumer = None

    @property
    def is_alone(self):
        """Return whether no other host has a consumer of its group."""
        return self._world.is_alone(self.group)

    def disturbs(self, seconds=0.0):
        """Record that this member moves queues for a while, if the group has others."""
        settles = (
            _ALONE_SECONDS
            if self.is_alone
            else self._settings.rebalance_interval_ms / 1000 + _SETTLE_SECONDS
        )
        self._world.ledger.disturbed(seconds + settles, self.group)

    # ---- lifecycle

    def begin(self, instance=None):
        """Start a consumer, with retries; the first attempt uses this instance, if given."""
        world, process = self._world, self._life.process
        while True:
            self.disturbs()
            self.reader.filters.end(process.host, world.kernel.now)
            is_shared = instance is not None and self is not self._life.consumings[0]
            self.instance = instance or self._life.new_instance(**self.client)
            instance = None
            self.consumer = consumer = self._new_consumer()
            try:
                if not self.is_assigned:
                    for topic in self.topics:
                        consumer.subscribe(topic)
                with world.watch.within(process, "start of a consumer", _START_SECONDS):
                    consumer.start()
                if self.is_assigned:
                    follow = partial(self._follow, consumer)
                    for topic in self.topics:
                        consumer.register_topic_message_queue_change_listener(topic, follow)
                    self.assign_all()
                break
            except ClientError as error:
                world.note(f"{process.name} cannot start its consumer: {error}")
                consumer.shutdown()
                if not is_shared:
                    self.instance.shutdown()
                time.sleep(_START_AGAIN_SECONDS)
        world.note(f"{process.name} consumes")
        world.ledger.is_present(self.reader)
        if self.kind == "lite":
            threading.Thread(
                target=self._poll_on, args=(consumer,), name=f"{process.name} polls"
            ).start()

    def all_queues(self):
        """Return all queues of its topics, from the routes."""
        consumer = self.consumer
        return [queue for topic in self.topics for queue in consumer.fetch_message_queues(topic)]

    def _follow(self, consumer, _topic, _queues):
        """Assign all current queues to a consumer with manual assignment."""
        self.assign_all_at_last(consumer)

    def assign_all_at_last(self, consumer):
        """Assign all queues, with retries, as a user does who must not stop at a closed topic."""
        while consumer.is_running:
            try:
                self.assign_all()
            except ClientError as error:  # noqa: PERF203  # retried
                self._world.note(f"{self._life.process.name} cannot assign all: {error}")
                time.sleep(_START_AGAIN_SECONDS)
            else:
                return

    def assign_all(self):
        """Assign all current queues to the consumer."""
        self.disturbs()
        self.consumer.assign(self.all_queues())

    def end(self):
        """Shut down the consumer and its client."""
        self._end(self.consumer, self.instance)

    def end_alone(self):
        """Shut down the consumer; others keep using its client."""
        self.instance.start()
        self._end(self.consumer)

    def end_first(self):
        """Shut down the consumer before another one with the same client."""
        self._end(self.consumer)

    def _end(self, *those):
        world = self._world
        began_at, finished = world.kernel.now, world.ledger.finished_by(self.reader)
        self.disturbs()
        for each in those:
            what = f"shutdown of a {type(each).__name__}"
            with self._world.watch.within(
                self._life.process, what, SHUTDOWN_MS / 1000 + _ON_TOP_SECONDS
            ):
                each.shutdown()
        world.ledger.leaves_busy(self.reader, self._life.process)
        is_in_time = world.kernel.now - began_at < _LEAVES_SECONDS
        is_its_own = self.reader.is_broadcasting or self.is_alone
        if self.kind != "lite" and is_its_own and is_in_time:
            world.ledger.was_shut_down(self.reader, finished, began_at)
        world.note(f"{self._life.process.name} consumes no more")

    def _new_consumer(self):
        if self.kind == "lite":
            return LitePullConsumer(self.group, instance=self.instance, settings=self._settings)
        listener = {"orderly": "orderly_listener", "concurrent": "listener"}[self.kind]
        return PushConsumer(
            self.group, instance=self.instance, settings=self._settings, **{listener: self.listener}
        )

    # ---- polling consumers

    def _poll_on(self, consumer):
        """Poll, process and commit in a loop, as a program does; wait a moment after a failure."""
        world, process = self._world, self._life.process
        while consumer.is_running:
            try:
                self._poll_once(consumer)
            except ClientError as error:  # noqa: PERF203  # retried
                world.note(f"{process.name} polls: {error}")

    def _poll_once(self, consumer):
        watch, process = self._world.watch, self._life.process
        with watch.within(process, "poll", POLL_MS / 1000 + _ON_TOP_SECONDS):
            messages = consumer.poll(POLL_MS)
        self._deal_with(messages)
        if not self._auto_commit and messages and self._life.dice.random() < 0.5:
            with watch.within(process, "commit", _COMMIT_SECONDS):
                consumer.commit()

    def _deal_with(self, messages):
        if not messages:
            return
        queue = queue_of(messages[0].queue)
        call = self._world.ledger.begins(self.reader, self._life.process, queue, messages)
        time.sleep({"slow": 0.3, "very slow": 4.0}.get(self.listener.mood(), 0.001))
        self._world.ledger.ends(call, messages, len(messages))
