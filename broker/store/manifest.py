"""The manifest: what a store held at a checkpoint, so that a start need not read it from the files.

Kept as config/manifest.json; RocketMQ has nothing like it, and leaves it alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from rmq_spark.errors import BodyError
from rmq_spark.wire.record_layout import RECORD_BYTES_MIN
from rocketpoll.broker.store.queue_table import QueueSpan, topic_fault

MANIFEST: Final = "manifest.json"
_NUMBERS = 3


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """All that is said of queues and index holds for the moment when the log had been dispatched so far."""

    serial: int = 0
    """Counts the saves. The checkpoint notes it, so that an older copy is not taken for the newest."""
    safe_offset: int | None = None
    """Records before it were in their queues and in the index; None: nobody has noted that."""
    log_min_offset: int = 0
    spans: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Of each topic the queues: number, first offset, next offset, one queue behind the other."""
    index_files: tuple[str, ...] | None = None
    """None: there was no index."""
    entries_were_confirmed: bool = False
    """Whether queues hold entries only of records that no crash takes back, until the next checkpoint."""
    holes: tuple[tuple[int, int], ...] = ()
    """From where to where the log had no records, so that queues have blank entries instead of messages."""
    deleted_topics: Mapping[str, int] = field(default_factory=dict)
    """Records of these topics before these places in the log are not to be dispatched again."""
    half_deleted: tuple[str, ...] = ()
    """Of these topics, others may still keep what belonged to the one that was deleted."""

    def __post_init__(self) -> None:
        """Raise `BodyError` for spans that no queues could have had."""
        for topic, numbers in self.spans.items():
            if len(numbers) % _NUMBERS or min(numbers, default=0) < 0 or topic_fault(topic):
                raise BodyError(
                    "manifest", at=f"$.spans.{topic}", needed="three numbers for each queue", found=numbers
                )

    @classmethod
    def spans_of(cls, queues: Iterable[QueueSpan]) -> Mapping[str, tuple[int, ...]]:
        """Write down what queues hold."""
        found: dict[str, list[int]] = {}
        for topic, *numbers in queues:
            found.setdefault(topic, []).extend(numbers)
        return {topic: tuple(numbers) for topic, numbers in found.items()}

    def queues(self) -> Iterator[QueueSpan]:
        """Read what queues held."""
        for topic, numbers in self.spans.items():
            for at in range(0, len(numbers), _NUMBERS):
                yield QueueSpan(topic, *numbers[at : at + _NUMBERS])

    def plausible(self) -> Manifest:
        """Leave out what cannot be: queues of more messages than the log has ever had room for."""
        count_max = (self.safe_offset or 0) // RECORD_BYTES_MIN
        spans = [queue for queue in self.queues() if queue.max_offset <= count_max]
        return replace(self, spans=self.spans_of(spans))

    def without_topic(
        self, topic: str, deleted_topics: Mapping[str, int], half_deleted: tuple[str, ...]
    ) -> Manifest:
        """Leave out a topic that is about to be deleted."""
        spans = {name: numbers for name, numbers in self.spans.items() if name != topic}
        return replace(self, spans=spans, deleted_topics=dict(deleted_topics), half_deleted=half_deleted)
