"""Checkpointer: saves the offset up to which log, queues and index are durable, and their bounds.

    lock maintenance, pause reput ── index catches up, ends of queues are read ── resume
    flush log ── queues ── index
    lock maintenance ── save manifest ── save checkpoint ── unlock

The manifest has the ends of queues as read during the pause, and the log offset up to which all
records had been dispatched by then. It is saved when all of that is on the disk. Records that reput
dispatches later are dispatched again after a crash. The checkpoint that follows is for the recovery
of the log, and for RocketMQ. Some queues may already have entries of records past that offset: when
another queue had no room for its own, or when the log is dispatched again from an earlier offset.
Such entries are durable too, and a start compares them with the log like all others.

Flushing takes longer the more queues there are, and nothing waits for it: meanwhile topics may be
deleted and entries may expire. For these the manifest has the state at the time of its save.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import wait
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from rmq_spark.wire.message_queue import QueueKey

from ...common.threads import THREAD_START_TIMEOUT_SECONDS, DaemonThreadPool
from ..append.message_appender import MessageAppender
from ..components import CONFIG, StoreComponents
from ..errors import (
    DamagedTable,
    FlushFailed,
    StoreFailed,
    TransientFailure,
    UnreadableFile,
    is_transient,
)
from ..files.file_pool import never_stop
from ..files.json_table import JsonTable
from ..log.checkpoint_file import CHECKPOINT, Checkpoint, save_checkpoint
from ..queues.manifest import (
    DELETED_TOPICS_MAX,
    DELETIONS,
    DELETIONS_MAX,
    MANIFEST,
    Deletions,
    StoreManifest,
)
from ..queues.queue_table import QueueSpan
from ..results import FIRST_IN_QUEUE, LOG_START, DeletedSpan, PhysicalOffset, QueueOffset

_log = logging.getLogger(__name__)
_LAST_CHECKPOINT_SECONDS = 20.0


class Checkpointer:
    """Saves checkpoints, and the deletions and expiry between them."""

    def __init__(self, components: StoreComponents) -> None:
        root = components.root
        self._components = components
        self._path = root / CHECKPOINT
        self.manifest = JsonTable(components.disk, root / CONFIG / MANIFEST, StoreManifest)
        self._deletions_table = JsonTable(components.disk, root / CONFIG / DELETIONS, Deletions)
        self._deletions = Deletions()
        """The deletions since the manifest was saved."""
        self._deletions_saved_in: JsonTable[Any] = self.manifest
        self._saved_serial = 0
        """The serial number of the manifest on the disk, as far as it is known."""
        self.maintenance = threading.RLock()
        """Guards changes of the state that a manifest has, and its save; never held for long."""
        self._saving = threading.Lock()
        self._serial = 0
        self._saved_checkpoint: Checkpoint | None = None
        """The checkpoint on the disk; None if there is none, or another program wrote it."""
        self._topics_deleted_during_save: dict[str, None] = {}
        """Topics deleted since the checkpoint under way has read the ends of queues."""
        self.saved_offset = LOG_START
        """The log offset up to which records were dispatched at the last saved checkpoint."""
        self.expired_offset = LOG_START
        """The physical offset before which queues offer no entries."""
        self._unexpired_queues: dict[QueueKey, None] = {}
        """Queues that still offer expired entries, because they could not be read."""
        self._saved_index_from = LOG_START
        self._saved_spans: list[QueueSpan] = []
        """Queues with files whose entries have all expired according to the last checkpoint."""
        self.half_deleted: tuple[str, ...] = ()
        """Deleted topics whose other data, such as offsets of groups, may still exist."""

    def load_manifest(self) -> StoreManifest:
        """Load the manifest that was saved last; without a checksum, only its plausible parts."""
        manifest = self.manifest.load(StoreManifest()).without_light_queues()
        deletions = self._deletions_table.load(Deletions())
        self._deletions_table.warn_of_damage()
        if not deletions.serial or deletions.serial != manifest.serial:
            deletions = Deletions(serial=manifest.serial, half_deleted=manifest.half_deleted)
        self._deletions, self._saved_serial = deletions, manifest.serial
        manifest = manifest.with_deletions(deletions)
        self._serial = max(self._serial, manifest.serial)
        return manifest if self.manifest.has_checksum else manifest.without_impossible_queues()

    def restore(self, checkpoint: Checkpoint | None) -> None:
        """Continue from the checkpoint that a start has found; None if this broker wrote none."""
        self._saved_checkpoint = checkpoint
        self._serial = max(self._serial, checkpoint.manifest_serial if checkpoint else 0)

    @property
    def keeps_expired(self) -> bool:
        """True if a queue still offers expired entries, because it could not be read."""
        return bool(self._unexpired_queues)

    def is_newest(self, manifest: StoreManifest, checkpoint: Checkpoint) -> bool:
        """Return whether a loaded manifest is no older than a checkpoint.

        Manifests without a dispatch position, from a start that rebuilds all queues, count as new.
        """
        if self.manifest.loaded_from is None:
            return checkpoint.manifest_serial == checkpoint.safe_offset == 0
        if 0 < manifest.serial < checkpoint.manifest_serial:  # 0: from a release without numbers
            return False
        return manifest.safe_offset is None or manifest.safe_offset >= checkpoint.safe_offset

    @property
    def is_under_way(self) -> bool:
        """True while a checkpoint is being saved, which will record what has expired by then."""
        return self._saving.locked()

    def save(
        self,
        should_stop: Callable[[], bool] = never_stop,
        least_ends: Mapping[str, tuple[int, ...]] | None = None,
    ) -> bool:
        """Flush log, queues and index, and save manifest and checkpoint.

        With `StoreManifest.least_ends`, the manifest also records that all queues are rebuilt.

        Returns:
            False if ``should_stop`` has ended this early: nothing was saved.
        """
        parts = self._components
        with self._saving:
            if should_stop():  # the wait for another save took too long
                return False
            with self.maintenance, parts.reput.caught_up():
                safe_offset = parts.reput.reput_from_offset
                ends = parts.queues.ends()
                holes = parts.reput.holes
                rolled_back = parts.dispatcher.rolled_back.to_manifest(safe_offset)
                times = parts.log.timeline
                self._topics_deleted_during_save.clear()
            parts.log.flush()
            if not parts.queues.flush(should_stop):
                return False
            index_from = self.expired_offset
            index, index_files = parts.index, None
            if index is not None:
                index_files = index.names_from(index_from)
                index.flush()
            with self.maintenance:
                if should_stop():
                    return False
                spans = list(ends.spans(excluded=self._topics_deleted_during_save))
                self._save_manifest(
                    StoreManifest(
                        safe_offset=safe_offset,
                        log_min_offset=self.expired_offset,
                        keeps_expired=self.keeps_expired,
                        spans=StoreManifest.spans_of(spans),
                        index_files=index_files,
                        entries_were_confirmed=parts.is_sync,
                        holes=holes,
                        deleted_topics=dict(parts.dispatcher.deleted_topics),
                        half_deleted=self.half_deleted,
                        taken_back={
                            topic: rows
                            for topic, rows in rolled_back.items()
                            if topic not in self._topics_deleted_during_save
                        },
                        newest_mark=parts.batch_table.newest_mark,
                        is_rebuilding=least_ends is not None,
                        least_ends=least_ends or {},
                        store_time_gap=times.gap_ms,
                        store_time_steps=times.steps,
                    )
                )
                self._save_checkpoint(
                    Checkpoint(safe_offset, times.last_ms, parts.log.sealed_from, self._serial)
                )
                self.saved_offset = safe_offset
                self._saved_index_from = index_from
                self._saved_spans = [
                    span
                    for span in spans
                    if ends.queues[span[:2]].has_files_before(span.min_offset)
                ]
        return True

    def _save_manifest(self, manifest: StoreManifest) -> None:
        self._serial += 1
        self.manifest.save(replace(manifest, serial=self._serial))
        self._saved_serial = self._serial
        self._deletions = Deletions(serial=self._serial, half_deleted=manifest.half_deleted)

    def _save_checkpoint(self, checkpoint: Checkpoint) -> None:
        save_checkpoint(self._components.disk, self._path, checkpoint)
        self._saved_checkpoint = checkpoint

    def _save_serial(self) -> None:
        """Save the newest manifest's number in the checkpoint; the manifest is valid without it."""
        if self._saved_checkpoint is not None:
            with suppress(OSError):  # the next checkpoint has the number
                self._save_checkpoint(replace(self._saved_checkpoint, manifest_serial=self._serial))

    def save_last(self, save: Callable[[Callable[[], bool]], bool]) -> bool:
        """Save a final checkpoint, unless the disk takes too long."""
        is_saved = _save_within(_LAST_CHECKPOINT_SECONDS, save)
        if is_saved is None:
            with self.maintenance:  # wait for a save of the manifest
                what = (
                    "not all consume queues are flushed after %d s: the next start recovers as "
                    "after a crash"
                )
                _log.warning(what, _LAST_CHECKPOINT_SECONDS)
        return bool(is_saved)

    def delete_expired(self) -> None:
        """Delete files of queues and index whose entries have all expired by the last checkpoint.

        The checkpoint must have the expiry first: otherwise a start after a kill would find files
        missing and rebuild everything.
        """
        while self._delete_next_expired():
            pass  # one queue at a time, so that the lock is held briefly
        if self._components.index is not None:
            self._components.index.delete_before(self._saved_index_from)

    def _delete_next_expired(self) -> bool:
        with self.maintenance:
            if not self._saved_spans:
                return False
            topic, queue_id, min_offset, _ = self._saved_spans[-1]
            queue = self._components.queues.get(topic, queue_id)
            if queue is not None:  # the topic may have been recreated meanwhile
                queue.delete_before(min(min_offset, queue.min_offset))
            self._saved_spans.pop()
            return True

    def expire_entries(self) -> list[DeletedSpan]:
        """Stop offering entries of expired records and of deleted topics.

        This locks ``maintenance`` for one queue at a time. A queue whose entries cannot be read
        keeps them until `expire_remaining` can read it. A queue whose entries are damaged keeps
        them until files expire the next time, or until the next start.

        Returns:
            The messages that queues no longer offer.
        """
        first, queues = self._components.log.min_offset, self._components.queues
        keys = [(topic, queue_id) for topic, queue_id, _ in queues]
        spans = {key: self._expire_queue(*key, first) for key in keys}
        with self.maintenance:
            self._unexpired_queues = {key: None for key, span in spans.items() if span is None}
            dispatcher = self._components.dispatcher
            dispatcher.discard_deleted(first)
            self.expired_offset = first
            if not self._unexpired_queues:
                queues.expired_before = first
        return [span for span in spans.values() if span is not None and span.first < span.next]

    def expire_remaining(self) -> list[DeletedSpan]:
        """Expire entries of the queues that could not be read before, if they can be read now.

        Returns:
            For each of these queues, the span that it no longer offers, which may be empty. The
            caller has to save a checkpoint if there are any.
        """
        first = self.expired_offset
        expired = [
            (key, span)
            for key in self._unexpired_queues
            if (span := self._expire_queue(*key, first)) is not None
        ]
        with self.maintenance:
            for key, _ in expired:
                del self._unexpired_queues[key]
            if expired and not self._unexpired_queues:
                self._components.queues.expired_before = first
        return [span for _, span in expired]

    def _expire_queue(self, topic: str, queue_id: int, first: PhysicalOffset) -> DeletedSpan | None:
        """Expire the entries of one queue; return None if they cannot be read."""
        with self.maintenance:
            queue = self._components.queues.get(topic, queue_id)
            if queue is None:  # the topic was deleted meanwhile
                return DeletedSpan(topic, queue_id, QueueOffset(0), QueueOffset(0))
            deleted_topics = self._components.dispatcher.deleted_topics
            before = queue.min_offset
            try:
                queue.expire_before(max(first, deleted_topics.get(topic, first)))
            except UnreadableFile as error:
                if (topic, queue_id) not in self._unexpired_queues:
                    _log.error("%s. All other queues expire; this one is retried", error)
                return None
            return DeletedSpan(topic, queue_id, before, queue.min_offset)

    def save_deletion(self, topic: str, log_end_offset: PhysicalOffset) -> None:
        """Save the deletion of a topic whose messages end at a log offset, before its queues go.

        Raises:
            OSError: The disk refuses, or there are too many deleted topics. The deletion is not
                saved.
            StoreFailed: The disk refuses, and it is unknown whether the deletion is saved.
        """
        with self.maintenance:
            if len(self._components.dispatcher.deleted_topics) >= DELETED_TOPICS_MAX:
                raise TransientFailure(
                    f"{DELETED_TOPICS_MAX} deleted topics still have messages in the commit log. "
                    "Delete more when files of the log have expired (fileReservedTime)"
                )
            half_deleted = tuple(dict.fromkeys((*self.half_deleted, topic)))
            deletions = replace(
                self._deletions,
                deleted_topics={**self._deletions.deleted_topics, topic: log_end_offset},
                half_deleted=half_deleted,
            )
            try:
                self._save_deletions(deletions)
            except FlushFailed as error:
                raise StoreFailed("deleting a topic failed", error) from error
            except OSError as error:
                if not self._is_deletion_saved(topic, log_end_offset, error):
                    raise
            self._topics_deleted_during_save[topic] = None
            self.half_deleted = half_deleted

    def finish_deletion(self, topic: str) -> None:
        """Save that no data of a deleted topic remains anywhere.

        Raises:
            OSError: The disk refuses, and it is unknown whether this is saved. Repeating it is
                safe.
        """
        with self.maintenance:
            if topic in self.half_deleted:
                half_deleted = tuple(name for name in self.half_deleted if name != topic)
                self._save_deletions(replace(self._deletions, half_deleted=half_deleted))
                self.half_deleted = half_deleted

    def _save_deletions(self, deletions: Deletions) -> None:
        """Save deletions beside the manifest, or in it if they are many.

        If it is unknown which manifest is on the disk, they are saved in a new manifest as well.
        """
        is_known = self._saved_serial == self._serial == deletions.serial > 0
        if is_known and len(deletions.deleted_topics) <= DELETIONS_MAX:
            self._deletions_saved_in = self._deletions_table
            self._deletions_table.save(deletions)
            self._deletions = deletions
        else:
            self._deletions_saved_in = self.manifest
            manifest = self.load_manifest()
            self._save_manifest(manifest.with_deletions(replace(deletions, serial=manifest.serial)))
            self._save_serial()

    def invalidate(self, manifest: StoreManifest) -> None:
        """Save that the manifest applies to no queue, before all queues are rebuilt.

        Otherwise a crash meanwhile would leave files that the next start accepts as complete.
        """
        self._save_manifest(replace(manifest, safe_offset=None))
        self._save_serial()

    def _is_deletion_saved(
        self, topic: str, log_end_offset: PhysicalOffset, error: OSError
    ) -> bool:
        try:
            return self.load_manifest().deleted_topics.get(topic) == log_end_offset
        except (OSError, DamagedTable) as second:
            if is_transient(second):
                return self._deletions_saved_in.was_replaced
            raise StoreFailed(f"deleting a topic failed: {error}", second) from error


def _save_within(seconds: float, save: Callable[[Callable[[], bool]], bool]) -> bool | None:
    """Save a checkpoint in a thread; if that takes too long, stop it and return None."""
    is_late = threading.Event()
    workers = DaemonThreadPool("LastCheckpoint", waits_at_exit=False)
    try:
        saving = workers.submit(partial(save, is_late.is_set))
    except (RuntimeError, MemoryError):  # no thread can start: a limit is reached, or Python ends
        return save(is_late.is_set)
    wait([saving], THREAD_START_TIMEOUT_SECONDS)
    if saving.cancel():  # the job's thread has not started
        return save(is_late.is_set)
    workers.shutdown()
    if saving in wait([saving], seconds).done:
        return saving.result()
    is_late.set()
    return None


# ---- delete_topic: saves the deletion, then removes the queues of the topic.


def delete_topic(
    components: StoreComponents, checkpointer: Checkpointer, appender: MessageAppender, topic: str
) -> None:
    """Delete the queues of a topic; dispatch messages again that were sent to it meanwhile.

    Raises:
        OSError: The disk refuses. Nothing has changed.
        StoreFailed: The disk has failed, and it is unknown whether the topic is deleted.
    """
    queues, reput = components.queues, components.reput
    appender.wipe_refused()  # a start might find refused messages past the topic's end
    with checkpointer.maintenance:
        ended = appender.topic_ends(topic)
        checkpointer.save_deletion(topic, ended.log_end_offset)
        with reput.paused():  # the event loop may wait for this, which takes one rename
            has_newer = any(
                end > ended.next_offsets.get(queue_id, FIRST_IN_QUEUE)
                for queue_id, end in queues.ends_of(topic).items()
            )
            try:
                queues.move_away(topic)
            except OSError:  # the deletion is saved, so the queues must go
                queues.hide(topic, ended.next_offsets)
            else:
                appender.discard_topic(topic, ended)
            # From here on, no entry of an earlier record is offered.
            components.dispatcher.note_deleted(topic, ended.log_end_offset)
            reput.discard_hidden()
            if has_newer:  # messages dispatched meanwhile are of the new topic
                reput.rewind_to(ended.log_end_offset)
