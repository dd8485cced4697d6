"""ConsumerOffsetManager: the offset that each group has committed in each queue.

It is saved as consumerOffset.json, in RocketMQ's form: ``topic@group``, then queue. Neither name
can contain an @.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from itertools import chain
from types import MappingProxyType
from typing import Final

from rmq_spark.wire.bodies.configs import ConsumerOffsetSerializeWrapper

from .table import SavedTable, Table, check_limit

_log = logging.getLogger(__name__)
_SEPARATOR: Final = "@"
_NO_OFFSETS: Final[Mapping[int, int]] = MappingProxyType({})
_BEFORE_FIRST: Final = -1


class ConsumerOffsetManager(SavedTable[ConsumerOffsetSerializeWrapper]):
    """All committed offsets, each that of the next message to consume.

    A change is durable after the next `save`.
    """

    def __init__(self, table: Table[ConsumerOffsetSerializeWrapper], *, max_offsets: int) -> None:
        """Load the table; ``max_offsets`` limits the offsets of all groups and queues together.

        Entries under keys other than ``topic@group`` are kept, and saved again.
        """
        self.max_offsets = max_offsets
        self.count = 0
        super().__init__(table, self.wrapper)
        loaded = table.load(ConsumerOffsetSerializeWrapper())
        self._data_version = loaded.data_version
        self._groups: dict[str, dict[str, dict[int, int]]] = defaultdict(dict)
        self._unparsed: dict[str, Mapping[int, int]] = {}
        for key, queues in loaded.offset_table.items():
            topic, _, group = key.partition(_SEPARATOR)
            if topic and group and _SEPARATOR not in group:
                right = {queue: at for queue, at in queues.items() if queue >= 0 and at >= 0}
                if len(right) < len(queues):
                    _log.warning(
                        "negative offsets or queues of %s are dropped",
                        key,
                    )
                self._groups[group][topic] = right
                self.count += len(right)
            else:
                self._unparsed[key] = queues

    def query(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the stored offset, or None."""
        return self.queues(group, topic).get(queue_id)

    def commit(self, group: str, topic: str, queue_id: int, queue_offset: int) -> None:
        """Store an offset, forwards or back, as seeks and resets do.

        Raises:
            ValueError: The offset or the queue id is negative.
            TooMany: The table is full.
        """
        if queue_id < 0 or queue_offset < 0:
            raise ValueError(
                f"offset {queue_offset} of queue {queue_id} cannot be stored: below zero"
            )
        stored = self.query(group, topic, queue_id)
        if stored != queue_offset:
            if stored is None:
                self._reserve(1)
            self._groups[group].setdefault(topic, {})[queue_id] = queue_offset
            self.is_dirty = True

    def advance(self, group: str, topic: str, queue_id: int, queue_offset: int) -> None:
        """Store the offset of a pull, unless a later one is stored: pulls may be out of order."""
        stored = self.query(group, topic, queue_id)
        if queue_offset > (_BEFORE_FIRST if stored is None else stored):
            self.commit(group, topic, queue_id, queue_offset)

    def queues(self, group: str, topic: str) -> Mapping[int, int]:
        """Return the offsets of one group in one topic, by queue."""
        topics = self._groups.get(group)
        queues = topics.get(topic) if topics is not None else None
        return MappingProxyType(queues) if queues is not None else _NO_OFFSETS

    def topics_of(self, group: str) -> frozenset[str]:
        """Return the topics in which a group has offsets."""
        return frozenset(self._groups.get(group, ()))

    def groups_of(self, topic: str) -> frozenset[str]:
        """Return the groups that have offsets in a topic."""
        return frozenset(group for group, topics in self._groups.items() if topic in topics)

    def unconsumed(self, spans: Iterable[tuple[str, int, int, int]]) -> dict[str, int]:
        """Return how many messages of some spans each group has left unconsumed, if any.

        A span is a topic, a queue id, its first offset, and the offset past its last.
        """
        by_topic: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
        for topic, queue_id, first, end in spans:
            by_topic[topic].append((queue_id, first, end))
        counts: dict[str, int] = defaultdict(int)
        for group, topics in self._groups.items():
            for topic in by_topic.keys() & topics.keys():
                for queue_id, first, end in by_topic[topic]:
                    queue_offset = topics[topic].get(queue_id)
                    if queue_offset is not None and queue_offset < end:
                        counts[group] += end - max(first, queue_offset)
        return dict(counts)

    def clone(self, source_group: str, group: str, topic: str) -> None:
        """Replace a group's offsets in a topic by those of another group, if that has any."""
        source, own = self.queues(source_group, topic), self.queues(group, topic)
        if source and source != own:
            self._reserve(len(source) - len(own))
            self._groups[group][topic] = dict(source)
            self.is_dirty = True

    def discard_group(self, group: str) -> None:
        """Remove all offsets of a group."""
        topics = self._groups.pop(group, None)
        if topics:
            self.count -= sum(map(len, topics.values()))
            self.is_dirty = True

    def discard_topic(self, topic: str) -> None:
        """Remove all offsets of a topic: if it is recreated, it begins with offset 0 again."""
        for group in self.groups_of(topic):
            self.count -= len(self._groups[group].pop(topic))
            if not self._groups[group]:
                del self._groups[group]
            self.is_dirty = True

    def clamp(self, end_of: Callable[[str, int], int]) -> dict[str, int]:
        """Move offsets past the ends of their queues to these ends; return their number by topic.

        Otherwise a later pull would move the group to the end of the queue, past all messages that
        have arrived by then.
        """
        clamped: dict[str, int] = {}
        for topics in self._groups.values():
            for topic, queues in topics.items():
                for queue_id, queue_offset in queues.items():
                    end_offset = end_of(topic, queue_id)
                    if queue_offset > end_offset:
                        queues[queue_id] = end_offset
                        clamped[topic] = clamped.get(topic, 0) + 1
                        self.is_dirty = True
        return clamped

    def _reserve(self, more: int) -> None:
        check_limit(
            "consumer offsets", self.count, self.max_offsets, "maxConsumerOffsets", more=more
        )
        self.count += more

    def wrapper(self) -> ConsumerOffsetSerializeWrapper:
        """Return all offsets as they are saved."""
        return self._wrapper({**self._unparsed, **dict(self._entries())})

    def wrapper_in_steps(
        self, is_wanted: Callable[[str, str], bool]
    ) -> Generator[None, None, ConsumerOffsetSerializeWrapper]:
        """Return the offsets for which ``is_wanted(topic, group)`` is true, in steps.

        Each offset is as of its step.
        """
        table = {}
        for key, queues in chain(tuple(self._unparsed.items()), self._entries()):
            topic, _, group = key.partition(_SEPARATOR)
            if is_wanted(topic, group):
                table[key] = queues
            yield
        return self._wrapper(table)

    def _entries(self) -> Iterator[tuple[str, Mapping[int, int]]]:
        # Each level is copied before it is walked: commits continue meanwhile, also while another
        # thread saves.
        for group, topics in tuple(self._groups.items()):
            for topic, queues in tuple(topics.items()):
                yield f"{topic}{_SEPARATOR}{group}", dict(queues)

    def _wrapper(self, table: Mapping[str, Mapping[int, int]]) -> ConsumerOffsetSerializeWrapper:
        return ConsumerOffsetSerializeWrapper(offset_table=table, data_version=self._data_version)
