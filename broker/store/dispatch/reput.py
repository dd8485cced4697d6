"""ReputMessageService: follows the log and dispatches confirmed messages to queues and index.

It has no thread and no timer: the code that appends or flushes calls `run`. Each run stops at the
confirm offset, so that no consumer sees a message that a crash could still take back, and notifies
the listener once for each queue.

- A record that has become inconsistent since it was written, such as by a flipped bit, counts as a
  hole and is skipped, so that later records do not wait.
- A record that recovery found and that the disk no longer returns counts as a hole as well. If a
  record past the recovered end cannot be read, reput waits, as after any transient error.
- The index follows at its own pace, in larger runs, because queries are rare; it catches up before
  each query. A dispatched chunk is indexed from memory, in steps, before the next one is
  dispatched: reading and decoding it again would cost three times as much.
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import TYPE_CHECKING, TypeAlias

from rmq_spark.errors import RecordError, Verbatim
from rmq_spark.wire.message_queue import QueueKey
from rmq_spark.wire.remoting.framing import Buffer

from ...common.recent_losses import LossKind, RecentLosses
from ..bulk import bulk_tools
from ..errors import (
    Degradation,
    StoreError,
    StoreFailed,
    UnreadableFile,
    is_resource_shortage,
    is_retryable,
)
from ..index.index_keys import HashedKeys, KeyedChunk, hash_records, hash_runs
from ..index.index_service import IndexService
from ..log.commit_log import CommitLog
from ..log.recovery import next_record_after
from ..queues.consume_queue import ConsumeQueue, first_physical_offset, last_physical_offset
from ..queues.queue_table import QueueTable
from ..records.fields import read_fields
from ..records.integrity import RecordCheck
from ..records.recent_writes import ColumnRun, RecentRun, RecentWrites, UnindexedRuns
from ..results import LOG_START, Hole, PhysicalOffset, QueueOffset
from .dispatcher import FEW_MAX, Dispatcher, MessageArrivingListener, QueueEntries
from .hidden_entries import HiddenEntries, PrecomputedDispatch, with_tags_codes

if TYPE_CHECKING:
    from rmq_spark.wire.chunk import RecordChunk


# ---- RecreatedTopics: topics that were deleted and created again, as found in the log.

_log = logging.getLogger(__name__)


class RecreatedTopics:
    """Topics that were deleted and created again, without an entry in the manifest."""

    def __init__(self, log: CommitLog, dispatcher: Dispatcher) -> None:
        self._commit_log = log
        self._dispatcher = dispatcher
        self.topics: set[str] = set()
        """The names of these topics."""

    def reset_queue(self, topic: str, queue_id: int, queue: ConsumeQueue, entries: Buffer) -> None:
        """Clear a queue if these entries belong to a new topic of the same name.

        Their offsets appear for a second time. The first messages of the new topic may be damaged,
        so its offsets need not start at 0 here. Everything up to the queue's last record belongs to
        the deleted topic, also in the topic's other queues. Records past it may belong to the new
        topic. The queue stays if its last entry is damaged and leads to no record, or if the
        entries lie before its last record: then they are only dispatched again.
        """
        physical_offset = first_physical_offset(entries)
        known_end = self._end_of_last_record(topic, queue_id, queue)
        if known_end is None or physical_offset < known_end:
            return
        if topic not in self.topics:
            self.topics.add(topic)
            _log.warning(
                "%s was deleted and recreated after the manifest was saved: old messages at the"
                " same offsets are hidden",
                topic,
            )
        self._dispatcher.note_deleted(topic, known_end)
        queue.clear()

    def _end_of_last_record(
        self, topic: str, queue_id: int, queue: ConsumeQueue
    ) -> PhysicalOffset | None:
        """Return the end of a queue's last record, or None if its last entry leads to no record."""
        try:
            last = queue.last_entry()
            if last is None:
                return None
            queue_offset, position, size = last
            found = read_fields(self._commit_log.read_record(position), 0, size)[:3]
        except (UnreadableFile, RecordError) as error:
            if isinstance(error, UnreadableFile) and is_resource_shortage(error):
                raise
            return None
        return position + size if found == (topic.encode(), queue_id, queue_offset) else None


RUN_BYTES_MAX = 4 << 20
INDEX_LAG_BYTES_MAX = 1 << 20
RUN_RECORDS_MAX = 8_192
"""Records dispatched at a time, in some five milliseconds."""
INDEX_RECORDS_MAX = 1_024
"""Records read for the index at a time, in two milliseconds; in five on a new index file, where
each record may be the first to write to a page."""
_READ_KEYS_MAX = 8_192
"""Keys of a chunk read from the log that are added at a time; further keys are read again."""
_DISPATCHED_KEYS_MAX = 2_048
"""Keys of a chunk just dispatched that are added to the index at a time, in a millisecond."""
ONE_BY_ONE_MAX = 1024
"""Records dispatched one by one at a time, while the bulk tools are being loaded."""
_ONE_BY_ONE_BYTES_MAX = 1 << 13
"""Bytes of messages whose keys are hashed one by one; every two bytes may hold a key."""

Arrivals: TypeAlias = "dict[QueueKey, tuple[ConsumeQueue, list[int]]]"
"""Queues with new entries, and the tags codes of these entries."""


class _UnreadableRecord(RecordError):
    """The disk does not return a record that recovery found; a retry may succeed."""


def _never_stop() -> bool:
    return False


class ReputMessageService:
    """The service that follows one log."""

    def __init__(
        self,
        log: CommitLog,
        queues: QueueTable,
        index: IndexService | None,
        dispatcher: Dispatcher,
        confirm_offset: Callable[[], PhysicalOffset],
        recent_writes: RecentWrites,
        losses: RecentLosses,
    ) -> None:
        """Start without a listener; records in ``recent_writes`` are not read from the log."""
        self._log = log
        self._queues = queues
        self._index = index
        self._dispatcher = dispatcher
        self._listener: MessageArrivingListener | None = None
        self._confirm_offset = confirm_offset
        self._recent_writes = recent_writes
        self._losses = losses
        self._precomputed = PrecomputedDispatch(
            recent_writes.uncommitted, dispatcher, has_index=index is not None
        )
        self._unindexed_runs = UnindexedRuns()
        self._dispatched_chunk: KeyedChunk | None = None
        self._lock = threading.Lock()
        self._check = RecordCheck(log.sealed_from)
        self.holes: tuple[Hole, ...] = ()
        """The parts of the log in which recovery, or this service, found no record."""
        self.recreated_topics = RecreatedTopics(log, dispatcher)
        """The topics that were deleted and recreated, as found in the log."""
        self.is_stopped = False
        """True once nothing is dispatched any more."""
        self._recovered_end = LOG_START
        self._suspended_from: PhysicalOffset | None = None
        self._atomic_until = LOG_START
        self._hidden_entries = HiddenEntries()
        self._hidden_until = LOG_START
        self.reput_from_offset = LOG_START
        self.index_from_offset = LOG_START

    def restore(
        self,
        reput_from_offset: PhysicalOffset,
        index_from_offset: PhysicalOffset,
        holes: tuple[Hole, ...],
    ) -> None:
        """Continue from these offsets, and skip the holes that recovery found.

        Records before the present end of the log that the disk does not return are skipped, too.
        """
        self._recovered_end = self._log.written_offset
        self.reput_from_offset = reput_from_offset
        self.index_from_offset = index_from_offset
        self.holes = holes
        self._check = RecordCheck(self._log.sealed_from)

    def set_listener(self, listener: MessageArrivingListener) -> None:
        """Notify a listener of all that is dispatched from now on."""
        self._listener = listener

    def suspend_from(self, physical_offset: PhysicalOffset) -> None:
        """Suspend dispatch from a physical offset on, until `resume_dispatch`: a commit is open."""
        self._suspended_from = physical_offset

    def resume_dispatch(self, atomic_until: PhysicalOffset = LOG_START) -> None:
        """Resume dispatch; all entries up to ``atomic_until`` become visible at once."""
        self._atomic_until = max(self._atomic_until, atomic_until)
        self._suspended_from = None

    def discard_pending(self) -> None:
        """Discard precomputed entries of hidden rows, because the log is about to change there."""
        with self._lock:
            self._precomputed.discard()

    def visible_offset(self) -> PhysicalOffset:
        """Return the end of visible messages: confirmed, and not in an open commit."""
        confirmed, held_from = self._confirm_offset(), self._suspended_from
        return confirmed if held_from is None else min(confirmed, held_from)

    @property
    def has_listener(self) -> bool:
        """True if there is a listener, so that only the listener's thread may `run` this."""
        return self._listener is not None

    def run(self, should_stop: Callable[[], bool] = _never_stop) -> bool:
        """Dispatch all confirmed messages; return False if ``should_stop`` ended the run early.

        ``should_stop`` is called after each piece.
        """
        with self._lock:
            if self.is_stopped:
                return True
            while self._next_offset < self.visible_offset():
                if self._dispatched_chunk is not None and not self._catch_up_index(should_stop):
                    return False
                try:
                    self._run_once()
                except RecordError as error:
                    self._add_hole(self._next_offset, self.visible_offset(), error)
                if should_stop():
                    return False
            while self._precomputed.step():
                if should_stop():
                    return False
            is_far_behind = self.visible_offset() - self.index_from_offset >= INDEX_LAG_BYTES_MAX
            if is_far_behind or self._dispatched_chunk is not None:
                return self._catch_up_index(should_stop)
        return True

    def stop(self) -> None:
        """Stop dispatching, before the files are closed."""
        with self._lock:
            self.is_stopped = True

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Enter a context in which nothing is dispatched."""
        with self._lock:
            yield

    @contextmanager
    def caught_up(self) -> Iterator[None]:
        """Enter a context in which nothing is dispatched, and the index is up to date."""
        with self._lock:
            self._catch_up_index()
            yield

    def rewind_to(self, physical_offset: PhysicalOffset) -> None:
        """Dispatch again from a physical offset on; only while this is `paused`."""
        self.reput_from_offset = min(self.reput_from_offset, physical_offset)

    def catch_up_index(self, should_stop: Callable[[], bool] = _never_stop) -> bool:
        """Update the index up to the consume queues; return False if ``should_stop`` ended this.

        ``should_stop`` is called after each piece.
        """
        with self._lock:
            return self._catch_up_index(should_stop)

    @property
    def _next_offset(self) -> PhysicalOffset:
        """The log offset past all dispatched and hidden entries."""
        return max(self.reput_from_offset, self._hidden_until)

    def discard_hidden(self) -> None:
        """Discard hidden entries, to write them again; only while this is `paused`."""
        self._hidden_entries.discard()
        self._hidden_until = LOG_START

    def _run_once(self) -> None:
        if self._suspended_from is None and self._precomputed.step():  # the last rows of a batch
            return
        start, confirmed = self._next_offset, self.visible_offset()
        ahead = self._precomputed.entries.pop_at(start, confirmed)
        if ahead is not None:
            self._dispatch([with_tags_codes(ahead.run)], ahead.end_offset)
            return
        confirmed = self._precomputed.entries.next_start(start, confirmed)
        fresh: list[RecentRun | ColumnRun] = []
        next_offset = start
        while run := self._recent_writes.runs.pop_at(next_offset, confirmed):
            fresh.append(run)
            next_offset = run.end_offset
        if fresh:
            self._dispatch(self._dispatcher.entries_of_recent(fresh), next_offset)
            is_near = next_offset - self.index_from_offset < 2 * INDEX_LAG_BYTES_MAX
            if is_near and self._index is not None:  # otherwise they would not be used
                self._unindexed_runs.add(fresh)
            return
        many = self._recent_writes.chunks.pop_at(start, confirmed)
        if many is not None:
            self._dispatch([self._dispatcher.entries_of_recent_chunk(many)], many.end_offset)
            self._keep_for_index(many.chunk, start, many.queue[0])
            return
        self._dispatch_read(start, confirmed)

    def _dispatch_read(self, start: PhysicalOffset, end: PhysicalOffset) -> None:
        data, sizes, next_offset = self._next_records(start, end)
        are_few = len(sizes) <= FEW_MAX or not bulk_tools.are_loaded()
        if are_few:
            intact_count, _ = self._check.check_one_by_one(data, sizes[:ONE_BY_ONE_MAX], start)
        else:
            intact_count, _ = self._check.check_columns(data, sizes, start)
        if sizes and not intact_count:
            needed = "an intact record at its position"
            raise RecordError("log", at=start, needed=needed, found=sizes[0])
        if intact_count < len(sizes):
            sizes = sizes[:intact_count]
            next_offset = start + sum(sizes)
        if are_few:
            self._dispatch(self._dispatcher.entries_of_few(data, sizes, start), next_offset)
        else:
            chunk = _chunk(data, sizes)
            self._dispatch(self._dispatcher.entries_of_chunk(chunk, start), next_offset)
            self._keep_for_index(chunk, start)

    def _keep_for_index(
        self, chunk: RecordChunk, start: PhysicalOffset, topic: str | None = None
    ) -> None:
        if self._index is not None and 0 <= start - self.index_from_offset < INDEX_LAG_BYTES_MAX:
            self._dispatched_chunk = KeyedChunk(chunk, start, topic)

    def _dispatch(self, runs: Iterable[QueueEntries], next_offset: PhysicalOffset) -> None:
        """Dispatch entries to their queues; those of a commit stay hidden until its last entry."""
        runs = self._dispatcher.exclude_deleted(runs)
        if self._next_offset < self._atomic_until:
            self._dispatch_hidden(runs, next_offset)
        else:
            self._dispatch_now(runs, next_offset)

    def _dispatch_hidden(self, runs: Iterable[QueueEntries], next_offset: PhysicalOffset) -> None:
        """Write hidden entries; the last ones publish all of them in one step."""
        for topic, queue_id, queue_offset, entries, tags_codes in runs:
            key = topic, queue_id
            queue = self._queues.get_or_create(*key)
            if queue_offset < queue.max_offset and not self._hidden_entries.has_any_of(key):
                self.recreated_topics.reset_queue(topic, queue_id, queue, entries)
            blank_position = self._blank_offset(entries)
            rolled_back = self._rolled_back_before(key, queue_offset, entries)
            self._hidden_entries.add(
                key, queue, queue_offset, entries, tags_codes, blank_position, rolled_back
            )
        self._hidden_until = next_offset
        if next_offset >= self._atomic_until:
            shown = self._hidden_entries.publish()
            self.reput_from_offset, self._hidden_until = next_offset, LOG_START
            for each in shown:
                self._dispatcher.rolled_back.discard(
                    each.key, each.queue.max_offset, each.last_physical_offset
                )
                self._notify(*each.key, each.queue.max_offset, each.tags_codes)

    def _dispatch_now(self, runs: Iterable[QueueEntries], next_offset: PhysicalOffset) -> None:
        arrivals: Arrivals = {}
        try:
            self._append(runs, arrivals)
            self.reput_from_offset = next_offset
        finally:  # what is in its queue can be pulled, even if another queue has no room
            for (topic, queue_id), (queue, codes) in arrivals.items():
                self._notify(topic, queue_id, queue.max_offset, codes)

    def _append(self, runs: Iterable[QueueEntries], arrivals: Arrivals) -> None:
        for topic, queue_id, queue_offset, entries, tags_codes in runs:
            key = topic, queue_id
            queue = self._queues.get_or_create(*key)
            if queue_offset < queue.max_offset:
                self.recreated_topics.reset_queue(topic, queue_id, queue, entries)
            if queue_offset > queue.max_offset:  # messages were lost or rolled back
                rolled_back = self._rolled_back_before(key, queue_offset, entries)
                queue.skip_to(queue_offset, self._blank_offset(entries), rolled_back)
            queue.append(queue_offset, entries)
            self._dispatcher.rolled_back.discard(
                key, queue.max_offset, last_physical_offset(entries)
            )
            if self._listener is not None:
                _, codes = arrivals.setdefault(key, (queue, []))
                codes += tags_codes

    def _rolled_back_before(
        self, key: QueueKey, queue_offset: QueueOffset, entries: Buffer
    ) -> list[range]:
        position = first_physical_offset(entries)
        return self._dispatcher.rolled_back.gaps_before(key, queue_offset, position, self.holes)

    def _blank_offset(self, entries: Buffer) -> PhysicalOffset:
        """Return the offset to which blank entries in a gap before these entries lead."""
        return PhysicalOffset(self._log.files.previous_file_start(first_physical_offset(entries)))

    def _notify(
        self,
        topic: str,
        queue_id: int,
        max_offset: QueueOffset,
        tags_codes: Collection[int] | None,
    ) -> None:
        try:
            if self._listener is not None:
                self._listener.arriving(topic, queue_id, max_offset, tags_codes)
        except Exception:  # noqa: BLE001  # the other queues must still be reported
            _log.exception("notifying of new messages in queue %d of %s failed", queue_id, topic)

    def _catch_up_index(self, should_stop: Callable[[], bool] = _never_stop) -> bool:
        if self._index is None:
            self.index_from_offset = self.reput_from_offset
            return True
        while self.index_from_offset < self.reput_from_offset:
            try:
                self._index_once(self._index)
            except RecordError as error:
                self._add_hole(self.index_from_offset, self.reput_from_offset, error)
            if should_stop():
                return False
        return True

    def _index_once(self, index: IndexService) -> None:
        chunk, self._dispatched_chunk = self._dispatched_chunk, None  # a retry reads the log
        keys, end = self._next_keys(self.index_from_offset, self.reput_from_offset, chunk)
        index.add(*keys)
        self.index_from_offset = end
        if chunk is not None and end <= chunk.start_offset < chunk.end_offset:
            self._dispatched_chunk = chunk

    def _next_keys(
        self, start: PhysicalOffset, limit: PhysicalOffset, chunk: KeyedChunk | None
    ) -> tuple[HashedKeys, PhysicalOffset]:
        """Return the next keys, from memory or else from the log, and the end of their records."""
        is_kept = start >= self._log.min_offset
        ahead = self._precomputed.keys.pop_at(start, limit)
        if ahead is not None and is_kept:
            return ahead.keys, ahead.end_offset
        limit = self._precomputed.keys.next_start(start, limit)
        runs = self._unindexed_runs.next_contiguous(start, limit) if is_kept else ()
        if runs and runs[0].start_offset > start:
            limit = runs[0].start_offset
        elif runs:
            keys = hash_runs(runs)
            if keys is not None:
                return keys, runs[-1].end_offset
            self._unindexed_runs.discard(runs)
        if chunk is not None and start < chunk.start_offset:
            limit = min(limit, chunk.start_offset)
        is_next = chunk is not None and start == chunk.start_offset and chunk.end_offset <= limit
        if chunk is not None and is_next and is_kept:
            return chunk.next_keys(_DISPATCHED_KEYS_MAX), chunk.start_offset
        data, sizes, next_offset = self._next_records(start, limit, INDEX_RECORDS_MAX)
        few = bisect_right(list(accumulate(sizes[:ONE_BY_ONE_MAX])), _ONE_BY_ONE_BYTES_MAX)
        if len(sizes) <= min(FEW_MAX, few) or not bulk_tools.are_loaded():
            if len(sizes) > few:
                sizes = sizes[: max(few, 1)]
                next_offset = start + sum(sizes)
            return hash_records(data, sizes, start), next_offset
        many = KeyedChunk(_chunk(data, sizes), start)
        return many.next_keys(_READ_KEYS_MAX), many.start_offset

    def _add_hole(self, start: PhysicalOffset, end: PhysicalOffset, error: RecordError) -> None:
        """Skip the first inconsistent record between two offsets, unless it is readable by now."""
        if start < self._log.min_offset:  # the records were deleted meanwhile, not damaged
            return
        try:
            data, sizes, _ = self._next_records(start, end)
        except RecordError:
            data, sizes = b"", [0]
        intact_count, _ = self._check.check_one_by_one(data, sizes, start)
        if intact_count == len(sizes):
            if isinstance(error, _UnreadableRecord):
                return
            raise error
        position = start + sum(sizes[:intact_count])
        found = next_record_after(self._log.files, position + 1, position, self._log.sealed_from)
        hole = position, end if found is None else min(found, end)
        self.holes = (*self.holes, hole)
        self._losses.report(
            LossKind.LOG_DAMAGED,
            f"the commit log is damaged from {hole[0]} to {hole[1]}, which is skipped: {error}",
        )

    def _next_records(
        self, start: PhysicalOffset, end: PhysicalOffset, count_max: int | None = None
    ) -> tuple[Buffer, list[int], PhysicalOffset]:
        """Return records from a log offset on, within one file, and the offset past them."""
        stop, first = end, self._log.min_offset
        if start < first:
            return b"", [], min(first, end)
        for hole_start, hole_end in self.holes:
            if hole_start <= start < hole_end:
                return b"", [], min(hole_end, end)
            if start < hole_start:
                stop = min(stop, hole_start)
        try:
            data, sizes = self._log.read_records(
                start, stop, RUN_BYTES_MAX, count_max or RUN_RECORDS_MAX
            )
        except UnreadableFile as error:
            if start >= self._recovered_end or is_resource_shortage(error):
                raise  # retry the read instead of skipping the records
            needed, found = "a readable record", Verbatim(error)
            raise _UnreadableRecord("log", at=start, needed=needed, found=found) from error
        if sizes:
            return data, sizes, start + sum(sizes)
        return data, sizes, min(start + self._log.files.space_left(start), end)


def _chunk(data: Buffer, sizes: Sequence[int]) -> RecordChunk:
    return bulk_tools.RecordChunk(data[: sum(sizes)], sizes)


# ---- ReputSupervisor: runs reput and handles its errors.


class ReputSupervisor:
    """Runs a store's reput; ``fail`` gets each failure that retries do not resolve."""

    def __init__(self, reput: ReputMessageService, fail: Callable[[StoreError], object]) -> None:
        self._reput = reput
        self._fail = fail
        self.degradation = Degradation("messages are not dispatched to their consume queues")

    def run(self, should_stop: Callable[[], bool]) -> bool:
        """Dispatch confirmed messages; return False if more are left.

        Messages are left if ``should_stop`` ended the run early, or an error is to be retried.
        """
        is_all = True
        try:
            is_all = self._reput.run(should_stop)
        except Exception as error:  # noqa: BLE001  # any error must be handled: messages would stay hidden
            if is_retryable(error):
                self.degradation.begin(error)
                return False
            if isinstance(error, (OSError, StoreError, RecordError)):
                self._fail(StoreFailed("writing a consume queue or the index failed", error))
            else:
                failed = "dispatching messages to their consume queues failed"
                _log.exception(failed)
                self._fail(StoreFailed(f"{failed}: {error!r}"))
        if not self._reput.is_stopped:  # otherwise nothing was retried
            self.degradation.end()
        return is_all
