"""Consumer lags: how far each group is behind in each of its topics, online or not.

A group is where its offsets say. A topic that an online group no longer subscribes to is left out:
nobody is going to consume the rest of it. A queue for which nothing is committed counts from its
first message. It must not know how lags are shown.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Final, NamedTuple

from rmq_spark.wire.bodies.configs import TopicConfig
from rocketpoll.broker.processor.store_times import store_timestamp
from rocketpoll.broker.state.consumers import ConsumerManager
from rocketpoll.broker.state_tables import StateTables
from rocketpoll.broker.store.errors import EndUnknown, StoreError
from rocketpoll.broker.store.message_store import MessageStore

_TIMES_MAX: Final = 20_000
"""Store times that are kept between two looks; further ones are read from the log again."""
_Place = tuple[str, int, int]
"""A topic, a queue and an offset in it."""


class ConsumerLag(NamedTuple):
    """The lag of a group in a topic.

    Attributes:
        group: The group.
        topic: The topic.
        messages: Messages of all queues behind the group's offsets.
        latency_ms: The age of the oldest of them, in milliseconds; 0 without any.
    """

    group: str
    topic: str
    messages: int
    latency_ms: int


class ConsumerLags:
    """The lags of all groups, in steps."""

    def __init__(
        self,
        store: MessageStore,
        tables: StateTables,
        consumers: ConsumerManager,
        now_ms: Callable[[], int],
    ) -> None:
        self._store = store
        self._tables = tables
        self._consumers = consumers
        self._now_ms = now_ms
        self._times: dict[_Place, int] = {}
        """Store times of the messages that groups were waiting at when last looked at: a group that
        stands still has the log read once for it, and not with every look."""

    def look(self) -> Iterator[ConsumerLag | None]:
        """Yield the lags, and None at each step between; what goes on meanwhile may show."""
        before, self._times = self._times, {}
        for group in sorted(self._tables.groups.groups):
            for config in self._consumed(group):
                lag = yield from self._lag(group, config, before)
                yield lag
            yield None

    def _consumed(self, group: str) -> Iterator[TopicConfig]:
        online = self._consumers.group(group)
        for topic in sorted(self._tables.offsets.topics_of(group)):
            config = self._tables.topics.get(topic)
            if config is not None and (
                online is None or not online.subscriptions or topic in online.subscriptions
            ):
                yield config

    def _lag(
        self, group: str, config: TopicConfig, before: dict[_Place, int]
    ) -> Generator[None, None, ConsumerLag]:
        topic = config.topic_name
        known = self._tables.offsets.queues(group, topic)
        messages, oldest = 0, 0
        for queue_id in range(config.read_queue_nums):
            yield
            try:
                first, end = self._store.queue_offsets(topic, queue_id)
            except EndUnknown:  # the start is not finished
                continue
            queue_offset = max(known.get(queue_id, first), 0)
            if queue_offset >= end:
                continue
            messages += end - queue_offset
            stored = self._stored_at((topic, queue_id, max(queue_offset, first)), before)
            oldest = min(oldest or stored, stored or oldest)
        latency_ms = max(self._now_ms() - oldest, 0) if oldest else 0
        return ConsumerLag(group, topic, messages, latency_ms)

    def _stored_at(self, place: _Place, before: dict[_Place, int]) -> int:
        """Return when a message was stored, in milliseconds; 0 if the disk does not say."""
        stored = self._times.get(place) or before.get(place)
        if stored is None:
            try:
                stored = store_timestamp(self._store, *place)
            except (StoreError, OSError):  # its readers are told, and so is the log
                return 0
        if stored and len(self._times) < _TIMES_MAX:
            self._times[place] = stored
        return stored
