"""Opening a store: what a stop or a crash has left becomes one that takes and gives out messages.

1. ``abort`` tells whether the last one stopped in order; then it is left by this one.
2. The log is followed from the checkpoint to its end (`recovery`); its torn tail is wiped.
   After a crash what was found is flushed: its writer may have been killed before that.
3. Consume queues are what the manifest says, by the names and sizes of their files alone; from
   there on the log is dispatched again. If a file is missing, if the log has a hole or has one no
   more, if the manifest is not the one that was saved last, or if another program wrote the
   checkpoint, all are made again from the log; they end where their files did at least. So is the
   index made again, if a file of it is missing.
4. If queues were made again, or a deletion is to count from an earlier place, a checkpoint notes
   that: the last one says otherwise. Else it is what a crash would go on from once more, and the
   next one has time.

What the log has lost is said to the operator, with the file.

All queues of a large log take minutes to be made again. Each GiB that was carried is noted by a
checkpoint, together with the ends that queues are to have at least: a start that is ended or killed
meanwhile is resumed by the next one, which does only the rest, and ends with the same queues.

Before 3., nothing is deleted; no message is ever. If something is lacking to write with, such as
room, the rest of what is to be written waits: what was found can be read meanwhile, and files of
the log can go.
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

from ..batch_commit.recovery import check_batches, forget_batch
from ..components import CONFIG, CONSUME_QUEUE, INDEX, StoreParts
from ..errors import Lacking, StartEnded, UnreadableFile, is_lack
from ..log.checkpoint_file import CHECKPOINT, Checkpoint, load_checkpoint
from ..log.commit_log import CommitLog
from ..log.recovery import (
    LogRecovery,
    RecoveredLog,
    record_behind,
    reliable_checkpoint,
    wipe_behind,
    write_again,
)
from ..maintenance.checkpointer import Checkpointing
from ..queues.manifest import Manifest
from ..results import LOG_START, Hole, PhysicalOffset, QueueOffset
from .consistency_check import QUEUES_MAX, Looked, look_at_all
from .directory_lock import AbortFile

_log = logging.getLogger(__name__)
_IS_DAMAGED = (
    "%s is damaged: its entries are not those of the messages in the commit log; %s made again"
)
_PROGRESS_BYTES = 1 << 30
"""Bytes of the log after which a start that makes all queues again notes how far it has come."""
_ENDED = "the start was told to end"
_TOPICS_SHOWN_MAX = 8
_NOT_LOOKED = Looked(None, is_index_right=True)


class OpeningWatch(Protocol):
    """An observer of a start that takes long."""

    def __call__(self, doing: str, done_bytes: int, total_bytes: int) -> bool:
        """Note what a start is doing, and how far it has come; return True if it is to end."""


def _nobody(doing: str, done_bytes: int, total_bytes: int) -> bool:
    """Return False: nothing ends the start."""
    del doing, done_bytes, total_bytes
    return False


class Opened(NamedTuple):
    """The findings of a start: whether it follows a crash, and the holes of the log."""

    recovered_from_crash: bool
    holes: tuple[Hole, ...]


class _Taken(NamedTuple):
    """The state in which the found queues were taken."""

    are_resumed: bool
    looked: Looked


class Opening:
    """One start: what it has found, and what is still to be written before messages may be put."""

    def __init__(self, found: Opened, steps: list[Callable[[], object]]) -> None:
        """Take the findings, and steps that may each be tried again."""
        self.found = found
        self._steps = steps

    @property
    def is_finished(self) -> bool:
        """True if nothing is left to be written."""
        return not self._steps

    def finish(self) -> None:
        """Write what is to be written; in any thread, in one at a time.

        Raises:
            Lacking: It is not time yet.
            OSError, StoreError: The first step that failed raised this. It comes first the next
                time.
        """
        while self._steps:
            self._steps[0]()
            del self._steps[0]


class _Reporter:
    """Reports to a watch how much of a part of the log is done."""

    def __init__(self, watch: OpeningWatch, doing: str, start: int, end: int) -> None:
        self._watch = watch
        self._doing = doing
        self._start = start
        self._end = end

    def is_to_end(self, position: int) -> bool:
        """Report a place in the log; return whether the start is to end."""
        return self._watch(self._doing, position - self._start, self._end - self._start)

    def report(self, position: int) -> None:
        """Report a place in the log.

        Raises:
            StartEnded: The start is to end.
        """
        if self.is_to_end(position):
            raise StartEnded(f"{_ENDED} while it {self._doing}; the next start does that again")


def open_parts(
    parts: StoreParts,
    checkpointing: Checkpointing,
    abort: AbortFile,
    watch: OpeningWatch | None = None,
) -> Opening:
    """Open the parts of a store in a locked directory; what is to be written is left.

    Raises:
        StartEnded: ``watch`` has ended the start.
        ForeignFile, DamagedTable, UnreadableFile: As `store.errors` says. No message was touched.
        OSError: The disk refuses.
    """
    disk, root, log, watch = parts.disk, parts.root, parts.log, watch or _nobody
    disk.flush_directory(root)
    crashed = abort.exists()
    _load(parts)
    noted, is_of_another = load_checkpoint(disk, root / CHECKPOINT), abort.is_of_another()
    checkpoint = reliable_checkpoint(noted, log.files, is_of_another=is_of_another)
    was_ours = noted is not None and not is_of_another
    if is_of_another:
        # Before our sign replaces the other program's: this start may end without a checkpoint.
        disk.delete(root / CHECKPOINT)
        disk.flush_directory(root)
    manifest = checkpointing.manifest()
    checkpointing.resume(checkpoint)
    is_newest = _is_newest(checkpointing, manifest, checkpoint)
    # Deletions that were half done then are over, and their topics may be there again.
    if not is_newest:
        manifest = replace(manifest, half_deleted=())
    checkpointing.half_deleted = manifest.half_deleted
    recovered = _follow_log(
        parts, checkpoint, manifest if is_newest else None, watch, crashed=crashed
    )
    # A power loss may have taken the log's end: what is there now is newer than the deletion.
    parts.dispatcher.deleted_topics = {
        topic: min(at, recovered.end_offset) for topic, at in manifest.deleted_topics.items()
    }
    _warn_of_holes(parts, recovered)
    led_to = _led_to(parts, manifest, recovered.end_offset) if crashed else LOG_START
    check_batches(parts, manifest, led_to if was_ours else LOG_START, is_newest=is_newest)
    if was_ours:
        _warn_of_missing_files(parts, manifest, recovered.end_offset)
    _warn_of_a_lost_end(parts, led_to, recovered.end_offset)
    noted_holes = tuple(hole for hole in manifest.holes if hole[0] >= log.min_offset)
    lasting_holes = _lasting(parts, noted_holes)
    is_noted = (
        checkpoint is not None
        and is_newest
        and (not recovered.holes or _is_passed_later(recovered.holes, manifest))
        and _is_of_this_log(manifest, parts)
        and lasting_holes == noted_holes
    )
    ends: Mapping[QueueKey, QueueOffset] = {}
    if not is_noted or (crashed and _is_small(parts, recovered.end_offset)):
        is_last_known = is_newest and was_ours
        ends = _given_ends(parts, manifest, recovered.end_offset, is_last_known=is_last_known)
    is_resumed, looked = _take_queues(parts, checkpointing, manifest, is_noted=is_noted)
    is_rebuilding = manifest.is_rebuilding or not is_resumed
    if manifest.is_rebuilding:  # the files of queues may have been written since by a start
        found = manifest.ends_found_in_files()
        ends = found if is_resumed else {**ends, **found}
    carried_to = manifest.safe_offset if is_resumed else None
    reput_from = max(carried_to or LOG_START, log.min_offset)
    # Rows that lie behind that are passed, and noted, once more.
    parts.dispatcher.taken_back.resume(manifest.taken_back if is_newest else {}, reput_from)
    is_index_kept = is_resumed and looked.is_index_right
    index_from = _index_start(parts, manifest, reput_from) if is_index_kept else _no_index(parts)
    known_holes = lasting_holes if is_newest and _is_of_this_log(manifest, parts) else ()
    holes = {**dict(known_holes), **dict(recovered.holes)}
    parts.reput.resume(reput_from, index_from, tuple(sorted(holes.items())))
    parts.found_ends.begin(recovered.end_offset, {**manifest.ends_noted_before(), **ends})
    steps: list[Callable[[], object]] = [
        abort.create,
        partial(_settle_log, parts, checkpoint, recovered, watch, crashed=crashed),
        *_steps_of_queues(
            parts,
            checkpointing,
            manifest,
            ends,
            watch,
            is_rebuilding=is_rebuilding,
            may_have_others=crashed and is_resumed and not manifest.entries_were_confirmed,
        ),
    ]
    return Opening(Opened(crashed, recovered.holes), steps)


def _steps_of_queues(
    parts: StoreParts,
    checkpointing: Checkpointing,
    manifest: Manifest,
    ends: Mapping[QueueKey, QueueOffset],
    watch: OpeningWatch,
    *,
    is_rebuilding: bool,
    may_have_others: bool,
) -> list[Callable[[], object]]:
    """Return the steps that carry what was found to the queues, tidy these and note that."""
    reput, end_offset = parts.reput, parts.log.written_offset
    doing = "makes consume queues and index again" if is_rebuilding else "completes consume queues"
    reporter = _Reporter(watch, doing, reput.reput_from_offset, end_offset)
    save = partial(_save_progress, parts, checkpointing, manifest, ends)
    steps: list[Callable[[], object]] = [
        partial(_carry, parts, end_offset, reporter, save if is_rebuilding else None),
        partial(
            _tidy_queues,
            parts,
            checkpointing,
            manifest,
            ends,
            is_rebuilding=is_rebuilding,
            may_have_others=may_have_others,
        ),
    ]
    if is_rebuilding or parts.dispatcher.deleted_topics != manifest.deleted_topics:
        steps.append(checkpointing.save)
    return steps


def _settle_log(
    parts: StoreParts,
    checkpoint: Checkpoint | None,
    recovered: RecoveredLog,
    watch: OpeningWatch,
    *,
    crashed: bool,
) -> None:
    """Have the disk hold what was found of the log, nothing behind it, and no half of a batch."""
    files, end_offset = parts.log.files, recovered.end_offset
    if crashed:
        start = checkpoint.safe_offset if checkpoint else files.first_offset
        reporter = _Reporter(watch, "writes the commit log to the disk again", start, end_offset)
        write_again(files, checkpoint, recovered, reporter.report)
    wipe_behind(files, end_offset)
    forget_batch(parts)


def _load(parts: StoreParts) -> None:
    parts.log.files.load()
    parts.queues.load()
    if parts.queues.light_queues:
        _log.warning(
            "%s has %d light queues of RocketMQ 5 (%s...): they are left as they are and not "
            "served. Read their messages from the parent topics, or with RocketMQ",
            parts.root / CONSUME_QUEUE,
            parts.queues.light_queues,
            LIGHT_QUEUE_PREFIX,
        )
    if parts.index is not None:
        parts.index.load()
    _warn_of_timers(parts)
    parts.batches.load()
    parts.staging.load()
    under_way = parts.batches.under_way
    if under_way is not None:
        parts.reput.hold_from(under_way.log_offset)


def _warn_of_timers(parts: StoreParts) -> None:
    """Warn of messages that wait in the timer wheel of RocketMQ 5, by its own last count."""
    path = parts.root / CONFIG / "timermetrics"
    try:
        counts = orjson.loads(parts.disk.read(path))["timingCount"]
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


def _take_queues(
    parts: StoreParts, checkpointing: Checkpointing, manifest: Manifest, *, is_noted: bool
) -> _Taken:
    """Let queues stand where the manifest says, if it says that of these.

    Else all are to be made again.
    """
    looked = _NOT_LOOKED
    if is_noted and parts.queues.resume(manifest.queues(), manifest.deleted_topics):
        looked = _look_at_all(parts, manifest)
        if looked.wrong_queue is None:
            checkpointing.noted_offset = manifest.safe_offset or LOG_START
            checkpointing.expired_offset = manifest.log_min_offset
            return _Taken(are_resumed=True, looked=looked)
    _clear_queues(parts, checkpointing, manifest)
    return _Taken(are_resumed=False, looked=looked)


def _clear_queues(parts: StoreParts, checkpointing: Checkpointing, manifest: Manifest) -> None:
    """Delete the files of all queues, which makes room to note that on a full disk.

    Nothing is written to a queue before it is noted: a crash would leave what the
    manifest takes for whole.
    """
    is_to_note = checkpointing.loaded_any  # of a new store there is nothing to distrust
    try:
        if is_to_note:
            checkpointing.distrust(manifest)
            is_to_note = False
    except OSError as error:
        if not is_lack(error):
            raise
    parts.queues.clear()
    if is_to_note:
        checkpointing.distrust(manifest)


def _carry(
    parts: StoreParts,
    end_offset: PhysicalOffset,
    reporter: _Reporter,
    save_progress: Callable[[], None] | None,
) -> None:
    """Dispatch what was found; once a listener is told, only its own thread may do that.

    Raises:
        StartEnded: The start is to end. What was done is noted, unless it is soon done again.
    """
    reput = parts.reput
    if reput.tells:
        if reput.reput_from_offset < end_offset:
            raise Lacking("messages are not carried to their consume queues yet")
        return
    is_to_end = False
    noted_offset = reput.reput_from_offset

    def is_over() -> bool:
        nonlocal is_to_end
        is_to_end = reporter.is_to_end(reput.reput_from_offset)
        is_due = reput.reput_from_offset - noted_offset >= _PROGRESS_BYTES
        return save_progress is not None and (is_to_end or is_due)

    while not reput.run(is_over):
        if save_progress is not None:
            save_progress()
            noted_offset = reput.reput_from_offset
        if is_to_end:
            raise StartEnded(f"{_ENDED}; the next start resumes it at {noted_offset} of the log")


def _save_progress(
    parts: StoreParts,
    checkpointing: Checkpointing,
    manifest: Manifest,
    ends: Mapping[QueueKey, QueueOffset],
) -> None:
    """Note how far all queues have been made again, if there is room for that."""
    again = parts.reput.made_again.topics
    noted_ends = manifest.ends_noted_before()
    noted = {queue: end for queue, end in noted_ends.items() if queue[0] not in again}
    checkpointing.expired_offset = parts.log.min_offset  # nothing before that is made again
    try:
        checkpointing.save(least_ends=Manifest.least_ends_of(noted, ends))
    except OSError as error:
        if not is_lack(error):
            raise


def _tidy_queues(
    parts: StoreParts,
    checkpointing: Checkpointing,
    manifest: Manifest,
    ends: Mapping[QueueKey, QueueOffset],
    *,
    is_rebuilding: bool,
    may_have_others: bool,
) -> None:
    """Let each queue begin and end where it should; no queue offset is given twice.

    ``ends`` are those of the queues' files, where these know more than the manifest. Files that
    ``may_have_others`` behind their last entries are wiped there.
    """
    with checkpointing.maintenance, parts.reput.paused():
        if (
            is_rebuilding
            or parts.reput.made_again.topics
            or parts.log.min_offset > manifest.log_min_offset
            or manifest.keeps_expired
        ):
            checkpointing.expire_entries()
        else:
            parts.queues.expired_before = parts.log.min_offset
        again = parts.reput.made_again.topics
        noted_ends = manifest.ends_noted_before()
        noted = {queue: end for queue, end in noted_ends.items() if queue[0] not in again}
        for (topic, queue_id), end in {**noted, **ends}.items():
            parts.queues.get_or_make(topic, queue_id).skip_to(end)
        parts.queues.delete_leftovers()
        if may_have_others:
            parts.queues.wipe_behind()
    parts.found_ends.finish()


def _follow_log(
    parts: StoreParts,
    checkpoint: Checkpoint | None,
    manifest: Manifest | None,
    watch: OpeningWatch,
    *,
    crashed: bool,
) -> RecoveredLog:
    """Find the end of the log and go on there; the torn tail after it is to be wiped.

    The manifest, if it is the newest, knows the times of what is not followed.
    """
    log = parts.log
    start = checkpoint.safe_offset if checkpoint else log.min_offset
    reporter = _Reporter(watch, "checks the commit log", start, log.files.end_offset)
    recovery = LogRecovery(log.files, checkpoint, reporter.report)
    is_small = _size_until(log, recovery.safe_offset) <= parts.config.check_whole_log_bytes
    if is_small or manifest is None:
        recovered = recovery.follow_from(log.min_offset)
    else:
        known = manifest.store_times(checkpoint.store_timestamp if checkpoint else 0)
        recovered = recovery.follow_from(recovery.safe_offset, known)
    if crashed:
        log.files.flush_found()
    sealed_from = min(recovery.sealed_from, recovered.end_offset)
    log.resume(recovered.end_offset, recovered.times, sealed_from)
    return recovered


def _warn_of_holes(parts: StoreParts, recovered: RecoveredLog) -> None:
    """Warn where the log holds no messages between others, or before what a checkpoint knew."""
    for start, end in recovered.holes:
        _log.warning(
            "%s is damaged: no message can be read from %d to %d of the commit log, which is "
            "passed over; all others are served",
            parts.log.files.path_at(start),
            start,
            end,
        )


def _is_newest(
    checkpointing: Checkpointing, manifest: Manifest, checkpoint: Checkpoint | None
) -> bool:
    """Return whether the manifest is the one that was saved last; warn if not."""
    aside = checkpointing.set_aside
    if aside is not None:
        _log.warning(
            "%s was damaged (%s) and is now %s; its backup was read, and all queues are made "
            "again. Topics that were deleted since that was saved may be back",
            checkpointing.manifest_path,
            aside.reason,
            aside.path.name,
        )
        return False
    if checkpoint is not None and not checkpointing.is_newest(manifest, checkpoint):
        _log.warning(
            "%s is missing or of an older copy: it is not the one that was saved last, and all "
            "queues are made again. Topics that were deleted since it was saved may be back",
            checkpointing.manifest_path,
        )
        return False
    return True


def _given_ends(
    parts: StoreParts, manifest: Manifest, end_offset: PhysicalOffset, *, is_last_known: bool
) -> Mapping[QueueKey, QueueOffset]:
    """Return the ends that queues are to have at least: the offsets before them were given.

    With ASYNC_FLUSH queues may know of messages that a power loss took, and whose offsets are given
    again; not if the log was once longer than now, of which only an older copy can be the reason.
    """
    was_longer = manifest.safe_offset is not None and end_offset < manifest.safe_offset
    if is_last_known and not manifest.entries_were_confirmed and not was_longer:
        return {}
    return _ends_in_files(parts)


def _ends_in_files(parts: StoreParts) -> dict[QueueKey, QueueOffset]:
    """Return the ends of queues by their files, but for ends that the log never had room for."""
    count_max = parts.log.files.end_offset // RECORD_BYTES_MIN
    return {key: end for key, end in parts.queues.ends_in_files().items() if end <= count_max}


def _warn_of_missing_files(
    parts: StoreParts, manifest: Manifest, end_offset: PhysicalOffset
) -> None:
    """Warn of parts of the log that were there at the last checkpoint, ours, and are gone."""
    files = parts.log.files
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


def _warn_of_a_lost_end(
    parts: StoreParts, known: PhysicalOffset, end_offset: PhysicalOffset
) -> None:
    """Warn if queues lead to places behind the end of the log, as they do only to flushed ones."""
    if known > end_offset:
        _log.warning(
            "%s is missing, damaged or of an older copy: the commit log ends at %d, and consume "
            "queues lead to messages up to %d; those behind the end are gone",
            parts.log.files.path_at(end_offset),
            end_offset,
            known,
        )


def _led_to(parts: StoreParts, manifest: Manifest, end_offset: PhysicalOffset) -> PhysicalOffset:
    """Return the end of the last record that queues of a store that is not large lead to, or 0.

    Behind a crash they lead to flushed records alone only if they did so all the time.
    """
    if not manifest.entries_were_confirmed or not _is_small(parts, end_offset):
        return LOG_START
    ends = []
    for _, _, queue in parts.queues:
        with suppress(UnreadableFile):
            ends.append(queue.record_end())
    return max(ends, default=LOG_START)


def _lasting(parts: StoreParts, holes: Sequence[Hole]) -> tuple[Hole, ...]:
    """Return those holes that hold no record now, either, not even behind one that is damaged.

    What a disk refuses it may give again one day.
    """
    log = parts.log
    behind = ((hole, record_behind(log.files, hole[0], hole[0], log.sealed_from)) for hole in holes)
    return tuple(hole for hole, found in behind if found is None or found >= hole[1])


def _is_passed_later(holes: Sequence[Hole], manifest: Manifest) -> bool:
    """Return whether a rebuild that was not finished knows holes, or has yet to come to them."""
    done_until = manifest.safe_offset or LOG_START
    known = manifest.holes
    return manifest.is_rebuilding and all(hole in known or hole[0] >= done_until for hole in holes)


def _is_of_this_log(manifest: Manifest, parts: StoreParts) -> bool:
    """Return whether a manifest knows how far this log was dispatched; files may have expired."""
    return (
        manifest.safe_offset is not None
        and manifest.safe_offset <= parts.log.written_offset
        and manifest.log_min_offset <= parts.log.min_offset
    )


def _look_at_all(parts: StoreParts, manifest: Manifest) -> Looked:
    """Compare queues and index with the log; those of a large store are taken for right.

    So are those that were just made from it, as far as that has come.
    """
    end_offset = manifest.safe_offset or LOG_START
    if manifest.is_rebuilding or not _is_small(parts, end_offset):
        return _NOT_LOOKED
    try:
        expired_before = LOG_START if manifest.keeps_expired else manifest.log_min_offset
        looked = look_at_all(parts, end_offset, expired_before)
    except UnreadableFile as error:
        _log.warning("%s: consume queues and index are not compared with the log", error)
        return _NOT_LOOKED
    if looked.wrong_queue is not None:
        _log.warning(_IS_DAMAGED, looked.wrong_queue.directory, "all queues are")
    elif not looked.is_index_right and manifest.index_files is not None:  # else none was kept
        _log.warning(_IS_DAMAGED, parts.root / INDEX, "the index is")
    return looked


def _is_small(parts: StoreParts, end_offset: PhysicalOffset) -> bool:
    """Return whether looking at all of a store up to a place in the log takes little time."""
    size = _size_until(parts.log, end_offset)
    return size <= parts.config.check_whole_log_bytes and len(parts.queues) <= QUEUES_MAX


def _size_until(log: CommitLog, end_offset: PhysicalOffset) -> int:
    """Return the bytes that there are to read of a log up to a place.

    The first file is not full if a staged batch was to be committed there.
    """
    size = end_offset - log.min_offset
    with suppress(UnreadableFile):
        size -= log.files.left_empty() if size > log.files.file_size else 0
    return size


def _index_start(
    parts: StoreParts, manifest: Manifest, reput_from: PhysicalOffset
) -> PhysicalOffset:
    """Return from where the index is made again, and delete what is of no use."""
    index, first = parts.index, parts.log.min_offset
    if index is None:
        return reput_from
    if manifest.index_files is None or not set(manifest.index_files) <= set(index.file_names):
        return _no_index(parts)
    if index.discard_from(parts.log.written_offset):
        return max(index.last_indexed_physical_offset, first)
    return reput_from


def _no_index(parts: StoreParts) -> PhysicalOffset:
    """Have all of the index made again."""
    if parts.index is not None:
        parts.index.delete_all()
    return parts.log.min_offset
