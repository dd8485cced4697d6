"""MessageAppender: checks messages and appends them to the log, with their queue offsets.

One lock orders all appends, so that queue offsets follow each other as the records do. A caller
holds it to encode what depends on the position, and for one write. It then waits for a flush
without the lock.

A caller with many single messages uses `put_buffered`: one system call writes them all as a run.
The buffer is also written before any other append, and before a file ends. If that write fails,
none of the messages is in the log, and later messages get their offsets.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from rmq_spark.errors import RecordError
from rmq_spark.wire.message import record_layout as layout
from rmq_spark.wire.message.properties import PROPERTIES_BYTES_MAX
from rmq_spark.wire.message.record import StoredMessage
from rmq_spark.wire.message.record_layout import CHECKSUM_BYTES
from rmq_spark.wire.message_queue import QueueKey
from rmq_spark.wire.names import LONG_TOPIC_CHARACTERS_MAX, light_queue_fault
from rmq_spark.wire.remoting.framing import Buffer

from ..errors import StoreFailed, TransientFailure, describe_error
from ..log.commit_log import BLANK_BYTES, CommitLog, Draft
from ..queues.queue_table import QueueTable
from ..records.fields import STATES_WITHOUT_ENTRY, TRANSACTION_MASK, topic_fault
from ..records.recent_writes import ColumnRun, RecentRun, RecentWriteQueue
from ..results import (
    FIRST_IN_QUEUE,
    PhysicalOffset,
    PutMessageResult,
    PutMessageStatus,
    QueueOffset,
)
from .column_batches import ColumnBatch
from .record_encoding import (
    RecordDraft,
    RecordRun,
    RecordTemplate,
    UniformParts,
    draft_of,
    terminated_properties,
)

BUFFERED_BYTES_MAX: Final = 1 << 14
"""The maximum number of bytes buffered for one write, which some fifty messages share.

Up to this size the buffered messages stay in the processor's cache. With sixteen times as much,
sends cost a fifth more.
"""
DEAD_LETTER_BYTES: Final = LONG_TOPIC_CHARACTERS_MAX + 1 + layout.HOST_V6_BYTES
"""The maximum number of bytes by which a record grows when it becomes a dead letter: the name of
the dead-letter topic, one more byte for its length, and an IPv6 address of the broker."""

_PUT_OK = PutMessageStatus.PUT_OK
_LONGS = range(-(1 << 63), 1 << 63)
# the checksum is a property, too, and may need a separator before it
_PROPERTIES_BYTES_MAX = PROPERTIES_BYTES_MAX - CHECKSUM_BYTES - 1


_new_result: Callable[[type[PutMessageResult], tuple[Any, ...]], PutMessageResult] = tuple.__new__


class TopicEnds(NamedTuple):
    """The end of the log and the next offset of each queue of a topic, at one point in time."""

    log_end_offset: PhysicalOffset
    next_offsets: Mapping[int, QueueOffset]


class MessageAppender:
    """The only writer of the log."""

    def __init__(
        self,
        log: CommitLog,
        queues: QueueTable,
        message_bytes_max: int,
        refusal_reason: Callable[[], str | None],
        recent_writes: RecentWriteQueue[RecentRun | ColumnRun],
    ) -> None:
        """Prepare the only writer of a log.

        ``refusal_reason`` returns why the store accepts no messages now, or None;
        ``recent_writes`` gets the written records.
        """
        self.message_bytes_max = message_bytes_max
        self.file_room = log.files.file_size - BLANK_BYTES
        """The bytes of records that fit into a file of the log."""
        self.record_room = self.file_room - DEAD_LETTER_BYTES
        """The maximum size of a client's record, so that its dead letter fits as well."""
        self._log = log
        self._queues = queues
        self._refusal_reason = refusal_reason
        self._recent_writes = recent_writes
        self._lock = threading.Lock()
        self._next_offsets: dict[QueueKey, QueueOffset] = {}
        self._buffered: list[tuple[RecordTemplate, int, Buffer, bytes, int]] = []
        """Messages that are not written yet: template, flag, body, properties, born timestamp."""
        self._buffer_room = 0
        """The bytes of records that may still be buffered, to be written to the same file."""
        self._unreported: list[RecordRun] = []
        """Runs of buffered messages whose results were not returned yet."""

    def put_message(self, message: StoredMessage) -> PutMessageResult:
        """Append a message that was stored before, elsewhere in the log.

        Its offsets, store timestamp and body CRC are set here. The body size was checked when the
        message was first accepted, and is not checked again: the limit may have changed since.
        """
        try:
            draft = draft_of(message)
        except RecordError as error:
            return illegal_result(str(error))
        fault = self.put_fault((draft.topic, draft.queue_id), 0, len(draft.properties))
        return fault or self._put(draft, self.file_room)

    def put_together(self, messages: Sequence[StoredMessage]) -> Sequence[PutMessageResult]:
        """Append messages as `put_message` does, but all or none, back to back in one write.

        They must have queue offsets. A crash may leave only the first ones, or only the last ones
        past a hole.
        """
        try:
            drafts = [draft_of(message) for message in messages]
            run = RecordRun(
                [RecordTemplate(draft) for draft in drafts],
                UniformParts(
                    [draft.flag for draft in drafts],
                    [draft.body for draft in drafts],
                    [terminated_properties(draft.properties) for draft in drafts],
                ),
                [draft.born_timestamp for draft in drafts],
            )
        except RecordError as error:
            return [illegal_result(str(error))] * len(messages)
        for draft in drafts:
            fault = self.put_fault((draft.topic, draft.queue_id), 0, len(draft.properties))
            if fault is not None:
                return [fault] * len(drafts)
        if run.size > self.file_room:
            return [self._too_long(run.size, self.file_room)] * len(drafts)
        with self._lock:
            self._write_buffered()
            first = self._put_run(run)
        return _results_of(run) if first.is_stored else [first] * len(drafts)

    def put_draft(self, draft: RecordDraft) -> PutMessageResult:
        """Append one message whose texts are already encoded as bytes."""
        queue, lengths = (draft.topic, draft.queue_id), (len(draft.body), len(draft.properties))
        return self.put_fault(queue, *lengths) or self._put(draft, self.record_room)

    def _put(self, draft: RecordDraft, room: int) -> PutMessageResult:
        try:
            draft.prepare()
            if draft.size > room:
                return self._too_long(draft.size, room)
            has_offset = draft.sys_flag & TRANSACTION_MASK not in STATES_WITHOUT_ENTRY
            return self._append(draft, (draft.topic, draft.queue_id), 1 if has_offset else 0, 1)
        except RecordError as error:
            return illegal_result(str(error))

    def put_buffered(
        self, template: RecordTemplate, body: Buffer, properties: bytes, born_timestamp: int
    ) -> PutMessageResult | None:
        """Buffer one message for the next `write_buffered`; return None, or why it is refused.

        Another append may write the buffer earlier. ``body`` must not change until it is written.
        Only one thread may call this.
        """
        queue = template.queue
        if (
            queue not in self._next_offsets
            or len(body) > self.message_bytes_max
            or len(properties) > _PROPERTIES_BYTES_MAX
        ):
            fault = self.put_fault(queue, len(body), len(properties))
            if fault is not None:
                return fault
        properties = terminated_properties(properties)
        size = template.fixed_bytes + len(body) + len(properties)
        if size > self.record_room:
            return self._too_long(size, self.record_room)
        if born_timestamp not in _LONGS:
            common = replace(template.common, born_timestamp=born_timestamp)
            return illegal_result(str(common.fault()))
        with self._lock:
            refusal = self._refusal_reason()
            if refusal is not None:
                return unavailable_result(refusal)
            if size > self._buffer_room:
                self._write_buffered()
                room = self._log.room_in_file()
                room = room if size <= room else self.file_room
                self._buffer_room = min(room, BUFFERED_BYTES_MAX)
            self._buffered.append((template, template.flag, body, properties, born_timestamp))
            self._buffer_room -= size
        return None

    def put_run(self, run: RecordRun) -> PutMessageResult | None:
        """Append messages in one write, all or none, after everything put before.

        Return None, without appending any, if they need `put_buffered`: this appender does not know
        a queue yet, a message exceeds a limit, or the log's current file has too little room.
        """
        if (
            run.body_bytes_max > self.message_bytes_max
            or run.properties_bytes_max > _PROPERTIES_BYTES_MAX
            or (run.size > self.record_room and max(run.sizes) > self.record_room)
        ):
            return None
        with self._lock:
            self._write_buffered()
            if not self._next_offsets.keys() >= run.queues or run.size > self._log.room_in_file():
                return None
            return self._put_run(run)

    def put_batch(self, batch: RecordRun | ColumnBatch) -> PutMessageResult:
        """Append the messages of a batch of one queue, all or none."""
        if not batch.size:
            return illegal_result("the batch is empty")
        (queue,) = batch.queues
        fault = self.put_fault(queue, batch.body_bytes_max, batch.properties_bytes_max)
        fault = fault or self.size_fault(batch.size, batch.sizes)
        if fault is not None:
            return fault
        with self._lock:
            self._write_buffered()
            return self._put_run(batch)

    def _put_run(self, run: RecordRun | ColumnBatch) -> PutMessageResult:
        """Append a run, and return the result of its first message; the caller holds the lock."""
        refusal = self._refusal_reason()
        if refusal is not None:
            return unavailable_result(refusal)
        self._append_run(run)
        if run.refusal is not None:
            return run.refusal
        new = run.recent
        first = new.start_offset, new.queue_offset
        return PutMessageResult(_PUT_OK, *first, new.end_offset, new.store_timestamp, new.rows)

    def _append_run(self, run: RecordRun | ColumnBatch) -> None:
        """Append a run, all or none; if it was not written, set its `refusal`."""
        next_offsets, log = self._next_offsets, self._log
        log_end = log.written_offset
        try:
            run.next_offsets = {queue: self.next_offset(queue) for queue in run.queues}
            next_offsets.update(run.next_offsets)  # allocates the memory needed after the write
            log.append(run, FIRST_IN_QUEUE)
        except Exception as error:
            if log.written_offset != log_end:
                raise
            is_illegal = isinstance(error, RecordError)
            run.refusal = (illegal_result if is_illegal else unavailable_result)(
                describe_error(error)
            )
            return
        finally:
            if log.written_offset != log_end:  # nothing below allocates memory
                run.refusal = None
                for queue in run.next_offsets:
                    next_offsets[queue] = run.next_offsets[queue]
        self._recent_writes.add(run.recent)

    def write_buffered(self) -> bool:
        """Write the buffered messages; return whether there are new `results`."""
        if not self._buffered and not self._unreported:
            return False
        with self._lock:
            self._write_buffered()
        return True

    def results(self) -> Sequence[PutMessageResult]:
        """Return the results of all messages buffered since the last call.

        They are created here, so that a shortage of memory cannot lose them.
        """
        with self._lock:
            results = [each for run in self._unreported for each in _results_of(run)]
            self._unreported = []
        return results

    def _write_buffered(self) -> None:
        if not self._buffered:
            return
        templates, *parts, born_timestamps = zip(*self._buffered, strict=True)
        run = RecordRun(templates, UniformParts(*parts), born_timestamps)
        self._unreported, self._buffered, self._buffer_room = [*self._unreported, run], [], 0
        self._append_run(run)

    def _append(self, draft: Draft, queue: QueueKey, offsets: int, count: int) -> PutMessageResult:
        """Append ``count`` messages, which use up ``offsets`` offsets of their queue."""

        def append(queue_offset: QueueOffset) -> PutMessageResult:
            given = queue_offset if offsets else FIRST_IN_QUEUE
            try:
                position, end, timestamp = self._log.append(draft, given)
            except (TransientFailure, StoreFailed) as error:
                return unavailable_result(error)
            return PutMessageResult(PutMessageStatus.PUT_OK, position, given, end, timestamp, count)

        return self.append_in_order(queue, append, offsets)

    def append_in_order(
        self, queue: QueueKey, append: Callable[[QueueOffset], PutMessageResult], offsets: int
    ) -> PutMessageResult:
        """Append with the next offset of a queue, alone and after everything put before.

        This uses up ``offsets`` offsets, unless the result reports fewer messages. If there is no
        memory for the result, the messages in the log keep their offsets nevertheless.
        """
        with self._lock:
            self._write_buffered()
            refusal = self._refusal_reason()
            if refusal is not None:
                return unavailable_result(refusal)
            queue_offset = self.next_offset(queue)
            log_end, next_offset = self._log.written_offset, queue_offset + offsets
            self._next_offsets[queue] = queue_offset
            try:
                result = append(queue_offset)
                next_offset = queue_offset + min(offsets, result.message_count)
            finally:
                if self._log.written_offset != log_end:
                    self._next_offsets[queue] = next_offset
        return result

    def reclaim_offsets(self, queue: QueueKey, first: QueueOffset, end: QueueOffset) -> None:
        """Reuse the offsets of rolled-back messages, unless other messages follow them."""
        with self._lock:
            if self._next_offsets.get(queue) == end:
                self._next_offsets[queue] = first

    def wipe_refused(self) -> None:
        """Wipe the remains of refused messages from the log, so that no start finds them.

        If the disk refuses, the next append or call retries.
        """
        with self._lock:
            self._log.wipe()

    def probe_writable(self) -> None:
        """Check whether a disk that refused writes accepts messages again."""
        with self._lock:
            self._log.probe_writable()

    def topic_ends(self, topic: str) -> TopicEnds:
        """Return the end of the log, and the next offsets of a topic's queues.

        Buffered messages are written first: if that fails, later messages get their offsets.
        """
        with self._lock:
            self._write_buffered()
            numbers = {**self._queues.ends_of(topic), **self._next_offsets_of(topic)}
            return TopicEnds(self._log.written_offset, numbers)

    def written_end_offset(self) -> PhysicalOffset:
        """Return the end of the log, after all buffered messages were written or refused."""
        with self._lock:
            self._write_buffered()
            return self._log.written_offset

    def discard_topic(self, topic: str, ended: TopicEnds) -> None:
        """Discard the next offsets of a deleted topic, except of queues with newer messages."""
        with self._lock:
            for queue_id, number in self._next_offsets_of(topic).items():
                if number == ended.next_offsets.get(queue_id):
                    del self._next_offsets[topic, queue_id]

    def _next_offsets_of(self, topic: str) -> dict[int, QueueOffset]:
        return {
            queue_id: number
            for (name, queue_id), number in self._next_offsets.items()
            if name == topic
        }

    def next_offset(self, queue: QueueKey) -> QueueOffset:
        """Return the offset after all messages of a queue, including those not dispatched yet."""
        known = self._next_offsets.get(queue)
        if known is not None:
            return known
        found = self._queues.get(*queue)
        return found.max_offset if found is not None else FIRST_IN_QUEUE

    def size_fault(self, size: int, record_sizes: Iterable[int]) -> PutMessageResult | None:
        """Return why a batch of records of these sizes can never be put, or None."""
        if size <= self.record_room:
            return None
        longest = max(record_sizes)
        if longest > self.record_room:
            return self._too_long(longest, self.record_room)
        if size > self.file_room:
            return illegal_result(f"a batch of {size} bytes does not fit into one file of the log")
        return None

    def _too_long(self, size: int, room: int) -> PutMessageResult:
        return illegal_result(
            f"a record of {size} bytes does not fit into one file of the log, which has room for "
            f"{room} bytes of one message"
        )

    def put_fault(
        self, queue: QueueKey, body_bytes: int, properties_bytes: int
    ) -> PutMessageResult | None:
        """Return why messages of these lengths can never be put into a queue, or None."""
        if queue not in self._next_offsets:
            topic, queue_id = queue
            fault = topic_fault(topic) or light_queue_fault(topic)
            if fault is not None:
                return illegal_result(fault)
            if queue_id < 0:
                return illegal_result(f"queue {queue_id} does not exist")
        if body_bytes > self.message_bytes_max:
            return illegal_result(f"a body of {body_bytes} bytes is over {self.message_bytes_max}")
        if properties_bytes > _PROPERTIES_BYTES_MAX:
            return PutMessageResult(
                PutMessageStatus.PROPERTIES_SIZE_EXCEEDED,
                remark=f"properties of {properties_bytes} bytes are over {_PROPERTIES_BYTES_MAX}",
            )
        return None


def _results_of(run: RecordRun) -> list[PutMessageResult]:
    if run.refusal is not None:
        return [run.refusal] * len(run.sizes)
    records, timestamp, _ = run.recent
    return [
        _new_result(PutMessageResult, (_PUT_OK, at, queue_offset, at + size, timestamp, 1, None))
        for _, queue_offset, at, size, _ in records
    ]


def illegal_result(remark: str) -> PutMessageResult:
    """Return the result of a message that can never be put."""
    return PutMessageResult(PutMessageStatus.MESSAGE_ILLEGAL, remark=remark)


def unavailable_result(reason: str | Exception) -> PutMessageResult:
    """Return the result of a message that cannot be put now."""
    return PutMessageResult(PutMessageStatus.SERVICE_NOT_AVAILABLE, remark=str(reason))
