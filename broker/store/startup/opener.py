"""Opener: opens a store that a stop or a crash has left, so that it accepts and returns messages.

1. ``abort`` tells whether the last broker stopped in order; this one then creates it.
2. The log is scanned from the checkpoint to its end (`recovery`); its torn tail is wiped.
   After a crash what was found is flushed: its writer may have been killed before that.
3. Consume queues are restored from the manifest, by the names and sizes of their files alone; from
   there on the log is dispatched again. All queues are rebuilt from the log if a file is missing,
   if a hole in the log appeared or disappeared, if the manifest is not the one that was saved
   last, or if another program wrote the checkpoint; they end where their files did at least. The
   index is also rebuilt if a file of it is missing.
4. If queues were rebuilt, or a deletion is to count from an earlier offset, a checkpoint notes
   that, because the last one is wrong. Otherwise the last one is still good to restart from, and
   the next can wait.

The operator sees in the log what the commit log has lost, with the file.

Rebuilding all queues of a large log takes minutes. A checkpoint after each GiB notes the progress,
together with the ends that queues are to have at least: if the start is ended or killed, the next
one does only the rest, and ends with the same queues.

Before 3., nothing is deleted; no message is ever. During a shortage, such as of disk space, the
remaining writes wait: recovered messages can be read meanwhile, and log files can be deleted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import NamedTuple, Protocol

import orjson

from rmq_spark.wire.message_queue import QueueKey
from rmq_spark.wire.names import LIGHT_QUEUE_PREFIX
from rmq_spark.wire.record_layout import RECORD_BYTES_MIN

from ..batch_commit.batch_recovery import check_batches, rollback_open_batch
from ..components import CONFIG, CONSUME_QUEUE, INDEX, StoreComponents
from ..errors import StartInterrupted, TransientFailure, UnreadableFile, is_transient
from ..log.checkpoint_file import CHECKPOINT, Checkpoint, load_checkpoint
from ..log.commit_log import CommitLog
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
_DAMAGE_WARNING = (
    "%s is damaged: its entries are not those of the messages in the commit log; %s made again"
)
_PROGRESS_BYTES = 1 << 30
"""Bytes of the log after which a start that makes all queues again notes how far it has come."""
_INTERRUPTED = "the start was told to end"
_TOPICS_SHOWN_MAX = 8
_NOT_CHECKED = ConsistencyResult(None, is_index_consistent=True)


class ProgressCallback(Protocol):
    """An observer of a start that takes long."""

    def __call__(self, activity: str, done_bytes: int, total_bytes: int) -> bool:
        """Note what a start is doing, and how far it has come; return True if it is to end."""


def _ignore_progress(activity: str, done_bytes: int, total_bytes: int) -> bool:
    """Return False: nothing ends the start."""
    del activity, done_bytes, total_bytes
    return False


class OpeningResult(NamedTuple):
    """The findings of a start: whether it follows a crash, and the holes of the log."""

    recovered_from_crash: bool
    holes: tuple[Hole, ...]


class _QueueSource(NamedTuple):
    """The state from which the queues were restored."""

    are_restored: bool
    check_result: ConsistencyResult


class StoreOpening:
    """One start: its findings, and what is still to be written before messages are accepted."""

    def __init__(self, result: OpeningResult, steps: list[Callable[[], object]]) -> None:
        """Take the findings, and steps that may each be tried again."""
        self.result = result
        self._steps = steps

    @property
    def is_finished(self) -> bool:
        """True if nothing is left to be written."""
        return not self._steps

    def finish(self) -> None:
        """Write what is to be written; in any thread, in one at a time.

        Raises:
            TransientFailure: It is too early.
            OSError, StoreError: The first step that failed raised this. It comes first the next
                time.
        """
        while self._steps:
            self._steps[0]()
            del self._steps[0]


class _ProgressReporter:
    """Reports how much of a part of the log is done."""

    def __init__(self, on_progress: ProgressCallback, activity: str, start: int, end: int) -> None:
        self._on_progress = on_progress
        self._activity = activity
        self._start = start
        self._end = end

    def report_and_check_stop(self, position: int) -> bool:
        """Report a log offset; return whether the start is to end."""
        return self._on_progress(self._activity, position - self._start, self._end - self._start)

    def report(self, position: int) -> None:
        """Report a log offset.

        Raises:
            StartInterrupted: The start is to end.
        """
        if self.report_and_check_stop(position):
            raise StartInterrupted(
                f"{_INTERRUPTED} while it {self._activity}; the next start does that again"
            )


def open_components(
    components: StoreComponents,
    checkpointer: Checkpointer,
    abort_file: AbortFile,
    on_progress: ProgressCallback | None = None,
) -> StoreOpening:
    """Open the parts of a store in a locked directory; the caller does the remaining writes.

    Raises:
        StartInterrupted: ``on_progress`` has ended the start.
        ForeignFile, DamagedTable, UnreadableFile: As `store.errors` says. No message was touched.
        OSError: The disk refuses.
    """
    disk, root, log, on_progress = (
        components.disk,
        components.root,
        components.log,
        on_progress or _ignore_progress,
    )
    disk.flush_directory(root)
    crashed = abort_file.exists()
    _load(components)
    noted, is_of_another = load_checkpoint(disk, root / CHECKPOINT), abort_file.is_foreign()
    checkpoint = reliable_checkpoint(noted, log.files, is_foreign=is_of_another)
    was_ours = noted is not None and not is_of_another
    if is_of_another:
        # Before our sign replaces the other program's: this start may end without a checkpoint.
        disk.delete(root / CHECKPOINT)
        disk.flush_directory(root)
    manifest = checkpointer.load_manifest()
    checkpointer.restore(checkpoint)
    is_newest = _is_newest(checkpointer, manifest, checkpoint)
    # Deletions that were half done then are over, and their topics may be there again.
    if not is_newest:
        manifest = replace(manifest, half_deleted=())
    checkpointer.half_deleted = manifest.half_deleted
    recovered = _recover_log(
        components, checkpoint, manifest if is_newest else None, on_progress, crashed=crashed
    )
    # A power loss may have taken the log's end: what is there now is newer than the deletion.
    components.dispatcher.deleted_topics = {
        topic: min(at, recovered.end_offset) for topic, at in manifest.deleted_topics.items()
    }
    _warn_of_holes(components, recovered)
    led_to = (
        _max_referenced_offset(components, manifest, recovered.end_offset) if crashed else LOG_START
    )
    check_batches(components, manifest, led_to if was_ours else LOG_START, is_newest=is_newest)
    if was_ours:
        _warn_of_missing_files(components, manifest, recovered.end_offset)
    _warn_of_lost_end(components, led_to, recovered.end_offset)
    noted_holes = tuple(hole for hole in manifest.holes if hole[0] >= log.min_offset)
    lasting_holes = _remaining_holes(components, noted_holes)
    is_noted = (
        checkpoint is not None
        and is_newest
        and (not recovered.holes or _are_holes_known(recovered.holes, manifest))
        and _matches_log(manifest, components)
        and lasting_holes == noted_holes
    )
    ends: Mapping[QueueKey, QueueOffset] = {}
    if not is_noted or (crashed and _is_small(components, recovered.end_offset)):
        is_last_known = is_newest and was_ours
        ends = _minimum_ends(
            components, manifest, recovered.end_offset, is_last_known=is_last_known
        )
    is_resumed, looked = _restore_queues(components, checkpointer, manifest, is_restorable=is_noted)
    is_rebuilding = manifest.is_rebuilding or not is_resumed
    if manifest.is_rebuilding:  # the files of queues may have been written since by a start
        found = manifest.file_ends()
        ends = found if is_resumed else {**ends, **found}
    carried_to = manifest.safe_offset if is_resumed else None
    reput_from = max(carried_to or LOG_START, log.min_offset)
    # Rows that lie behind that are passed, and noted, once more.
    components.dispatcher.rolled_back.restore(manifest.taken_back if is_newest else {}, reput_from)
    is_index_kept = is_resumed and looked.is_index_consistent
    index_from = (
        _index_start(components, manifest, reput_from)
        if is_index_kept
        else _rebuild_index(components)
    )
    known_holes = lasting_holes if is_newest and _matches_log(manifest, components) else ()
    holes = {**dict(known_holes), **dict(recovered.holes)}
    components.reput.restore(reput_from, index_from, tuple(sorted(holes.items())))
    components.recovered_ends.start(recovered.end_offset, {**manifest.noted_ends(), **ends})
    steps: list[Callable[[], object]] = [
        abort_file.create,
        partial(_finish_log, components, checkpoint, recovered, on_progress, crashed=crashed),
        *_queue_steps(
            components,
            checkpointer,
            manifest,
            ends,
            on_progress,
            is_rebuilding=is_rebuilding,
            may_have_others=crashed and is_resumed and not manifest.entries_were_confirmed,
        ),
    ]
    return StoreOpening(OpeningResult(crashed, recovered.holes), steps)


def _queue_steps(
    components: StoreComponents,
    checkpointer: Checkpointer,
    manifest: StoreManifest,
    ends: Mapping[QueueKey, QueueOffset],
    on_progress: ProgressCallback,
    *,
    is_rebuilding: bool,
    may_have_others: bool,
) -> list[Callable[[], object]]:
    """Return the steps that dispatch what was found to the queues, tidy these and note that."""
    reput, end_offset = components.reput, components.log.written_offset
    doing = "makes consume queues and index again" if is_rebuilding else "completes consume queues"
    reporter = _ProgressReporter(on_progress, doing, reput.reput_from_offset, end_offset)
    save = partial(_save_progress, components, checkpointer, manifest, ends)
    steps: list[Callable[[], object]] = [
        partial(
            _dispatch_recovered, components, end_offset, reporter, save if is_rebuilding else None
        ),
        partial(
            _trim_queues,
            components,
            checkpointer,
            manifest,
            ends,
            is_rebuilding=is_rebuilding,
            may_have_others=may_have_others,
        ),
    ]
    if is_rebuilding or components.dispatcher.deleted_topics != manifest.deleted_topics:
        steps.append(checkpointer.save)
    return steps


def _finish_log(
    components: StoreComponents,
    checkpoint: Checkpoint | None,
    recovered: RecoveredLog,
    on_progress: ProgressCallback,
    *,
    crashed: bool,
) -> None:
    """Flush what was found of the log, wipe what follows it, and roll back an open batch."""
    files, end_offset = components.log.files, recovered.end_offset
    if crashed:
        start = checkpoint.safe_offset if checkpoint else files.first_offset
        reporter = _ProgressReporter(
            on_progress, "writes the commit log to the disk again", start, end_offset
        )
        rewrite_recovered(files, checkpoint, recovered, reporter.report)
    wipe_after(files, end_offset)
    rollback_open_batch(components)


def _load(components: StoreComponents) -> None:
    components.log.files.load()
    components.queues.load()
    if components.queues.light_queue_count:
        _log.warning(
            "%s has %d light queues of RocketMQ 5 (%s...): they are left as they are and not "
            "served. Read their messages from the parent topics, or with RocketMQ",
            components.root / CONSUME_QUEUE,
            components.queues.light_queue_count,
            LIGHT_QUEUE_PREFIX,
        )
    if components.index is not None:
        components.index.load()
    _warn_of_timers(components)
    components.batch_table.load()
    components.staging_area.load()
    under_way = components.batch_table.under_way
    if under_way is not None:
        components.reput.suspend_from(under_way.log_offset)


def _warn_of_timers(components: StoreComponents) -> None:
    """Warn of messages that wait in the timer wheel of RocketMQ 5, by its own last count."""
    path = components.root / CONFIG / "timermetrics"
    try:
        counts = orjson.loads(components.disk.read(path))["timingCount"]
        waiting = {topic: int(each["count"]) for topic, each in counts.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return  # mostly, RocketMQ 5 was never here; else it makes the file again
    waiting = {topic: count for topic, count in waiting.items() if count > 0}
    if waiting:
        topics = ", ".join(sorted(waiting)[:_TOPICS_SHOWN_MAX])
        more = "" if len(waiting) <= _TOPICS_SHOWN_MAX else " and others"
        _log.warning(
            "%s: %d messages of %s%s wait for timers of RocketMQ 5 (TIMER_DELIVER_MS and others), "
            "which this broker does not deliver. Open the directory with RocketMQ to have them "
            "delivered, before their files of the log expire",
            path,
            sum(waiting.values()),
            topics,
            more,
        )


def _restore_queues(
    components: StoreComponents,
    checkpointer: Checkpointer,
    manifest: StoreManifest,
    *,
    is_restorable: bool,
) -> _QueueSource:
    """Let queues stand where the manifest says, if it says that of these.

    Else all are to be made again.
    """
    looked = _NOT_CHECKED
    if is_restorable and components.queues.restore(manifest.queues(), manifest.deleted_topics):
        looked = _check_derived_files(components, manifest)
        if looked.inconsistent_queue is None:
            checkpointer.saved_offset = manifest.safe_offset or LOG_START
            checkpointer.expired_offset = manifest.log_min_offset
            return _QueueSource(are_restored=True, check_result=looked)
    _clear_queues(components, checkpointer, manifest)
    return _QueueSource(are_restored=False, check_result=looked)


def _clear_queues(
    components: StoreComponents, checkpointer: Checkpointer, manifest: StoreManifest
) -> None:
    """Delete the files of all queues, which makes room to note that on a full disk.

    Nothing is written to a queue before it is noted: a crash would leave what the
    manifest takes for whole.
    """
    is_to_note = checkpointer.has_loaded_manifest  # of a new store there is nothing to distrust
    try:
        if is_to_note:
            checkpointer.invalidate(manifest)
            is_to_note = False
    except OSError as error:
        if not is_transient(error):
            raise
    components.queues.clear()
    if is_to_note:
        checkpointer.invalidate(manifest)


def _dispatch_recovered(
    components: StoreComponents,
    end_offset: PhysicalOffset,
    reporter: _ProgressReporter,
    save_progress: Callable[[], None] | None,
) -> None:
    """Dispatch what was found; if there is a listener, only its own thread may do that.

    Raises:
        StartInterrupted: The start is to end. What was done is noted, unless it is soon done again.
    """
    reput = components.reput
    if reput.has_listener:
        if reput.reput_from_offset < end_offset:
            raise TransientFailure("messages are not carried to their consume queues yet")
        return
    is_to_end = False
    noted_offset = reput.reput_from_offset

    def is_over() -> bool:
        nonlocal is_to_end
        is_to_end = reporter.report_and_check_stop(reput.reput_from_offset)
        is_due = reput.reput_from_offset - noted_offset >= _PROGRESS_BYTES
        return save_progress is not None and (is_to_end or is_due)

    while not reput.run(is_over):
        if save_progress is not None:
            save_progress()
            noted_offset = reput.reput_from_offset
        if is_to_end:
            raise StartInterrupted(
                f"{_INTERRUPTED}; the next start resumes it at {noted_offset} of the log"
            )


def _save_progress(
    components: StoreComponents,
    checkpointer: Checkpointer,
    manifest: StoreManifest,
    ends: Mapping[QueueKey, QueueOffset],
) -> None:
    """Note how far all queues have been made again, if there is room for that."""
    again = components.reput.recreated_topics.topics
    noted_ends = manifest.noted_ends()
    noted = {queue: end for queue, end in noted_ends.items() if queue[0] not in again}
    checkpointer.expired_offset = components.log.min_offset  # nothing before that is made again
    try:
        checkpointer.save(least_ends=StoreManifest.least_ends_of(noted, ends))
    except OSError as error:
        if not is_transient(error):
            raise


def _trim_queues(
    components: StoreComponents,
    checkpointer: Checkpointer,
    manifest: StoreManifest,
    ends: Mapping[QueueKey, QueueOffset],
    *,
    is_rebuilding: bool,
    may_have_others: bool,
) -> None:
    """Set where each queue begins and ends, so that no queue offset is given twice.

    ``ends`` are those of the queues' files, where these know more than the manifest. Files that
    ``may_have_others`` past their last entries are wiped there.
    """
    with checkpointer.maintenance, components.reput.paused():
        if (
            is_rebuilding
            or components.reput.recreated_topics.topics
            or components.log.min_offset > manifest.log_min_offset
            or manifest.keeps_expired
        ):
            checkpointer.expire_entries()
        else:
            components.queues.expired_before = components.log.min_offset
        again = components.reput.recreated_topics.topics
        noted_ends = manifest.noted_ends()
        noted = {queue: end for queue, end in noted_ends.items() if queue[0] not in again}
        for (topic, queue_id), end in {**noted, **ends}.items():
            components.queues.get_or_create(topic, queue_id).skip_to(end)
        components.queues.delete_leftovers()
        if may_have_others:
            components.queues.wipe_after_ends()
    components.recovered_ends.finish()


def _recover_log(
    components: StoreComponents,
    checkpoint: Checkpoint | None,
    manifest: StoreManifest | None,
    on_progress: ProgressCallback,
    *,
    crashed: bool,
) -> RecoveredLog:
    """Find the end of the log and continue there; the torn tail after it is to be wiped.

    The manifest, if it is the newest, knows the times of what is not scanned.
    """
    log = components.log
    start = checkpoint.safe_offset if checkpoint else log.min_offset
    reporter = _ProgressReporter(on_progress, "checks the commit log", start, log.files.end_offset)
    recovery = LogRecovery(log.files, checkpoint, reporter.report)
    is_small = _size_until(log, recovery.safe_offset) <= components.config.check_whole_log_bytes
    if is_small or manifest is None:
        recovered = recovery.scan_from(log.min_offset)
    else:
        known = manifest.store_times(checkpoint.store_timestamp if checkpoint else 0)
        recovered = recovery.scan_from(recovery.safe_offset, known)
    if crashed:
        log.files.flush_loaded()
    sealed_from = min(recovery.sealed_from, recovered.end_offset)
    log.restore(recovered.end_offset, recovered.timeline, sealed_from)
    return recovered


def _warn_of_holes(components: StoreComponents, recovered: RecoveredLog) -> None:
    """Warn where the log holds no messages between others, or before what a checkpoint knew."""
    for start, end in recovered.holes:
        _log.warning(
            "%s is damaged: no message can be read from %d to %d of the commit log, which is "
            "passed over; all others are served",
            components.log.files.path_at(start),
            start,
            end,
        )


def _is_newest(
    checkpointer: Checkpointer, manifest: StoreManifest, checkpoint: Checkpoint | None
) -> bool:
    """Return whether the manifest is the one that was saved last; warn if not."""
    aside = checkpointer.quarantined
    if aside is not None:
        _log.warning(
            "%s was damaged (%s) and is now %s; its backup was read, and all queues are made "
            "again. Topics that were deleted since that was saved may be back",
            checkpointer.manifest_path,
            aside.reason,
            aside.path.name,
        )
        return False
    if checkpoint is not None and not checkpointer.is_newest(manifest, checkpoint):
        _log.warning(
            "%s is missing or of an older copy: it is not the one that was saved last, and all "
            "queues are made again. Topics that were deleted since it was saved may be back",
            checkpointer.manifest_path,
        )
        return False
    return True


def _minimum_ends(
    components: StoreComponents,
    manifest: StoreManifest,
    end_offset: PhysicalOffset,
    *,
    is_last_known: bool,
) -> Mapping[QueueKey, QueueOffset]:
    """Return the ends that queues are to have at least: the offsets before them were given.

    With ASYNC_FLUSH queues may know of messages that a power loss took, and whose offsets are given
    again; not if the log was once longer than now, of which only an older copy can be the reason.
    """
    was_longer = manifest.safe_offset is not None and end_offset < manifest.safe_offset
    if is_last_known and not manifest.entries_were_confirmed and not was_longer:
        return {}
    return _ends_in_files(components)


def _ends_in_files(components: StoreComponents) -> dict[QueueKey, QueueOffset]:
    """Return the ends of queues by their files, but for ends that the log never had room for."""
    count_max = components.log.files.end_offset // RECORD_BYTES_MIN
    return {key: end for key, end in components.queues.ends_in_files().items() if end <= count_max}


def _warn_of_missing_files(
    components: StoreComponents, manifest: StoreManifest, end_offset: PhysicalOffset
) -> None:
    """Warn of parts of the log that were there at the last checkpoint, ours, and are gone."""
    files = components.log.files
    if files.first_offset > manifest.log_min_offset:
        _log.warning(
            "%s is missing: the commit log begins at %d, and began at %d at the last checkpoint; "
            "messages before that are gone, unless they were deleted by age or need just before a "
            "crash",
            files.path_at(manifest.log_min_offset),
            files.first_offset,
            manifest.log_min_offset,
        )
    if manifest.safe_offset is not None and end_offset < manifest.safe_offset:
        _log.warning(
            "%s is missing or of an older copy: the commit log ends at %d, and went on to %d at "
            "the last checkpoint; messages behind that end are gone",
            files.path_at(end_offset),
            end_offset,
            manifest.safe_offset,
        )


def _warn_of_lost_end(
    components: StoreComponents, known: PhysicalOffset, end_offset: PhysicalOffset
) -> None:
    """Warn if queues lead past the end of the log, because they lead only to flushed records."""
    if known > end_offset:
        _log.warning(
            "%s is missing, damaged or of an older copy: the commit log ends at %d, and consume "
            "queues lead to messages up to %d; those behind the end are gone",
            components.log.files.path_at(end_offset),
            end_offset,
            known,
        )


def _max_referenced_offset(
    components: StoreComponents, manifest: StoreManifest, end_offset: PhysicalOffset
) -> PhysicalOffset:
    """Return the end of the last record that queues of a store that is not large lead to, or 0.

    After a crash they lead to flushed records alone only if they did so all the time.
    """
    if not manifest.entries_were_confirmed or not _is_small(components, end_offset):
        return LOG_START
    ends = []
    for _, _, queue in components.queues:
        with suppress(UnreadableFile):
            ends.append(queue.last_record_end())
    return max(ends, default=LOG_START)


def _remaining_holes(components: StoreComponents, holes: Sequence[Hole]) -> tuple[Hole, ...]:
    """Return those holes that still have no record, not even after a damaged one.

    What a disk refuses it may return again one day.
    """
    log = components.log
    behind = (
        (hole, next_record_after(log.files, hole[0], hole[0], log.sealed_from)) for hole in holes
    )
    return tuple(hole for hole, found in behind if found is None or found >= hole[1])


def _are_holes_known(holes: Sequence[Hole], manifest: StoreManifest) -> bool:
    """Return whether a rebuild that was not finished knows holes, or has yet to come to them."""
    done_until = manifest.safe_offset or LOG_START
    known = manifest.holes
    return manifest.is_rebuilding and all(hole in known or hole[0] >= done_until for hole in holes)


def _matches_log(manifest: StoreManifest, components: StoreComponents) -> bool:
    """Return whether a manifest knows how far this log was dispatched; files may have expired."""
    return (
        manifest.safe_offset is not None
        and manifest.safe_offset <= components.log.written_offset
        and manifest.log_min_offset <= components.log.min_offset
    )


def _check_derived_files(components: StoreComponents, manifest: StoreManifest) -> ConsistencyResult:
    """Compare queues and index with the log; those of a large store are assumed to be right.

    So are those that were just built from it, up to where that has come.
    """
    end_offset = manifest.safe_offset or LOG_START
    if manifest.is_rebuilding or not _is_small(components, end_offset):
        return _NOT_CHECKED
    try:
        expired_before = LOG_START if manifest.keeps_expired else manifest.log_min_offset
        looked = check_derived_files(components, end_offset, expired_before)
    except UnreadableFile as error:
        _log.warning("%s: consume queues and index are not compared with the log", error)
        return _NOT_CHECKED
    if looked.inconsistent_queue is not None:
        _log.warning(_DAMAGE_WARNING, looked.inconsistent_queue.directory, "all queues are")
    elif not looked.is_index_consistent and manifest.index_files is not None:  # else none was kept
        _log.warning(_DAMAGE_WARNING, components.root / INDEX, "the index is")
    return looked


def _is_small(components: StoreComponents, end_offset: PhysicalOffset) -> bool:
    """Return whether reading all of a store up to a log offset takes little time."""
    size = _size_until(components.log, end_offset)
    return size <= components.config.check_whole_log_bytes and len(components.queues) <= QUEUES_MAX


def _size_until(log: CommitLog, end_offset: PhysicalOffset) -> int:
    """Return the bytes that there are to read of a log up to an offset.

    The first file is not full if a staged batch was to be committed there.
    """
    size = end_offset - log.min_offset
    with suppress(UnreadableFile):
        size -= log.files.unwritten_tail_bytes() if size > log.files.file_size else 0
    return size


def _index_start(
    components: StoreComponents, manifest: StoreManifest, reput_from: PhysicalOffset
) -> PhysicalOffset:
    """Return from where the index is made again, and delete what is of no use."""
    index, first = components.index, components.log.min_offset
    if index is None:
        return reput_from
    if manifest.index_files is None or not set(manifest.index_files) <= set(index.file_names):
        return _rebuild_index(components)
    if index.discard_from(components.log.written_offset):
        return max(index.last_indexed_physical_offset, first)
    return reput_from


def _rebuild_index(components: StoreComponents) -> PhysicalOffset:
    """Have all of the index made again."""
    if components.index is not None:
        components.index.delete_all()
    return components.log.min_offset
