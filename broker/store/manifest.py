"""Manifest: what a store held at its last checkpoint, by which a start notices what has gone missing since.

It is a small table beside the checkpoint, `config/manifest.json`. It knows no log and decodes no record.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from broker.store.index_service import IndexService
from broker.store.queue_table import QueueTable

MANIFEST = "manifest.json"


@dataclass(frozen=True, kw_only=True)
class QueueSpan:
    """What one queue held at a checkpoint."""

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

    def misses_anything(self, log_min_offset: int, queues: QueueTable, index: IndexService | None) -> bool:
        """Whether a queue or an index file that the checkpoint knew is not what it was."""
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
        return index is not None and not set(self.index_files) <= set(index.file_names)
