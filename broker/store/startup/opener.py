"""Opener: opens a store that a stop or a crash has left, so that it accepts and returns messages.

1. ``abort`` tells whether the last broker stopped in order; this one then creates it.
2. The log is scanned from the checkpoint to its end (`recovery`); its torn tail is wiped.
   After a crash the records found are written again and flushed: the broker may have been killed
   before it flushed them.
3. Consume queues are restored from the manifest, by the names and sizes of their files alone; from
   there on the log is dispatched again. All queues are rebuilt from the log if a file is missing,
   if a hole in the log appeared or disappeared, if the manifest is not the one that was saved
   last, or if another program wrote the checkpoint. Rebuilt queues end at least where their files
   ended. The index is also rebuilt if one of its files is missing.
4. A checkpoint is saved if queues were rebuilt, or if a deletion now counts from an earlier offset:
   the last checkpoint is wrong then. Otherwise a restart can still use it.

Warnings tell the operator which parts of the commit log are lost, and in which files.

Rebuilding all queues of a large log takes minutes. A checkpoint after each GiB saves the progress,
together with the minimum ends of the queues: if the start is ended or killed, the next one does
only the rest, and produces the same queues.

Nothing is deleted before step 3, and no message ever. During a shortage, such as of disk space, the
remaining writes wait: recovered messages can be read meanwhile, and log files can be deleted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TypeAlias

from rmq_spark.wire.message.record_layout import RECORD_BYTES_MIN
from rmq_spark.wire.message_queue import QueueKey
from rmq_spark.wire.names import LIGHT_QUEUE_PREFIX

from ...common.recent_losses import LossKind
from ..batch_commit.rollback import check_batches, rollback_open_batch
from ..components import CONSUME_QUEUE, INDEX, StoreComponents
from ..errors import StartInterrupted, TransientFailure, UnreadableFile, is_transient
from ..log.checkpoint_file import CHECKPOINT, load_checkpoint
from ..log.recovery import (
    LogRecovery,
    RecoveredLog,
    next_record_after,
    reliable_checkpoint,
    rewrite_recovered,
    wipe_after,
)
from ..maintenance.checkpointer import Checkpointer
from ..queues.manifest import StoreManifest
from ..results import LOG_START, Hole, PhysicalOffset, QueueOffset
from .consistency_check import QUEUES_MAX, ConsistencyResult, check_derived_files
from .directory_lock import AbortFile

_log = logging.getLogger(__name__)
_DAMAGE_WARNING = "%s is damaged: its entries do not match the commit log; %s rebuilt"
_PROGRESS_BYTES = 1 << 30
"""Bytes of the log after which a start that rebuilds all queues saves its progress."""
_INTERRUPTED = "the start was interrupted"
_NOT_CHECKED = ConsistencyResult(None, is_index_consistent=True)


ProgressCallback: TypeAlias = Callable[[str, int, int], bool]
"""``on_progress(activity, done_bytes, total_bytes)`` returns True to end a long start."""


class StoreOpening:
    """One start: the state that it has found, and the writes due before messages are accepted."""

    def __init__(
        self,
        components: StoreComponents,
        checkpointer: Checkpointer,
        abort_file: AbortFile,
        on_progress: ProgressCallback | None,
    ) -> None:
        """Open the parts of a store in a locked directory; `finish` does the remaining writes.

        Raises:
            StartInterrupted: ``on_progress`` has ended the start.
            ForeignFile, DamagedTable, UnreadableFile: As `store.errors` says. No message was
                touched.
        """
        self._components, self._disk, self._log = components, components.disk, components.log
        self._queues, self._index = components.queues, components.index
        self._dispatcher, self._reput = components.dispatcher, components.reput
        self._checkpointer = checkpointer
        self._on_progress = on_progress or (lambda *_: False)
        self._disk.flush_directory(components.root)
        self.recovered_from_crash = abort_file.exists()
        self.lost_bytes = 0
        """The bytes of the log that earlier runs had, and this start has not found."""
        self._load()
        is_own_checkpoint = self._load_checkpoint_and_manifest(abort_file)
        self._recovered = self._recover_log()
        # A power loss may have removed the end of the log: records appended from there on are newer
        # than the deletion.
        self._dispatcher.deleted_topics = {
            topic: min(at, self._recovered.end_offset)
            for topic, at in self._manifest.deleted_topics.items()
        }
        referenced_end = self._max_referenced_offset() if self.recovered_from_crash else LOG_START
        self._check_log(referenced_end, is_own_checkpoint=is_own_checkpoint)
        self._restore(is_own_checkpoint=is_own_checkpoint)
        self._steps: list[Callable[[], object]] = [
            abort_file.create,
            self._finish_log,
            self._dispatch_recovered,
            self._trim_queues,
        ]
        if self._is_rebuilding or self._dispatcher.deleted_topics != self._manifest.deleted_topics:
            self._steps.append(checkpointer.save)

    @property
    def is_finished(self) -> bool:
        """True if no write remains."""
        return not self._steps

    def finish(self) -> None:
        """Do the remaining writes. Any thread may call this, but only one at a time.

        Raises:
            TransientFailure: The listener has not dispatched the recovered messages yet.
            OSError, StoreError: A step failed. The next call starts with that step.
        """
        while self._steps:
            self._steps[0]()
            del self._steps[0]

    # ---- Checkpoint, manifest, and the end of the log.

    def _load(self) -> None:
        self._log.files.load()
        self._queues.load()
        if self._queues.light_queue_count:
            _log.warning(
                "%s has %d light queues (%s...) of RocketMQ 5, which are not served. Read the "
                "parent topics",
                self._components.root / CONSUME_QUEUE,
                self._queues.light_queue_count,
                LIGHT_QUEUE_PREFIX,
            )
        if self._index is not None:
            self._index.load()
        self._components.batch_table.load()
        self._components.staging_area.load()
        under_way = self._components.batch_table.under_way
        if under_way is not None:
            self._reput.suspend_from(under_way.log_offset)

    def _load_checkpoint_and_manifest(self, abort_file: AbortFile) -> bool:
        """Load checkpoint and manifest; return whether this broker wrote the last checkpoint."""
        path = self._components.root / CHECKPOINT
        loaded, is_foreign = load_checkpoint(self._disk, path), abort_file.is_foreign()
        self._checkpoint = reliable_checkpoint(loaded, self._log.files, is_foreign=is_foreign)
        if is_foreign:
            # Delete it before our abort file replaces the other program's: if this start ends
            # without a checkpoint, the next one must not trust the old one.
            self._disk.delete(path)
            self._disk.flush_directory(path.parent)
        self._manifest = self._checkpointer.load_manifest()
        self._checkpointer.restore(self._checkpoint)
        self._is_newest = self._is_newest_manifest()
        # Deletions that an older manifest lists as half done may be finished, and their topics
        # created again.
        if not self._is_newest:
            self._manifest = replace(self._manifest, half_deleted=())
        self._checkpointer.half_deleted = self._manifest.half_deleted
        return loaded is not None and not is_foreign

    def _is_newest_manifest(self) -> bool:
        """Return whether the manifest is the one that was saved last; warn if not."""
        checkpointer, checkpoint = self._checkpointer, self._checkpoint
        quarantined = checkpointer.manifest.quarantined
        if quarantined is not None:
            _log.warning(
                "%s was damaged (%s) and is now %s: all queues are rebuilt, and deleted topics may "
                "be back",
                checkpointer.manifest.path.name,
                quarantined.reason,
                quarantined.path.name,
            )
            return False
        if checkpoint is not None and not checkpointer.is_newest(self._manifest, checkpoint):
            _log.warning(
                "%s is missing or an older copy: all queues are rebuilt, and deleted topics may be "
                "back",
                checkpointer.manifest.path,
            )
            return False
        return True

    def _recover_log(self) -> RecoveredLog:
        """Find the end of the log and continue there; `_finish_log` wipes the torn tail.

        The newest manifest has the store times of the part that is not scanned.
        """
        log, checkpoint = self._log, self._checkpoint
        start = checkpoint.safe_offset if checkpoint else log.min_offset
        report = self._reporter("checks the commit log", start, log.files.end_offset)
        recovery = LogRecovery(log.files, checkpoint, report)
        size_max = self._components.config.check_whole_log_bytes
        if self._size_until(recovery.safe_offset) <= size_max or not self._is_newest:
            recovered = recovery.scan_from(log.min_offset)
        else:
            known = self._manifest.store_times(checkpoint.store_timestamp if checkpoint else 0)
            recovered = recovery.scan_from(recovery.safe_offset, known)
        if self.recovered_from_crash:
            log.files.flush_loaded()
        sealed_from = min(recovery.sealed_from, recovered.end_offset)
        log.restore(recovered.end_offset, recovered.timeline, sealed_from)
        return recovered

    def _reporter(self, activity: str, start: int, end: int) -> Callable[[int], None]:
        """Return a function that reports each position reached, and may end the start."""

        def report(position: int) -> None:
            if self._on_progress(activity, position - start, end - start):
                raise StartInterrupted(
                    f"{_INTERRUPTED} while it {activity}; the next start does that again"
                )

        return report

    def _max_referenced_offset(self) -> PhysicalOffset:
        """Return the end of the last record that queues of a small store lead to, or 0.

        After a crash, queues lead only to flushed records if the manifest says that entries were
        confirmed.
        """
        ends = [LOG_START]
        if self._manifest.entries_were_confirmed and self._is_small(self._recovered.end_offset):
            for _, _, queue in self._queues:
                with suppress(UnreadableFile):
                    ends.append(queue.last_record_end())
        return max(ends)

    def _check_log(self, referenced_end: PhysicalOffset, *, is_own_checkpoint: bool) -> None:
        """Refuse an older copy of the batch table; warn of lost parts of the log.

        Queues lead only to flushed records, the last of which ends at ``referenced_end``.
        """
        files, manifest, end_offset = self._log.files, self._manifest, self._recovered.end_offset
        losses = self._components.losses
        known_holes = dict(manifest.holes)
        for start, end in self._recovered.holes:
            text = (
                f"{files.path_at(start)} is damaged: no message is read from {start} to {end} of "
                "the commit log; all others are served"
            )
            if start in known_holes:
                _log.warning("%s", text)
            else:
                losses.report(LossKind.LOG_DAMAGED, text, level=logging.WARNING)
        check_batches(
            self._components,
            manifest,
            referenced_end if is_own_checkpoint else LOG_START,
            is_newest=self._is_newest,
        )
        if is_own_checkpoint and files.first_offset > manifest.log_min_offset:
            self.lost_bytes += files.first_offset - manifest.log_min_offset
            _log.warning(
                "%s is missing: the log begins at %d, not %d; the messages between are lost, "
                "unless expired",
                files.path_at(manifest.log_min_offset),
                files.first_offset,
                manifest.log_min_offset,
            )
        safe_offset = manifest.safe_offset
        if is_own_checkpoint and safe_offset is not None and end_offset < safe_offset:
            _log.warning(
                "%s is missing or an older copy: the log ends at %d, not %d; the messages between "
                "are lost",
                files.path_at(end_offset),
                end_offset,
                safe_offset,
            )
        expected_end = max(referenced_end, safe_offset or 0 if is_own_checkpoint else 0)
        self.lost_bytes += max(expected_end - end_offset, 0)
        if referenced_end > end_offset:
            _log.warning(
                "%s is missing, damaged or older: the log ends at %d, not %d; the "
                "messages between are lost",
                files.path_at(end_offset),
                end_offset,
                referenced_end,
            )
        if self.lost_bytes:
            losses.record(
                LossKind.LOG_LOST,
                f"the start did not find {self.lost_bytes:,} bytes of the commit log",
            )

    # ---- queues and index

    def _restore(self, *, is_own_checkpoint: bool) -> None:
        """Restore or rebuild queues and index, and set where reput resumes."""
        components, manifest, recovered = self._components, self._manifest, self._recovered
        saved_holes = tuple(hole for hole in manifest.holes if hole[0] >= self._log.min_offset)
        remaining_holes = self._remaining_holes(saved_holes)
        can_restore = (
            self._checkpoint is not None
            and self._is_newest
            and (not recovered.holes or self._are_holes_known())
            and self._matches_log()
            and remaining_holes == saved_holes
        )
        self._ends: Mapping[QueueKey, QueueOffset] = {}
        """The ends of queues by their files, where these may be past those in the manifest."""
        if not can_restore or (self.recovered_from_crash and self._is_small(recovered.end_offset)):
            self._ends = self._minimum_ends(is_last_known=self._is_newest and is_own_checkpoint)
        is_resumed, consistency = self._restore_queues(is_restorable=can_restore)
        self._is_rebuilding = manifest.is_rebuilding or not is_resumed
        if manifest.is_rebuilding:  # a start may have written to the queue files since
            found = manifest.file_ends()
            self._ends = found if is_resumed else {**self._ends, **found}
        self._may_have_others = (
            self.recovered_from_crash and is_resumed and not manifest.entries_were_confirmed
        )
        dispatched_to = manifest.safe_offset if is_resumed else None
        self._reput_from = max(dispatched_to or LOG_START, self._log.min_offset)
        # Reput reads and records rolled-back rows past this offset again.
        rolled_back = manifest.taken_back if self._is_newest else {}
        self._dispatcher.rolled_back.restore(rolled_back, self._reput_from)
        is_index_kept = is_resumed and consistency.is_index_consistent
        index_from = self._index_start() if is_index_kept else self._rebuild_index()
        known_holes = remaining_holes if self._is_newest and self._matches_log() else ()
        holes = {**dict(known_holes), **dict(recovered.holes)}
        self._reput.restore(self._reput_from, index_from, tuple(sorted(holes.items())))
        components.recovered_ends.start(
            recovered.end_offset, {**manifest.saved_ends(), **self._ends}
        )

    def _remaining_holes(self, holes: tuple[Hole, ...]) -> tuple[Hole, ...]:
        """Return the holes that still contain no valid record; the disk may return data again."""
        files, sealed_from = self._log.files, self._log.sealed_from
        next_records = (
            (hole, next_record_after(files, hole[0], hole[0], sealed_from)) for hole in holes
        )
        return tuple(hole for hole, found in next_records if found is None or found >= hole[1])

    def _are_holes_known(self) -> bool:
        """Return whether an unfinished rebuild has recorded the holes or not reached them yet."""
        manifest = self._manifest
        done_until = manifest.safe_offset or LOG_START
        return manifest.is_rebuilding and all(
            hole in manifest.holes or hole[0] >= done_until for hole in self._recovered.holes
        )

    def _matches_log(self) -> bool:
        """Return whether the log, whose files may expire, has the manifest's dispatch position."""
        manifest = self._manifest
        return (
            manifest.safe_offset is not None
            and manifest.safe_offset <= self._log.written_offset
            and manifest.log_min_offset <= self._log.min_offset
        )

    def _minimum_ends(self, *, is_last_known: bool) -> Mapping[QueueKey, QueueOffset]:
        """Return minimum ends for queues, so that no offset is assigned twice.

        Under ASYNC_FLUSH, queues may have entries of messages that a power loss removed; their
        offsets are assigned again, and the result is empty. If the log is shorter than the manifest
        says, it is an older copy, and the ends count. Ends that the log never had room for are
        ignored.
        """
        manifest = self._manifest
        end_offset = self._recovered.end_offset
        was_longer = manifest.safe_offset is not None and end_offset < manifest.safe_offset
        if is_last_known and not manifest.entries_were_confirmed and not was_longer:
            return {}
        count_max = self._log.files.end_offset // RECORD_BYTES_MIN
        return {key: end for key, end in self._queues.ends_in_files().items() if end <= count_max}

    def _restore_queues(self, *, is_restorable: bool) -> tuple[bool, ConsistencyResult]:
        """Restore queues from the manifest, if it applies; else delete them and return False."""
        consistency, manifest = _NOT_CHECKED, self._manifest
        if is_restorable and self._queues.restore(manifest.queues(), manifest.deleted_topics):
            consistency = self._check_derived_files()
            if consistency.inconsistent_queue is None:
                self._checkpointer.saved_offset = manifest.safe_offset or LOG_START
                self._checkpointer.expired_offset = manifest.log_min_offset
                return True, consistency
        self._clear_queues()
        return False, consistency

    def _check_derived_files(self) -> ConsistencyResult:
        """Compare queues and index with the log, except in a large store.

        An unfinished rebuild is not compared either, because its queues have just been built from
        the log.
        """
        manifest = self._manifest
        end_offset = manifest.safe_offset or LOG_START
        if manifest.is_rebuilding or not self._is_small(end_offset):
            return _NOT_CHECKED
        try:
            expired_before = LOG_START if manifest.keeps_expired else manifest.log_min_offset
            consistency = check_derived_files(self._components, end_offset, expired_before)
        except UnreadableFile as error:
            _log.warning("%s: consume queues and index are not compared with the log", error)
            return _NOT_CHECKED
        if consistency.inconsistent_queue is not None:
            _log.warning(
                _DAMAGE_WARNING, consistency.inconsistent_queue.directory, "all queues are"
            )
        elif not consistency.is_index_consistent and manifest.index_files is not None:
            _log.warning(_DAMAGE_WARNING, self._components.root / INDEX, "the index is")
        return consistency

    def _clear_queues(self) -> None:
        """Invalidate the manifest and delete the files of all queues.

        The manifest is invalidated before anything is written to a queue; otherwise a start after a
        crash would accept incomplete files. On a full disk the files are deleted first, to make
        room for the manifest.
        """
        checkpointer = self._checkpointer
        # A new store has no manifest to invalidate.
        is_invalidation_due = checkpointer.manifest.loaded_from is not None
        try:
            if is_invalidation_due:
                checkpointer.invalidate(self._manifest)
                is_invalidation_due = False
        except OSError as error:
            if not is_transient(error):
                raise
        self._queues.clear()
        if is_invalidation_due:
            checkpointer.invalidate(self._manifest)

    def _index_start(self) -> PhysicalOffset:
        """Return the log offset from which the index is rebuilt; delete unusable index files."""
        index, saved = self._index, self._manifest.index_files
        if index is None:
            return self._reput_from
        if saved is None or not set(saved) <= set(index.file_names):
            return self._rebuild_index()
        if index.discard_from(self._log.written_offset):
            return max(index.last_indexed_physical_offset, self._log.min_offset)
        return self._reput_from

    def _rebuild_index(self) -> PhysicalOffset:
        if self._index is not None:
            self._index.delete_all()
        return self._log.min_offset

    def _is_small(self, end_offset: PhysicalOffset) -> bool:
        """Return whether a start has time to read the log up to an offset, and all queues."""
        size_max = self._components.config.check_whole_log_bytes
        return self._size_until(end_offset) <= size_max and len(self._queues) <= QUEUES_MAX

    def _size_until(self, end_offset: PhysicalOffset) -> int:
        """Return the number of log bytes to read up to an offset.

        A first file that a staged batch left partly empty counts only as far as it was written.
        """
        files = self._log.files
        size = end_offset - self._log.min_offset
        with suppress(UnreadableFile):
            size -= files.unwritten_tail_bytes() if size > files.file_size else 0
        return size

    # ---- The remaining writes; each can be retried.

    def _finish_log(self) -> None:
        """Flush the recovered log, wipe what follows it, and roll back an open batch."""
        files, recovered, checkpoint = self._log.files, self._recovered, self._checkpoint
        if self.recovered_from_crash:
            start = checkpoint.safe_offset if checkpoint else files.first_offset
            report = self._reporter("rewrites the commit log", start, recovered.end_offset)
            rewrite_recovered(files, checkpoint, recovered, report)
        wipe_after(files, recovered.end_offset)
        rollback_open_batch(self._components)

    def _dispatch_recovered(self) -> None:
        """Dispatch the recovered messages; if there is a listener, its thread does that instead.

        Raises:
            TransientFailure: The listener's thread has not finished.
            StartInterrupted: ``on_progress`` has ended the start. The progress of a rebuild was
                saved.
        """
        reput, end_offset = self._reput, self._recovered.end_offset
        if reput.has_listener:
            if reput.reput_from_offset < end_offset:
                raise TransientFailure("messages are not dispatched to their consume queues yet")
            return
        activity = (
            "rebuilds consume queues and index"
            if self._is_rebuilding
            else "completes consume queues"
        )
        is_to_end = False
        saved_offset = reput.reput_from_offset

        def is_over() -> bool:
            nonlocal is_to_end
            done = reput.reput_from_offset - self._reput_from
            is_to_end = self._on_progress(activity, done, end_offset - self._reput_from)
            is_due = reput.reput_from_offset - saved_offset >= _PROGRESS_BYTES
            return self._is_rebuilding and (is_to_end or is_due)

        while not reput.run(is_over):
            if self._is_rebuilding:
                self._save_progress()
                saved_offset = reput.reput_from_offset
            if is_to_end:
                raise StartInterrupted(
                    f"{_INTERRUPTED}; the next start resumes it at {saved_offset} of the log"
                )

    def _save_progress(self) -> None:
        """Save the progress of a rebuild of all queues, if the disk has room."""
        checkpointer = self._checkpointer
        checkpointer.expired_offset = self._log.min_offset  # queues are rebuilt from there
        try:
            ends = StoreManifest.least_ends_of(self._saved_ends(), self._ends)
            checkpointer.save(least_ends=ends)
        except OSError as error:
            if not is_transient(error):
                raise

    def _saved_ends(self) -> dict[QueueKey, QueueOffset]:
        """Return the ends in the manifest, except those of recreated topics."""
        recreated = self._reput.recreated_topics.topics
        return {
            queue: end
            for queue, end in self._manifest.saved_ends().items()
            if queue[0] not in recreated
        }

    def _trim_queues(self) -> None:
        """Set where each queue begins and ends, so that no queue offset is assigned twice.

        Files that may have stale entries past the end are wiped there.
        """
        log, queues, manifest = self._log, self._queues, self._manifest
        with self._checkpointer.maintenance, self._reput.paused():
            if (
                self._is_rebuilding
                or self._reput.recreated_topics.topics
                or log.min_offset > manifest.log_min_offset
                or manifest.keeps_expired
            ):
                self._checkpointer.expire_entries()
            else:
                queues.expired_before = log.min_offset
            for (topic, queue_id), end in {**self._saved_ends(), **self._ends}.items():
                queues.get_or_create(topic, queue_id).skip_to(end)
            queues.delete_leftovers()
            if self._may_have_others:
                queues.wipe_after_ends()
        self._components.recovered_ends.finish()
