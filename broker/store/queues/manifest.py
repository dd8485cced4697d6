"""StoreManifest: what a store held at a checkpoint, so that a start need not read all files.

It is kept as config/manifest.json, which RocketMQ does not have and ignores.

Deleting a topic must not take longer the more topics there are. So config/deletions.json holds the
deletions since the manifest was saved, up to `DELETIONS_MAX`, and applies only to that manifest.
The next save of the manifest includes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from rmq_spark.errors import BodyError
from rmq_spark.wire.message.record_layout import RECORD_BYTES_MIN
from rmq_spark.wire.message_queue import QueueKey
from rmq_spark.wire.names import is_light_queue

from ..records.fields import topic_fault
from ..records.store_timeline import StoreTimeline
from ..results import LOG_START, Hole, PhysicalOffset, QueueOffset
from .queue_table import QueueSpan
from .rolled_back_offsets import NUMBERS_PER_RANGE as TAKEN_BACK_NUMBERS

MANIFEST: Final = "manifest.json"
DELETIONS: Final = "deletions.json"
DELETIONS_MAX: Final = 256
"""Deletions kept beside a manifest; each deletion rewrites them all, some ten kilobytes."""
DELETED_TOPICS_MAX: Final = 100_000
"""Deleted topics with messages left in the log: 5 MB of the manifest."""
_NUMBERS = 3


@dataclass(frozen=True, kw_only=True)
class Deletions:
    """The deletions since a manifest was saved, and the topics that are half deleted."""

    serial: int = 0
    """The serial number of that manifest."""
    deleted_topics: Mapping[str, PhysicalOffset] = field(default_factory=dict)
    half_deleted: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class StoreManifest:
    """The queues and index at the time when the log had been dispatched up to `safe_offset`."""

    serial: int = 0
    """The number of this save. The checkpoint has it too, so that an older copy is not mistaken for
    the newest."""
    safe_offset: PhysicalOffset | None = None
    """The offset before which all records were in queues and index; None if the manifest is
    invalid."""
    log_min_offset: PhysicalOffset = LOG_START
    keeps_expired: bool = False
    """True if an unreadable queue still has entries of records before `log_min_offset`."""
    spans: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """The queues of each topic, one after another: number, first offset, next offset."""
    index_files: tuple[str, ...] | None = None
    """The names of the index files; None if there was no index."""
    entries_were_confirmed: bool = False
    """True if queues only have entries of confirmed records until the next checkpoint."""
    holes: tuple[Hole, ...] = ()
    """The parts of the log without records, for which queues have blank entries."""
    deleted_topics: Mapping[str, PhysicalOffset] = field(default_factory=dict)
    """Deleted topics, and the offsets before which their records must not be dispatched again."""
    half_deleted: tuple[str, ...] = ()
    """Deleted topics whose other data, such as offsets of groups, may still exist."""
    taken_back: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Rolled-back rows of each topic, until a later message of their queue follows. Each range of
    rows has five numbers: queue, first offset, next offset, first position, last position."""
    store_time_gap: int = 0
    """The longest time between two messages of the log, in milliseconds."""
    store_time_steps: tuple[PhysicalOffset, ...] = ()
    """The log offsets at which store times go back by a minute or more."""
    newest_mark: int | None = None
    """The highest mark of a commit of staged rows; None if there never was one."""

    is_rebuilding: bool = False
    """True while all queues are rebuilt from the log, up to `safe_offset` so far. A start resumes
    there, with the same result as without the interruption."""
    least_ends: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """The minimum ends of queues during a rebuild, so that no offset is assigned twice. Each queue
    has three numbers: its own, its next offset, and 1 if its files had that end or 0 if only an
    earlier manifest had it."""

    def __post_init__(self) -> None:
        """Raise `BodyError` for impossible spans of queues, or impossible holes."""
        for name, queues in (("spans", self.spans), ("leastEnds", self.least_ends)):
            for topic, numbers in queues.items():
                if len(numbers) % _NUMBERS or min(numbers, default=0) < 0 or topic_fault(topic):
                    raise BodyError(
                        "manifest",
                        at=f"$.{name}.{topic}",
                        needed="three numbers for each queue",
                        found=numbers,
                    )

        for topic, numbers in self.taken_back.items():
            if len(numbers) % TAKEN_BACK_NUMBERS or min(numbers, default=0) < 0:
                raise BodyError(
                    "manifest",
                    at=f"$.takenBack.{topic}",
                    needed="five numbers for rows that were rolled back",
                    found=numbers,
                )

        holes: tuple[tuple[int, ...], ...] = self.holes  # a file may contain anything
        for hole in holes:
            if len(hole) != 2 or not 0 <= hole[0] <= hole[1]:
                raise BodyError(
                    "manifest", at="$.holes", needed="two places, start and end", found=hole
                )

    @classmethod
    def spans_of(cls, queues: Iterable[QueueSpan]) -> Mapping[str, tuple[int, ...]]:
        """Return the `spans` for the spans of queues."""
        found: dict[str, list[int]] = {}
        for topic, *numbers in queues:
            found.setdefault(topic, []).extend(numbers)
        return {topic: tuple(numbers) for topic, numbers in found.items()}

    def queues(self) -> Iterator[QueueSpan]:
        """Yield the span of each queue."""
        for topic, numbers in self.spans.items():
            for at in range(0, len(numbers), _NUMBERS):
                queue_id, first, end = numbers[at : at + _NUMBERS]
                yield QueueSpan(topic, queue_id, QueueOffset(first), QueueOffset(end))

    def ends(self) -> dict[QueueKey, QueueOffset]:
        """Return the next offset of each queue."""
        return {
            (topic, queue_id): QueueOffset(max_offset)
            for topic, numbers in self.spans.items()
            for queue_id, max_offset in zip(
                numbers[::_NUMBERS], numbers[_NUMBERS - 1 :: _NUMBERS], strict=True
            )
        }

    @classmethod
    def least_ends_of(
        cls, saved: Mapping[QueueKey, QueueOffset], in_files: Mapping[QueueKey, QueueOffset]
    ) -> Mapping[str, tuple[int, ...]]:
        """Return the `least_ends` for ends from a manifest and ends found in files."""
        found: dict[str, list[int]] = {}
        for ends, is_in_files in ((saved, 0), (in_files, 1)):
            for (topic, queue_id), end in ends.items():
                found.setdefault(topic, []).extend((queue_id, end, is_in_files))
        return {topic: tuple(numbers) for topic, numbers in found.items()}

    def saved_ends(self) -> dict[QueueKey, QueueOffset]:
        """Return the ends that this manifest or an earlier one has."""
        return {**self.ends(), **self._least_ends(0)}

    def file_ends(self) -> dict[QueueKey, QueueOffset]:
        """Return the ends that the files of queues had before the rebuild."""
        return self._least_ends(1)

    def _least_ends(self, is_in_files: int) -> dict[QueueKey, QueueOffset]:
        return {
            (topic, numbers[at]): QueueOffset(numbers[at + 1])
            for topic, numbers in self.least_ends.items()
            for at in range(0, len(numbers), _NUMBERS)
            if numbers[at + 2] == is_in_files
        }

    def store_times(self, last_ms: int) -> StoreTimeline:
        """Return the timeline of store timestamps, given the last one."""
        return StoreTimeline(last_ms, self.store_time_gap, self.store_time_steps)

    def without_light_queues(self) -> StoreManifest:
        """Return a manifest without light queues, which an earlier release mistook for topics."""
        spans = {topic: each for topic, each in self.spans.items() if not is_light_queue(topic)}
        return replace(self, spans=spans)

    def without_impossible_queues(self) -> StoreManifest:
        """Return a manifest without queues of more messages than the log ever had room for."""
        count_max = (self.safe_offset or 0) // RECORD_BYTES_MIN
        spans = [queue for queue in self.queues() if queue.max_offset <= count_max]
        return replace(self, spans=self.spans_of(spans), is_rebuilding=False, least_ends={})

    def with_deletions(self, deletions: Deletions) -> StoreManifest:
        """Return the manifest without topics that were deleted since it was saved."""
        if deletions.serial != self.serial:
            return self
        deleted = deletions.deleted_topics
        return replace(
            self,
            spans={name: each for name, each in self.spans.items() if name not in deleted},
            least_ends={
                name: ends for name, ends in self.least_ends.items() if name not in deleted
            },
            taken_back={
                name: rows for name, rows in self.taken_back.items() if name not in deleted
            },
            deleted_topics={**self.deleted_topics, **deleted},
            half_deleted=deletions.half_deleted,
        )
