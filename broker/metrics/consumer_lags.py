"""ConsumerLags: the lag of each group in each of its topics, online or not.

The lag is measured from the committed offsets. A topic that an online group no longer subscribes to
is left out, because the group will not consume the rest of it. A queue without a committed offset
counts from its first message.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from rmq_spark.wire.bodies.configs import TopicConfig

from ..processor.processor import BrokerParts
from ..processor.queues import store_timestamp
from ..store.errors import EndUnknown, StoreError
from ..store.queues.consume_queue import QueueBounds

_TIMES_MAX: Final = 20_000
"""The maximum number of store times kept for the next collection; others are read again."""
_QueuePosition = tuple[str, int, int]
_StoreTimesByPosition = dict[_QueuePosition, int]


class ConsumerLag(NamedTuple):
    """The lag of a group in a topic, and the age of its oldest message; 0 without messages."""

    group: str
    topic: str
    messages: int
    latency_ms: int


class ConsumerLags:
    """Collects the lags of all groups in steps."""

    def __init__(self, broker: BrokerParts) -> None:
        self._broker = broker
        self._store_times: _StoreTimesByPosition = {}
        """The store times of the messages at the groups' offsets, as of the last collection: the
        log is read only once for a group that does not advance.
        """

    def collect(self) -> Iterator[ConsumerLag | None]:
        """Yield the lags, and None after each step; they are not a snapshot."""
        before, self._store_times = self._store_times, {}
        groups_of = yield from self._groups_by_topic()
        for topic in sorted(groups_of):
            config = self._broker.topics.get(topic)
            if config is not None:
                yield from self._topic_lags(config, groups_of.pop(topic), before)

    def _groups_by_topic(self) -> Generator[None, None, dict[str, list[str]]]:
        """Return groups with offsets by topic, unless they are online and do not consume it."""
        groups_of: dict[str, list[str]] = {}
        for group in sorted(self._broker.groups.groups):
            yield
            online = self._broker.consumers.group(group)
            for topic in self._broker.offsets.topics_of(group):
                if online is None or not online.subscriptions or topic in online.subscriptions:
                    groups_of.setdefault(topic, []).append(group)
                    yield
        return groups_of

    def _topic_lags(
        self, config: TopicConfig, groups: Iterable[str], previous: _StoreTimesByPosition
    ) -> Iterator[ConsumerLag | None]:
        topic = config.topic_name
        queues = yield from self._bounds(topic, config.read_queue_nums)
        all_messages = sum(map(_count, queues.values()))
        oldest_first: Sequence[tuple[int, int]] | None = None
        for group in groups:
            known = dict(self._broker.offsets.queues(group, topic))
            messages, oldest = yield from self._lag_in_queues(topic, known, queues, previous)
            messages += all_messages
            if not queues.keys() <= known.keys():
                if oldest_first is None:
                    oldest_first = yield from self._oldest_first(topic, queues, previous)
                others = (stored for stored, queue_id in oldest_first if queue_id not in known)
                oldest = _min_time(oldest, next(others, 0))
            latency_ms = max(self._broker.now_ms() - oldest, 0) if oldest else 0
            yield ConsumerLag(group, topic, messages, latency_ms)

    def _bounds(self, topic: str, queue_nums: int) -> Generator[None, None, dict[int, QueueBounds]]:
        """Return the bounds of the topic's queues that have had messages and are open."""
        queues = {}
        for queue_id in range(queue_nums):
            yield
            with suppress(EndUnknown):  # the start is not finished
                bounds = self._broker.store.queue_offsets(topic, queue_id)
                if bounds.next:
                    queues[queue_id] = bounds
        return queues

    def _lag_in_queues(
        self,
        topic: str,
        offsets: Mapping[int, int],
        queues: Mapping[int, QueueBounds],
        previous: _StoreTimesByPosition,
    ) -> Generator[None, None, tuple[int, int]]:
        """Return by how much a group's lag exceeds the number of all messages, and a store time.

        The time is that of the oldest message in the group's lag, in queues in which the group has
        an offset, in milliseconds; 0 without such a message.
        """
        messages = oldest = 0
        for queue_id, queue_offset in offsets.items():
            yield
            bounds = queues.get(queue_id)
            if bounds is None:
                continue
            lag = max(bounds.next - queue_offset, 0)
            messages += lag - _count(bounds)
            if lag:
                position = (topic, queue_id, max(queue_offset, bounds.first))
                oldest = _min_time(oldest, self._stored_at(position, previous))
        return messages, oldest

    def _oldest_first(
        self, topic: str, queues: Mapping[int, QueueBounds], previous: _StoreTimesByPosition
    ) -> Generator[None, None, list[tuple[int, int]]]:
        """Return the store time and queue id of each queue's first message, oldest first."""
        first_stored = []
        for queue_id, bounds in queues.items():
            yield
            stored = self._stored_at((topic, queue_id, bounds.first), previous)
            if stored:
                first_stored.append((stored, queue_id))
        return sorted(first_stored)

    def _stored_at(self, position: _QueuePosition, previous: _StoreTimesByPosition) -> int:
        """Return when a message was stored, in milliseconds, or 0 if the disk cannot be read."""
        stored = self._store_times.get(position) or previous.get(position)
        if stored is None:
            try:
                stored = store_timestamp(self._broker.store, *position)
            except (StoreError, OSError):  # consumers and the log report the error
                return 0
        if stored and len(self._store_times) < _TIMES_MAX:
            self._store_times[position] = stored
        return stored


def _count(bounds: QueueBounds) -> int:
    return bounds.next - bounds.first


def _min_time(stored: int, other: int) -> int:
    """Return the earlier of two times; 0 stands for no time."""
    return min(stored or other, other or stored)
