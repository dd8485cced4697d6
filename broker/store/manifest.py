"""The manifest: what was there at a checkpoint, by which a start notices what has gone missing since.

Kept as config/manifest.json; RocketMQ has nothing like it, and leaves it alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from broker.store.queue_table import QueueTable

MANIFEST: Final = "manifest.json"


@dataclass(frozen=True, kw_only=True)
class QueueSpan:
    """What one queue held."""

    min_offset: int
    max_offset: int


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """See the module."""

    log_min_offset: int = 0
    queues: Mapping[str, Mapping[int, QueueSpan]] = field(default_factory=dict)
    index_files: tuple[str, ...] = ()
    deleted_topics: Mapping[str, int] = field(default_factory=dict)
    """Records of these topics before these places in the log are not to be dispatched again."""

    def without_topic(self, topic: str, deleted_topics: Mapping[str, int]) -> Manifest:
        """The same, when a topic is about to be deleted."""
        queues = {name: queues for name, queues in self.queues.items() if name != topic}
        return replace(self, queues=queues, deleted_topics=dict(deleted_topics))

    def is_anything_missing(
        self, log_min_offset: int, queues: QueueTable, index_files: tuple[str, ...] | None
    ) -> bool:
        """Whether a queue or an index file is not what it was; None: there is to be no index."""
        if self.log_min_offset != log_min_offset:
            return True  # a crash came between the deletion of old files and the checkpoint behind it
        for topic, spans in self.queues.items():
            for queue_id, span in spans.items():
                queue = queues.get(topic, queue_id)
                found = (queue.min_offset, queue.max_offset) if queue is not None else (0, 0)
                if span.min_offset < span.max_offset and not (
                    found[0] <= span.min_offset and span.max_offset <= found[1]
                ):
                    return True
        return index_files is not None and not set(self.index_files) <= set(index_files)

    def keep_numbers(self, queues: QueueTable) -> None:
        """No queue offset is given twice, even if the log has lost the last messages of a queue."""
        for topic, spans in self.queues.items():
            for queue_id, span in spans.items():
                queues.get_or_make(topic, queue_id).skip_to(span.max_offset)


def manifest_of(
    log_min_offset: int, spans: Iterable[tuple[str, int, int, int]], deleted_topics: Mapping[str, int]
) -> Manifest:
    """What was there, but for the index, by the spans of the queues."""
    queues: dict[str, dict[int, QueueSpan]] = {}
    for topic, queue_id, min_offset, max_offset in sorted(spans):
        queues.setdefault(topic, {})[queue_id] = QueueSpan(min_offset=min_offset, max_offset=max_offset)
    return Manifest(log_min_offset=log_min_offset, queues=queues, deleted_topics=dict(deleted_topics))
