"""KeyQuery: messages of a topic by a key or a unique id, as the index leads to them.

The index knows hashes of keys and whole seconds: each record that it leads to is looked at. This
module must not know who asks, nor how long one may take.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rmq_spark.wire.framing import Buffer
from rocketpoll.broker.store.offsets import PhysicalOffset
from rocketpoll.broker.store.parts import StoreParts
from rocketpoll.broker.store.records.record_glance import has_key, stored_at

_CANDIDATES_PER_RESULT = 4


class KeyQuery:
    """Queries of a store; ``record_at`` gives the record at a place, if it is visible."""

    def __init__(
        self, parts: StoreParts, record_at: Callable[[PhysicalOffset], Buffer | None]
    ) -> None:
        self._index, self._reput, self._dispatcher = parts.index, parts.reput, parts.dispatcher
        self._record_at = record_at

    def in_steps(
        self, topic: str, key: str, max_num: int, begin_ms: int, end_ms: int
    ) -> Iterator[Buffer | None]:
        """Yield records with a key, the newest first, or None at a step that has found nothing.

        Records of a deleted topic of this name are left out.
        """
        if self._index is None:
            return
        while not self._reput.catch_up_index(lambda: True):
            yield None
        left = max_num
        since = self._dispatcher.deleted_topics.get(topic, 0)
        candidates_max = max_num * _CANDIDATES_PER_RESULT
        candidates = self._index.query(topic, key, begin_ms, end_ms, candidates_max)
        for physical_offset in dict.fromkeys(candidates):
            if not left:
                return
            record = self._record_at(physical_offset) if physical_offset >= since else None
            has_it = (
                record is not None
                and begin_ms <= stored_at(record) <= end_ms
                and has_key(record, topic.encode(), key.encode())
            )
            left -= has_it
            yield record if has_it else None
