"""ChunkAppender: checks many ready-encoded records, fills in their positions, and appends them.

`MessageAppender` decides on the order of appends and on queue offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from rmq_spark.errors import RecordError
from rmq_spark.wire.message.properties import DELAY, TIMER_PROPERTIES
from rmq_spark.wire.message_queue import QueueKey
from rmq_spark.wire.names import light_queue_fault
from rmq_spark.wire.remoting.framing import Buffer

from ..bulk import bulk_tools
from ..bulk import lazy_numpy as np
from ..errors import StoreFailed, TransientFailure
from ..log.commit_log import CommitLog, EncodedRecords
from ..records.fields import NO_MARK, TRANSACTION_MASK, mark_rows, topic_fault
from ..records.recent_writes import RecentChunk, RecentWriteQueue
from ..results import (
    FIRST_IN_QUEUE,
    LOG_START,
    PutMessageResult,
    PutMessageStatus,
    QueueOffset,
)
from ..steps import ResultT, Steps
from .message_appender import MessageAppender, illegal_result, unavailable_result
from .record_encoding import RecordRun, RecordTemplate, UniformParts

if TYPE_CHECKING:
    import numpy.typing as npt

    from rmq_spark.wire.chunk import RecordChunk


_PART_RECORDS = 4_096
"""The maximum number of records of a part, whose bytes stay in the processor's cache while their
positions are written."""


class _PartBuilder(NamedTuple):
    """A part of a large batch under construction: records without their positions."""

    records: bytearray
    sizes: list[int]

    def build(self) -> RecordChunk:
        return bulk_tools.RecordChunk(self.records, self.sizes)


_Rows: TypeAlias = "tuple[RecordChunk, int, int]"
"""Some rows of a part: the part, the first row, and the row past the last one."""
Sizes: TypeAlias = "npt.ArrayLike"
"""The sizes of records that lie back to back."""


RECORDS_MAX: Final = 32_768
"""The maximum number of records of a chunk, which one step appends in some ten milliseconds."""
RECORDS_PER_STEP: Final = 16_384
"""The number of records that one step appends if other appends may come between steps."""
_PART_BYTES = 1 << 20
"""Bytes of records to check at a time, in a few milliseconds."""

FULL_TURN: Final[Future[None]] = Future()
"""A completed future. A generator yields it before an append of very many records, which then
begins in a new turn of the event loop."""
FULL_TURN.set_result(None)

AdmitFunction: TypeAlias = Callable[[], object]
"""Raises if messages must not be put now, such as after their topic was deleted."""


class CheckedChunk(NamedTuple):
    """The checked records of a chunk, and their queue."""

    queue: QueueKey
    parts: Sequence[RecordChunk]
    """The records in order, with room for their checksums."""

    @property
    def rows(self) -> int:
        """The number of records."""
        return sum(map(len, self.parts))

    def mark(self, mark: int) -> None:
        """Write the mark of a commit into each record."""
        for part in self.parts:
            mark_rows(part, mark)

    def split_by_step(self) -> Iterator[CheckedChunk]:
        """Yield all records in order, in parts of the size that one step appends."""
        some: list[RecordChunk] = []
        rows = 0
        for part in self.parts:
            if some and rows + len(part) > RECORDS_PER_STEP:
                yield CheckedChunk(self.queue, some)
                some, rows = [], 0
            some.append(part)
            rows += len(part)
        yield CheckedChunk(self.queue, some)


class ChunkAppender:
    """Appends chunks of records, and large batches."""

    def __init__(
        self,
        log: CommitLog,
        appender: MessageAppender,
        recent_writes: RecentWriteQueue[RecentChunk],
    ) -> None:
        self._log = log
        self._appender = appender
        self._recent_writes = recent_writes

    def put_chunk(
        self, records: Buffer, sizes: Sizes, admit: AdmitFunction
    ) -> Steps[PutMessageResult]:
        """Append ready-encoded records of one topic and queue, each checked as if sent alone.

        The checks run in steps, and the append in the last one, after ``admit``. The records may be
        spread over two files. If the second write fails, the first part stays in the log, and the
        result has the number of its messages.
        """
        checked = yield from self.check(records, sizes)
        if isinstance(checked, PutMessageResult):
            return checked
        checked.mark(NO_MARK)  # overwrite the client's marks: a rollback finds its rows by marks
        yield FULL_TURN
        admit()
        return self.put_checked(checked)

    def put_checked(self, checked: CheckedChunk) -> PutMessageResult:
        """Append records that `check` has returned. Each result can be appended only once."""
        append = partial(self._append, checked.queue, self._pieces(checked.parts))
        return self._appender.append_in_order(checked.queue, append, checked.rows)

    def check(
        self, records: Buffer, sizes: Sizes, *, are_known: bool = False
    ) -> Steps[CheckedChunk | PutMessageResult]:
        """Check records in steps; return the records to append, or why they cannot be appended.

        Records that ``are_known`` are identical to those of an earlier check: only their sizes are
        checked again, because limits may have changed since. Their number is not limited, because
        they are appended in several steps.
        """
        yield from bulk_tools.load_in_steps()
        all_sizes = np.asarray(sizes)
        if len(all_sizes) > RECORDS_MAX and not are_known:
            return illegal_result(f"a chunk of {len(all_sizes)} messages is over {RECORDS_MAX}")
        parts: list[RecordChunk] = []
        queues: set[QueueKey | None] = set()
        try:
            for first, data, part_sizes in _split(records, all_sizes):
                try:
                    chunk = bulk_tools.with_empty_checksums(
                        bulk_tools.RecordChunk(data, part_sizes)
                    )
                    fault = self._size_fault(chunk) or (
                        None if are_known else self._fault_of(chunk)
                    )
                except RecordError as error:
                    return illegal_result(
                        f"{error}; counted from record {first}" if first else str(error)
                    )
                if fault is not None:
                    return illegal_result(fault)
                queues.add(_queue_of(chunk))
                parts.append(chunk)
                yield None
        except RecordError as error:
            return illegal_result(str(error))
        if not parts:
            return illegal_result("the chunk is empty")
        queue = queues.pop()
        if queue is None or queues:
            return illegal_result("the records of a chunk must belong to one queue")
        fault = topic_fault(queue[0]) or light_queue_fault(queue[0])
        if fault is not None:
            return illegal_result(fault)
        return CheckedChunk(queue, parts)

    def _size_fault(self, chunk: RecordChunk) -> str | None:
        """Return why a record exceeds the limits of single messages, or None."""
        longest, bytes_max = int(chunk.body_length.max()), self._appender.message_bytes_max
        if longest > bytes_max:
            return f"a body of {longest} bytes is over {bytes_max} (maxMessageSize)"
        size, room = int(chunk.sizes.max()), self._appender.record_room
        if size > room:
            return f"a record of {size} bytes is over {room}, the room in a file of the log"
        return None

    def _fault_of(self, chunk: RecordChunk) -> str | None:
        """Return what is wrong with records that were not checked before, or None."""
        chunk.check_crcs()
        if (chunk.sys_flag & TRANSACTION_MASK).any():
            return "a chunk cannot contain half messages"
        for name in (DELAY, *TIMER_PROPERTIES):
            if chunk.properties.has_any(name):
                return f"a chunk cannot contain delayed messages (property {name})"
        return None

    def put_large(
        self,
        template: RecordTemplate,
        parts: Iterable[UniformParts],
        born_timestamp: int,
        admit: AdmitFunction,
    ) -> Steps[tuple[PutMessageResult, Sequence[int]]]:
        """Append a very large batch, all or none, in steps; return the result and the sizes.

        The last step calls ``admit`` and appends.
        """
        builders: list[_PartBuilder] = []
        sizes: list[int] = []
        body_bytes_max = properties_bytes_max = 0
        try:
            for each in parts:
                run = RecordRun.uniform(template, each, born_timestamp)
                run.next_offsets = {template.queue: FIRST_IN_QUEUE}
                if not builders or len(builders[-1].sizes) + len(run.sizes) > _PART_RECORDS:
                    builders.append(_PartBuilder(bytearray(), []))
                part = builders[-1]
                part.records.extend(run.encode(FIRST_IN_QUEUE, LOG_START, 0))
                part.sizes.extend(run.sizes)
                sizes += run.sizes
                body_bytes_max = max(body_bytes_max, run.body_bytes_max)
                properties_bytes_max = max(properties_bytes_max, run.properties_bytes_max)
                yield None
        except RecordError as error:
            return illegal_result(str(error)), []
        yield from bulk_tools.load_in_steps()
        ready: list[RecordChunk] = []
        for part in builders:
            ready.append(part.build())
            yield None
        yield FULL_TURN
        admit()
        appender, queue = self._appender, template.queue
        fault = appender.put_fault(queue, body_bytes_max, properties_bytes_max)
        fault = fault or appender.size_fault(sum(sizes), sizes)
        if fault is not None:
            return fault, sizes
        append = partial(self._append, queue, [[(part, 0, len(part)) for part in ready]])
        return appender.append_in_order(queue, append, len(sizes)), sizes

    def _append(
        self, queue: QueueKey, writes: Iterable[Sequence[_Rows]], queue_offset: QueueOffset
    ) -> PutMessageResult:
        """Append records with successive queue offsets; each write succeeds or fails as a whole."""
        first: PutMessageResult | None = None
        done = 0
        for rows in writes:
            many: list[EncodedRecords] = []
            for part, start, end in rows:
                many.append(_rows_of(part, start, end, queue_offset + done))
                done += end - start
            try:
                position, end_offset, timestamp = self._log.append_many(many)
            except (TransientFailure, StoreFailed) as error:
                return first or unavailable_result(error)
            first = PutMessageResult(
                PutMessageStatus.PUT_OK,
                first.physical_offset if first else position,
                queue_offset,
                end_offset,
                timestamp,
                done,
            )
            for (part, start, end), records in zip(rows, many, strict=True):
                if end - start == len(part):  # reput reads the rows of a split part from the log
                    part.set_stored(records.queue_offsets, timestamp)
                    self._recent_writes.add(RecentChunk(part, queue, position))
                position += len(records.data)
        return first or illegal_result("the chunk is empty")

    def _pieces(self, parts: Sequence[RecordChunk]) -> Iterator[Sequence[_Rows]]:
        """Yield the rows of each part in as few pieces as the files of the log allow."""
        for part in parts:
            row = 0
            while row < len(part):
                end = row + self._count_fitting(part.sizes[row:])
                yield [(part, row, end)]
                row = end

    def _count_fitting(self, sizes: npt.NDArray[np.int64]) -> int:
        """Return how many of the next records fit into the current file, or else into a new one."""
        room = self._log.room_in_file()
        ends = np.cumsum(sizes)
        count = int(np.searchsorted(ends, room, side="right"))
        if not count:
            count = int(np.searchsorted(ends, self._appender.file_room, side="right"))
        return count


def _rows_of(chunk: RecordChunk, first: int, end: int, queue_offset: QueueOffset) -> EncodedRecords:
    """Return some records of a chunk, ready to be appended from a queue offset on."""
    start = int(chunk.starts[first])
    return EncodedRecords(
        chunk.data[start : int(chunk.ends[end - 1])],
        chunk.sizes[first:end],
        np.arange(queue_offset, queue_offset + end - first),
        chunk.store_timestamp_at[first:end] - start,
        partial(bulk_tools.write_checksums, chunk, first, end),
    )


def _split(
    records: Buffer, sizes: npt.NDArray[np.integer[Any]]
) -> Iterator[tuple[int, bytearray, npt.NDArray[np.integer[Any]]]]:
    """Yield copies of the parts of a chunk: number of the first record, records, and their sizes.

    Sizes that are invalid or do not add up to the whole are returned as one part, for `RecordChunk`
    to refuse.
    """
    is_whole = not len(sizes) or (
        int(sizes.min()) > 0 and int(sizes.sum(dtype=np.int64)) == len(records)
    )
    if not is_whole:
        yield 0, bytearray(records), sizes
        return
    ends = np.cumsum(sizes, dtype=np.int64)
    view = memoryview(records)
    first = start = 0
    while first < len(sizes):
        end = int(np.searchsorted(ends, start + _PART_BYTES, side="right"))
        end = max(min(end, first + _PART_RECORDS), first + 1)
        stop = int(ends[end - 1])
        yield first, bytearray(view[start:stop]), sizes[first:end]
        first, start = end, stop


def _queue_of(chunk: RecordChunk) -> QueueKey | None:
    """Return the topic and the queue number of all records; None if they differ."""
    start = int(chunk.topic_at[0])
    topic = chunk.data[start : start + int(chunk.topic_length[0])].tobytes()
    queue_ids = chunk.head["queue_id"]
    if not chunk.has_topic(topic).all() or (queue_ids != queue_ids[0]).any():
        return None
    return topic.decode("utf-8", "replace"), int(queue_ids[0])


def run_steps(steps: Steps[ResultT]) -> ResultT:
    """Run all steps at once, blocking this thread where a step waits; return their result."""
    try:
        while True:
            awaited = next(steps)
            if awaited is not None:
                awaited.exception()  # blocks until it is done
    except StopIteration as end:
        result: ResultT = end.value
        return result
