"""StagedBatches: stages rows, and makes all rows of a batch visible at once when it commits.

    1  compare what was staged with what the commit names
    2  save in the table which batch is under way, and the log offset past which its rows lie
    3  suspend dispatch from the end of the log on
    4  append the rows, each with the mark of the commit; others append between them
    5  flush the log
    6  save in the table that the batch is committed: this is the moment of the commit
    7  dispatch all that was suspended to the queues, where it becomes visible at once

A failure before 6 marks the rows as rolled back and saves that no commit is under way; a crash
leaves that to the next start. A batch without rows needs only 6. One commit is under way at a time.

Consumers wait from 3 to 7: for the copy, a flush of the log and a write of the table. Step 2
reserves the room for that write. If the disk refuses the write, it is retried a few times; then the
batch is rolled back. If the disk refuses the rollback too, the store accepts no messages and
retries until it succeeds; a restart meanwhile rolls the batch back. Only a failed flush needs a
restart.

Everything here is called on one thread; jobs that wait for the disk run in another.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Final, NamedTuple

from rmq_spark.errors import RecordError
from rmq_spark.wire.bodies.staged_batches import BatchSpan, CommittedBatch, StagedAttempt
from rmq_spark.wire.message_queue import QueueKey
from rmq_spark.wire.remoting.framing import Buffer

from ...common.histogram import Histogram
from ...common.recent_losses import LossKind
from ..append.chunk_appender import FULL_TURN, CheckedChunk, ChunkAppender, Sizes, run_steps
from ..append.message_appender import MessageAppender
from ..bulk import bulk_tools
from ..bulk import lazy_numpy as np
from ..components import StoreComponents
from ..errors import (
    BatchRefused,
    Degradation,
    StoreError,
    StoreFailed,
    TransientFailure,
    describe_error,
    is_retryable,
)
from ..results import LOG_START, PhysicalOffset, PutMessageResult, PutMessageStatus, QueueOffset
from ..staging.commit_table import OpenBatch
from ..staging.staging_area import StagedName, check_batch_name
from ..steps import JobExecutor, Steps, run_in_thread, start_in_thread
from .rollback import rollback_rows

# ---- Spans of a batch: the offsets of its rows in a queue, and the sum of their CRCs.

_CRC_MASK: Final = 0xFFFF_FFFF
_ROWS_MAX: Final = 50_000
_BYTES_MAX: Final = 4 << 20


def span_of(checked: CheckedChunk, result: PutMessageResult) -> BatchSpan:
    """Return the span of rows that were appended in one step."""
    heads = [part.head["body_crc"] for part in checked.parts]
    return BatchSpan(
        topic=checked.queue[0],
        queue_id=checked.queue[1],
        queue_offset=result.queue_offset,
        count=result.message_count,
        crc=sum(int(crcs.astype(np.uint32).sum(dtype=np.uint64)) for crcs in heads) & _CRC_MASK,
        body_bytes=sum(int(part.body_length.sum()) for part in checked.parts),
    )


def merge_spans(put_spans: Sequence[BatchSpan]) -> tuple[BatchSpan, ...]:
    """Join adjacent spans of a queue, up to the size that a reader holds in memory."""
    spans: list[BatchSpan] = []
    last_of_queue: dict[QueueKey, int] = {}
    for span in put_spans:
        queue = span.topic, span.queue_id
        at = last_of_queue.get(queue)
        if at is not None:
            last = spans[at]
            both = replace(
                last,
                count=last.count + span.count,
                crc=(last.crc + span.crc) & _CRC_MASK,
                body_bytes=last.body_bytes + span.body_bytes,
            )
            if (
                last.queue_offset + last.count == span.queue_offset
                and both.count <= _ROWS_MAX
                and both.body_bytes <= _BYTES_MAX
            ):
                spans[at] = both
                continue
        last_of_queue[queue] = len(spans)
        spans.append(span)
    return tuple(spans)


COMMIT_ATTEMPTS_MAX: Final = 5
"""The maximum attempts to record a commit in the table, before the batch is rolled back."""


class _CopiedRows(NamedTuple):
    """Rows appended in one step, and the position of the first."""

    span: BatchSpan
    position: PhysicalOffset


class StagedBatches:
    """Stages and commits the batches of one store."""

    def __init__(
        self,
        components: StoreComponents,
        appender: MessageAppender,
        refusal_reason: Callable[[], str | None],
        flush_future: Callable[[PhysicalOffset], Future[None]],
        wake: Callable[[], object],
        fail: Callable[[StoreError], object],
    ) -> None:
        """Store the parts without touching the disk.

        ``refusal_reason`` returns why the store accepts no messages now, or None. ``flush_future``
        returns a future of a flush up to an offset, ``wake`` starts dispatch to the queues, and
        ``fail`` gets a failure that only a restart can resolve.
        """
        self._log, self._reput = components.log, components.reput
        self._losses = components.losses
        self.table = components.batch_table
        self.staging_area = components.staging_area
        self._queues, self._dispatcher = components.queues, components.dispatcher
        self._appender = appender
        self._chunk_appender = ChunkAppender(
            components.log, appender, components.recent_writes.uncommitted
        )
        self._refusal_reason, self._flush_future = refusal_reason, flush_future
        self._wake, self._fail = wake, fail
        self.under_way: Future[None] | None = None
        """Done when the commit or other change under way has ended; None if there is none."""
        self.commits = 0
        self.aborts = 0
        """The number of batches aborted by their sinks."""
        self.rollbacks = 0
        """The number of commits that failed and were rolled back."""
        self.hold_durations = Histogram()
        """How long commits have delayed the dispatch of other messages."""
        self._suspended_since = 0.0
        self.degradation = Degradation("a batch can be neither committed nor rolled back")
        self._is_rolling_back = False

    def rolled_back_offsets(
        self, topic: str, queue_id: int, start: QueueOffset, count: int
    ) -> Collection[QueueOffset]:
        """Return which of ``count`` successive offsets in a queue belong to rolled-back rows."""
        queue = self._queues.get(topic, queue_id)
        return set() if queue is None else queue.rolled_back_offsets(start, count)

    def stuck_reason(self) -> str | None:
        """Return why a failed batch cannot be rolled back yet, or None."""
        return self.degradation.text if self._is_rolling_back else None

    def stage(
        self,
        name: StagedName,
        sized_records: Buffer,
        sizes: Sizes,
        records: Buffer,
        executor: JobExecutor,
    ) -> Steps[None]:
        """Stage records of one queue. They survive a kill, but maybe not a power failure.

        Raises:
            BatchRefused: The records could not be appended, or the name is invalid.
            TransientFailure, OSError: There is no room.
        """
        name.check()
        checked = yield from self._check(records, sizes)
        yield from run_in_thread(
            partial(self.staging_area.put, name, checked.rows, bytes(sized_records)), executor
        )

    def commit(
        self,
        sink: str,
        batch_id: int,
        owner: str,
        attempts: Sequence[StagedAttempt],
        admit: Callable[[QueueKey], object],
        executor: JobExecutor,
        pause: Callable[[], Future[None]],
        user: str | None = None,
    ) -> Steps[CommittedBatch]:
        """Make all rows of a batch visible, or none; return the last committed batch.

        ``admit`` raises if a queue accepts no messages now. The sink belongs to ``user`` from now
        on, if given.

        Raises:
            BatchRefused: The staged rows do not match ``attempts``.
            TransientFailure, OSError: There is no room; no row becomes visible.
            StoreFailed: The disk has failed; the next start shows whether the batch is committed.
            StoreError: The store accepts no messages now.
        """
        check_batch_name(sink, batch_id)
        yield from self._acquire_turn()
        try:
            if self.table.is_committed(sink, batch_id, owner):
                return self._last_committed(sink)
            refusal = self._refusal_reason()  # such as an unfinished start
            if refusal is not None:
                raise StoreError(refusal)
            if attempts:
                yield from bulk_tools.load_in_steps()
            check = partial(self.staging_area.check_attempts, sink, batch_id, attempts)
            found = yield from run_in_thread(check, executor)
            if found:
                begins_at = self._appender.written_end_offset()
                batch = OpenBatch(sink=sink, batch_id=batch_id, log_offset=begins_at)
                yield from run_in_thread(partial(self.table.begin, batch, len(found)), executor)
                self._suspended_since = time.perf_counter()
                self._reput.suspend_from(self._appender.written_end_offset())
                committed = CommittedBatch(
                    batch_id=batch_id,
                    owner=owner,
                    rows=sum(each.rows for each in attempts),
                    user=user,
                )
                yield from self._copy_and_commit(batch, committed, found, admit, executor, pause)
            else:
                empty = CommittedBatch(batch_id=batch_id, owner=owner, rows=0, user=user)
                yield from run_in_thread(partial(self.table.commit, sink, empty), executor)
            self.commits += 1
            # in the background: a later batch, or age, removes files that cannot be deleted now
            executor(partial(self.staging_area.forget, sink, last=batch_id), lambda _: None)
            return self._last_committed(sink)
        finally:
            self._release_turn()

    def abort(
        self,
        sink: str,
        batch_id: int,
        owner: str,
        executor: JobExecutor,
        attempts: frozenset[str] = frozenset(),
    ) -> Steps[None]:
        """Delete the staged rows of a batch, or of some attempts, unless it is committed.

        Raises:
            BatchRefused: Another query owns the sink.
            StoreError: An earlier batch can be neither committed nor rolled back.
        """
        yield from self._acquire_turn()
        try:
            last = self.table.last(sink)
            if last is None or last.owner != owner or last.batch_id < batch_id:
                self.table.is_committed(sink, batch_id, owner)  # refuses another owner
                forget = partial(
                    self.staging_area.forget,
                    sink,
                    first=batch_id,
                    last=batch_id,
                    attempts=attempts,
                )
                yield from run_in_thread(forget, executor)
                self.aborts += 1
        finally:
            self._release_turn()

    def forget_sink(self, sink: str, executor: JobExecutor) -> Steps[bool]:
        """Forget the last batch and the staged rows of a sink; return whether there were any.

        A sink of this name can then commit all its batches again.
        """
        yield from self._acquire_turn()
        try:
            is_known, has_any = self.table.last(sink) is not None, self.staging_area.has_any(sink)
            if is_known:
                yield from run_in_thread(partial(self.table.forget, sink), executor)
            if has_any:
                yield from run_in_thread(partial(self.staging_area.forget, sink), executor)
            return is_known or has_any
        finally:
            self._release_turn()

    def _acquire_turn(self) -> Steps[None]:
        why_stuck = self.stuck_reason()
        if why_stuck is not None:  # this may take hours: refuse instead of waiting
            raise StoreError(why_stuck)
        while self.under_way is not None:
            yield self.under_way
        self.under_way = Future()

    def _release_turn(self) -> None:
        under_way, self.under_way = self.under_way, None
        if under_way is not None:
            under_way.set_result(None)

    def _last_committed(self, sink: str) -> CommittedBatch:
        last = self.table.last(sink)
        if last is None:
            raise BatchRefused(f"sink {sink} has committed nothing")
        return last

    def _copy_and_commit(
        self,
        batch: OpenBatch,
        committed: CommittedBatch,
        names: Sequence[StagedName],
        admit: Callable[[QueueKey], object],
        executor: JobExecutor,
        pause: Callable[[], Future[None]],
    ) -> Steps[None]:
        """Copy the batch and commit it, or roll it back and raise the reason."""
        put: list[_CopiedRows] = []
        try:
            end_offset = yield from self._copy(batch, names, put, admit, executor)
            committed = replace(committed, spans=merge_spans([each.span for each in put]))
            finish = partial(self.table.commit, batch.sink, committed)
            yield from self._retry_until_durable(finish, executor, pause, COMMIT_ATTEMPTS_MAX)
        except StoreFailed:
            raise
        except Exception as error:
            self._is_rolling_back = True
            self._reput.discard_pending()
            try:
                rollback = partial(self._rollback, batch)
                yield from self._retry_until_durable(rollback, executor, pause)
            finally:
                self._is_rolling_back = False
            self.rollbacks += 1
            self._losses.report(
                LossKind.BATCH_ROLLED_BACK,
                f"batch {batch.batch_id} of sink {batch.sink} is rolled back, and its sink can "
                f"commit it again: {describe_error(error)}",
                level=logging.WARNING,
            )
            self._reclaim_offsets(put)
            self._release()
            raise
        self._release(end_offset)

    def _reclaim_offsets(self, copied: Sequence[_CopiedRows]) -> None:
        for each in reversed(copied):
            # after a deletion, the offsets belong to a new topic of that name
            if not self._is_topic_deleted(each):
                span = each.span
                queue, first = (span.topic, span.queue_id), QueueOffset(span.queue_offset)
                self._appender.reclaim_offsets(queue, first, first + span.count)

    def _release(self, atomic_until: PhysicalOffset = LOG_START) -> None:
        self.degradation.end()
        self._reput.resume_dispatch(atomic_until)
        self.hold_durations.add(time.perf_counter() - self._suspended_since)
        self._wake()

    def _copy(
        self,
        batch: OpenBatch,
        names: Sequence[StagedName],
        copied: list[_CopiedRows],
        admit: Callable[[QueueKey], object],
        executor: JobExecutor,
    ) -> Steps[PhysicalOffset]:
        """Append all rows, in several steps for each chunk, and flush; return the rows' end."""
        yield from bulk_tools.load_in_steps()
        end_offset = LOG_START
        # If the batch is rolled back, its queues may have gaps, and blank entries cannot refer to
        # the first file.
        self._log.skip_first_file()
        reads = (start_in_thread(partial(self._read, name), executor) for name in names)
        read = next(reads, None)
        while read is not None:
            checked = yield from read
            read = next(reads, None)  # read the next while this one is appended
            checked.mark(batch.mark)
            for rows in checked.split_by_step():
                yield FULL_TURN
                admit(rows.queue)
                result = self._chunk_appender.put_checked(rows)
                if result.status is not PutMessageStatus.PUT_OK:
                    raise StoreError(result.remark or "the store accepts no messages")
                copied.append(_CopiedRows(span_of(rows, result), result.physical_offset))
                end_offset = result.end_offset
                self._wake()  # reput precomputes the entries of these rows
                if result.message_count < rows.rows:
                    raise TransientFailure(
                        f"only {result.message_count} of {rows.rows} messages fit into the commit "
                        "log"
                    )
            yield None
        if copied:
            is_flushed = self._flush_future(end_offset)
            yield is_flushed
            is_flushed.result()
            for queue in {(each.span.topic, each.span.queue_id) for each in copied}:
                admit(queue)  # the topic may be deleted meanwhile
            deleted = next(filter(self._is_topic_deleted, copied), None)
            if deleted is not None:  # even if it was recreated
                raise BatchRefused(f"topic {deleted.span.topic} was deleted while rows were copied")
        return end_offset

    def _is_topic_deleted(self, copied: _CopiedRows) -> bool:
        """Return whether a topic was deleted after rows were appended, so that they stay hidden."""
        return copied.position < self._dispatcher.deleted_topics.get(copied.span.topic, LOG_START)

    def _read(self, name: StagedName) -> CheckedChunk:
        """Return the records of a staged chunk, ready to be appended; any thread may call this."""
        from rmq_spark.wire.chunk.sized_chunk import decode_sized_chunk  # noqa: PLC0415  # needs the tools for many records

        sizes, records = decode_sized_chunk(self.staging_area.read(name))
        return run_steps(self._check(records, sizes, are_known=True))

    def _check(
        self, records: Buffer, sizes: Sizes, *, are_known: bool = False
    ) -> Steps[CheckedChunk]:
        try:
            checked = yield from self._chunk_appender.check(records, sizes, are_known=are_known)
        except RecordError as error:
            raise BatchRefused(str(error)) from error
        if isinstance(checked, PutMessageResult):
            raise BatchRefused(checked.remark or "the records cannot be appended")
        return checked

    def _rollback(self, batch: OpenBatch) -> None:
        rollback_rows(self._log, batch.log_offset, batch.mark)
        self._log.flush()
        self.table.rollback()

    def _retry_until_durable(
        self,
        job: Callable[[], object],
        executor: JobExecutor,
        pause: Callable[[], Future[None]],
        attempts: int | None = None,
    ) -> Steps[None]:
        """Run a job that must not be left half done; retry it after a shortage.

        Raises:
            StoreFailed: The job failed, and the state on the disk is unknown.
            Exception: The last attempt failed for a shortage; nothing was done.
        """
        for attempt in count(1):
            try:
                yield from run_in_thread(job, executor)
            except Exception as error:  # noqa: PERF203  # each attempt may fail
                if not is_retryable(error):
                    self.degradation.clear()
                    failure = StoreFailed("a batch can be neither committed nor rolled back", error)
                    self._fail(failure)
                    raise failure from error
                self.degradation.begin(error)
                if attempt == attempts:
                    raise
                yield pause()
            else:
                return
