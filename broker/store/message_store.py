"""MessageStore: the one door to log, consume queues and index.

It builds the parts, connects them, starts and stops them in order, and recovers what a crash has left:

1. the directory is locked; ``abort`` tells whether the last one stopped in order;
2. the log is followed from the checkpoint to its end (`recovery`); its torn tail is wiped;
3. consume queues are cut back to the checkpoint and, as the index, made again from there. Where files of
   theirs are missing, or another program wrote the checkpoint, all of them are made again from the log;
4. only then is anything taken or given out.

It must not know sockets, clients or any other room of the broker: arrivals go to one listener.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, replace

from broker.store.appender import MessageAppender
from broker.store.checkpoint import CHECKPOINT, Checkpoint, save_checkpoint
from broker.store.chunk_appender import ChunkAppender, Sizes
from broker.store.commit_log import FULL, CommitLog
from broker.store.config import BrokerRole, FlushDiskType, StoreConfig
from broker.store.directory_lock import AbortFile, DirectoryLock
from broker.store.disk import Disk
from broker.store.dispatch import Dispatcher, MessageArrivingListener
from broker.store.errors import StoreError
from broker.store.flush import FlushService
from broker.store.fresh_records import none_yet
from broker.store.index_service import IndexService
from broker.store.manifest import MANIFEST, Manifest, manifest_of
from broker.store.message_filter import MessageFilter
from broker.store.queue_table import QueueTable
from broker.store.reader import MessageReader
from broker.store.record_draft import RecordDraft
from broker.store.record_glance import glance, pattern_of, property_of
from broker.store.record_template import RecordTemplate, UniformParts
from broker.store.recovery import LogRecovery, reliable_checkpoint, wipe_behind
from broker.store.reput import ReputMessageService
from broker.store.results import GetMessageResult, PutMessageResult, PutMessageStatus
from broker.store.retention import Retention
from broker.store.tables import JsonTable
from rmq_spark.wire.framing import Buffer
from rmq_spark.wire.properties import KEY_SEPARATOR, KEYS, UNIQ_KEY
from rmq_spark.wire.record import StoredMessage

COMMIT_LOG = "commitlog"
CONSUME_QUEUE = "consumequeue"
INDEX = "index"

_INDEX_CANDIDATES_PER_RESULT = 4
_UNIQ_KEY, _KEYS = pattern_of(UNIQ_KEY), pattern_of(KEYS)


@dataclass(frozen=True)
class StoreState:
    """What an operator looks at first."""

    min_offset: int
    written_offset: int
    flushed_offset: int
    reput_from_offset: int
    holes: tuple[tuple[int, int], ...]
    failure: str | None
    hindrance: str | None
    """What keeps messages from their queues for now."""
    recovered_from_crash: bool


class MessageStore:
    """One store in one directory. Made by its constructor, which recovers; ended by `shutdown`."""

    def __init__(
        self,
        config: StoreConfig,
        disk: Disk,
        now_ms: Callable[[], int],
        listener: MessageArrivingListener | None = None,
        wake_reput: Callable[[], object] | None = None,
    ) -> None:
        """``wake_reput`` is called, in any thread, when there is something to `reput`.

        Without it, that happens at once, in the thread that appended or flushed.

        Raises:
            StoreInUse, ForeignFile, DamagedTable: As `broker.store.errors` says. Nothing was changed.
        """
        self._config = config
        self._disk = disk
        self._now_ms = now_ms
        self._wake_reput: Callable[[], object] = wake_reput or self.reput
        self._is_sync = config.flush_disk_type is FlushDiskType.SYNC_FLUSH
        self._refusal: str | None = (
            "this broker is a slave" if config.broker_role is BrokerRole.SLAVE else None
        )
        self._failure: str | None = None
        self._ending: str | None = None
        self._hindrance: str | None = None
        root = config.store_path_root_dir
        disk.make_directory(root)
        self._lock = DirectoryLock(root)
        self._maintenance = threading.Lock()
        try:
            self._build(listener)
            self._recover()
        except BaseException:
            self._close_files()
            raise
        self._flusher = FlushService(
            self._log.flush,
            self._wake_reput if self._is_sync else _nothing,
            self._fail,
            None if self._is_sync else config.flush_interval_commit_log_ms / 1000,
        )
        self._flusher.start()

    def _build(self, listener: MessageArrivingListener | None) -> None:
        config, disk, root = self._config, self._disk, self._config.store_path_root_dir
        self._log = CommitLog(disk, root / COMMIT_LOG, config.mapped_file_size_commit_log, self._now_ms)
        self._queues = QueueTable(disk, root / CONSUME_QUEUE, config.mapped_file_size_consume_queue)
        self._index = (
            IndexService(
                disk,
                root / INDEX,
                self._now_ms,
                hash_slot_num=config.max_hash_slot_num,
                index_num=config.max_index_num,
                hops_max=config.index_hops_max,
            )
            if config.message_index_enable
            else None
        )
        self._dispatcher = Dispatcher(config.message_delay_level_ms)
        fresh = none_yet()
        self._reput = ReputMessageService(
            self._log,
            self._queues,
            self._index,
            self._dispatcher,
            listener if config.broker_role is not BrokerRole.SLAVE else None,
            self.confirm_offset,
            fresh,
        )
        self._appender = MessageAppender(
            self._log,
            self._queues,
            config.max_message_size,
            lambda: self._failure or self._ending or self._refusal,
            fresh.runs,
        )
        self._chunks = ChunkAppender(self._log, self._appender, fresh.chunks)
        self._reader = MessageReader(self._log, self._queues)
        self._retention = Retention(config, disk, self._log.files)
        self._manifest = JsonTable(disk, root / "config" / MANIFEST, Manifest)
        self._abort = AbortFile(disk, root)

    # ---- recovery and checkpoints

    def _recover(self) -> None:
        config, root = self._config, self._config.store_path_root_dir
        for directory in (COMMIT_LOG, CONSUME_QUEUE, "config"):
            self._disk.make_directory(root / directory)
        self._disk.flush_directory(root)
        self._crashed = self._abort.exists()
        self._log.files.load()
        self._queues.load()
        if self._index is not None:
            self._index.load()
        checkpoint = reliable_checkpoint(self._disk, root, self._log.files)
        if self._abort.is_of_another():
            # Before our sign takes the place of theirs: this start may end before its own checkpoint.
            self._disk.delete(root / CHECKPOINT)
            self._disk.flush_directory(root)
        manifest = self._manifest.load(Manifest())
        self._abort.create()
        self._dispatcher.deleted_topics = dict(manifest.deleted_topics)
        self._expire_entries()
        recovery = LogRecovery(self._log.files, checkpoint)
        is_small = recovery.safe_offset - self._log.min_offset <= config.check_whole_log_bytes
        recovered = recovery.follow_from(self._log.min_offset if is_small else recovery.safe_offset)
        wipe_behind(self._log.files, recovered.end_offset)
        if self._crashed:
            self._log.files.flush_found()
        self._sealed_from = min(recovery.sealed_from, recovered.end_offset)
        last_timestamp = max(recovered.last_timestamp, checkpoint.store_timestamp if checkpoint else 0)
        self._log.resume(recovered.end_offset, last_timestamp)
        self._holes = recovered.holes
        safe_offset = min(recovery.safe_offset, recovered.end_offset)
        index_files = self._index.file_names if self._index is not None else None
        rebuild = (
            checkpoint is None
            or bool(recovered.holes)
            or self._queues.is_damaged
            or manifest.is_anything_missing(self._log.min_offset, self._queues, index_files)
        )
        self._reput.resume(*self._starts(safe_offset, rebuild=rebuild), recovered.holes)
        self._reput.run()
        manifest.keep_numbers(self._queues)
        self.save_checkpoint()

    def _starts(self, safe_offset: int, *, rebuild: bool) -> tuple[int, int]:
        """From where queues and index are made again, with what lies behind that taken away."""
        first = self._log.min_offset
        if rebuild:
            self._queues.clear()
            if self._index is not None:
                self._index.delete_all()
            return first, first
        for _, _, queue in self._queues:
            queue.truncate(safe_offset)
        if self._index is None:
            return safe_offset, safe_offset
        self._index.discard_from(self._log.written_offset)
        return safe_offset, max(self._index.last_indexed_physical_offset, first)

    def save_checkpoint(self) -> None:
        """Make log, queues and index durable, and note that they are.

        If a flush of theirs fails, what the disk has of them is unknown from then on: nothing more is taken.
        """
        try:
            self._save_checkpoint()
        except OSError as error:
            self._fail(f"a checkpoint failed: {error}; restart the broker")
            raise

    def _save_checkpoint(self) -> None:
        with self._maintenance:
            self._log.flush()
            self._reput.catch_up_index()
            with self._reput.paused():  # what is noted here is flushed below
                safe_offset = min(self._log.flushed_offset, self._reput.index_from_offset)
                spans = self._queues.spans()
                deleted = self._dispatcher.deleted_topics
            manifest = manifest_of(self._log.min_offset, spans, deleted)
            self._queues.flush()
            if self._index is not None:
                self._index.flush()
                manifest = replace(manifest, index_files=self._index.file_names)
            self._manifest.save(manifest)
            path = self._config.store_path_root_dir / CHECKPOINT
            checkpoint = Checkpoint(safe_offset, self._log.last_timestamp, self._sealed_from)
            save_checkpoint(self._disk, path, checkpoint)

    def _expire_entries(self) -> None:
        """Entries of records that the log no longer has, or whose topic was deleted, are not offered."""
        deleted = self._dispatcher.deleted_topics
        for topic, _, queue in self._queues:
            queue.forget_before(max(self._log.min_offset, deleted.get(topic, 0)))

    # ---- putting

    def put_message(self, message: StoredMessage) -> PutMessageResult:
        """Append one message; in SYNC_FLUSH it counts as stored when `flushed` says so."""
        return self._appended(self._appender.put_message(message))

    def put_draft(self, draft: RecordDraft) -> PutMessageResult:
        """The same, of a message whose texts are bytes already."""
        return self._appended(self._appender.put_draft(draft))

    def put_later(
        self, template: RecordTemplate, body: Buffer, properties: bytes, born_timestamp: int
    ) -> PutMessageResult | None:
        """The same, written together with others by `write_out`, or before; why not, if it cannot be put."""
        return self._appender.put_later(template, body, properties, born_timestamp)

    def write_out(self) -> Sequence[PutMessageResult]:
        """Write what was put to be written later: what came of each since the last time, in their order.

        Nobody sees it before, and no answer may leave.
        """
        results = self._appender.write_out()
        if results and not self._is_sync:
            self._wake_reput()
        return results

    def put_batch(self, messages: Sequence[StoredMessage]) -> PutMessageResult:
        """Append messages of one queue, all or none."""
        return self._appended(self._appender.put_batch(messages))

    def put_uniform(
        self, template: RecordTemplate, parts: UniformParts, born_timestamp: int
    ) -> tuple[PutMessageResult, list[int]]:
        """The same, where only flag, body and properties differ; and the sizes of the records."""
        result, sizes = self._appender.put_uniform(template, parts, born_timestamp)
        return self._appended(result), sizes

    def put_chunk(self, records: Buffer, sizes: Sizes) -> PutMessageResult:
        """Append ready-encoded records of one queue."""
        return self._appended(self._chunks.put_chunk(records, sizes))

    def _appended(self, result: PutMessageResult) -> PutMessageResult:
        if result.status is PutMessageStatus.PUT_OK and not self._is_sync:
            self._wake_reput()
        return result

    def flushed(self, end_offset: int) -> Future[None]:
        """Done when all before this offset is on the disk; one flush serves all that wait."""
        return self._flusher.flushed(end_offset)

    def wait_until_stored(self, result: PutMessageResult, timeout_seconds: float = 5.0) -> PutMessageResult:
        """In SYNC_FLUSH, the result once it is known whether the message is on the disk."""
        if not self._is_sync or result.status is not PutMessageStatus.PUT_OK:
            return result
        try:
            self.flushed(result.end_offset).result(timeout_seconds)
        except FutureTimeoutError:
            return result._replace(status=PutMessageStatus.FLUSH_DISK_TIMEOUT)
        except StoreError as error:
            return result._replace(status=PutMessageStatus.SERVICE_NOT_AVAILABLE, remark=str(error))
        return result

    def confirm_offset(self) -> int:
        """Up to where messages are visible: a crash will not take them back."""
        return self._log.flushed_offset if self._is_sync else self._log.written_offset

    def reput(self) -> bool:
        """Carry what is confirmed to queues and index, and tell of it; False: that is to be tried again.

        It is if the disk is full; if it fails, nothing more is taken.
        """
        try:
            self._reput.run()
        except OSError as error:
            if error.errno in FULL:
                self._hindrance = f"there is no room for consume queues and index: {error}"
                return False
            self._fail(f"writing a consume queue or the index failed: {error}; restart the broker")
        self._hindrance = None
        return True

    # ---- getting

    def get_message(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        *,
        count_max: int = 32,
        bytes_max: int = 262_144,
        scan_max: int = 800,
        message_filter: MessageFilter | None = None,
    ) -> GetMessageResult:
        """Messages of a queue from an offset on; the defaults are RocketMQ's for messages in memory."""
        return self._reader.get_message(
            topic,
            queue_id,
            queue_offset,
            count_max=count_max,
            bytes_max=bytes_max,
            scan_max=scan_max,
            message_filter=message_filter,
        )

    def queue_offsets(self, topic: str, queue_id: int) -> tuple[int, int]:
        """The first offset that a queue holds, and the one that its next message gets."""
        queue = self._queues.get(topic, queue_id)
        return (queue.min_offset, queue.max_offset) if queue is not None else (0, 0)

    def queue_nums(self) -> dict[str, int]:
        """How many queues each topic has by its queues with messages: the last one's number and one."""
        return {topic: queue_id + 1 for topic, queue_id, _ in self._queues}

    def offset_by_time(self, topic: str, queue_id: int, timestamp: int, *, upper: bool = False) -> int:
        """The first offset stored at a time or later; upper: the last at that time or earlier."""
        return self._reader.offset_by_time(topic, queue_id, timestamp, upper=upper)

    def earliest_timestamp(self, topic: str, queue_id: int) -> int:
        """When the first message of a queue was stored; -1 if there is none."""
        queue = self._queues.get(topic, queue_id)
        return self._reader.earliest_timestamp(queue) if queue is not None else -1

    def record_at(self, physical_offset: int) -> memoryview | None:
        """The record that starts at a place in the log; None if none does."""
        if physical_offset >= self.confirm_offset():
            return None
        return self._reader.record_at(physical_offset)

    def query_message(
        self, topic: str, key: str, max_num: int, begin_ms: int, end_ms: int
    ) -> list[memoryview]:
        """Records with a key, or with a unique id, stored within a time span; newest first."""
        if self._index is None:
            return []
        self._reput.catch_up_index()
        found: list[memoryview] = []
        candidates = self._index.query(topic, key, begin_ms, end_ms, max_num * _INDEX_CANDIDATES_PER_RESULT)
        for physical_offset in dict.fromkeys(candidates):
            if len(found) == max_num:
                break
            record = self.record_at(physical_offset)
            if record is not None and _has_key(record, topic.encode(), key.encode()):
                found.append(record)
        return found

    # ---- keeping house

    def delete_topic(self, topic: str) -> None:
        """Forget a topic. Its messages stay in the log until that expires, but are not found again.

        What is put into it meanwhile belongs to one of the same name, which begins where this one ends. One
        that comes later begins at 0: by then, no crash can bring the old messages back.
        """
        with self._maintenance:
            ended = self._appender.numbers_of(topic)
            deleted = {**self._dispatcher.deleted_topics, topic: ended.log_end_offset}
            self._dispatcher.deleted_topics = deleted
            self._manifest.save(self._manifest.load(Manifest()).without_topic(topic, deleted))
            with self._reput.paused():  # the broker's thread may wait for this: nothing but one rename
                aside = self._queues.put_aside(topic)
                for queue_id in self._appender.forget_topic(topic, ended):
                    self._queues.keep_from(topic, queue_id, aside, ended.log_end_offset)
            self._queues.flush_aside(aside)
        self._queues.delete(aside)

    def clean(self) -> int:
        """Delete what is too old, or what a disk that is filling up can no longer keep; how many files.

        Files go by age at the hours that are set, or by need at any time; never the last.
        """
        deleted = self._retention.delete_expired(self._now_ms(), self._log.last_timestamp)
        self._refuse_when_full()
        if deleted:
            self._expire_entries()
            first = self._log.min_offset
            kept = self._dispatcher.deleted_topics.items()
            self._dispatcher.deleted_topics = {name: at for name, at in kept if at > first}
            if self._index is not None:
                self._index.delete_before(first)
            self.save_checkpoint()
        return deleted

    def _refuse_when_full(self) -> None:
        used = self._disk.used_ratio(self._config.store_path_root_dir)
        limit = self._config.disk_space_warning_level_ratio
        if self._config.broker_role is not BrokerRole.SLAVE:
            self._refusal = f"the disk is {used:.0%} full, over {limit:.0%}" if used >= limit else None

    def state(self) -> StoreState:
        """What an operator looks at first."""
        return StoreState(
            self._log.min_offset,
            self._log.written_offset,
            self._log.flushed_offset,
            self._reput.reput_from_offset,
            self._holes,
            str(self._log.failure) if self._log.failure else self._failure,
            self._hindrance,
            self._crashed,
        )

    def _fail(self, failure: str) -> None:
        """Take nothing more. The first failure is the one to know of."""
        self._failure = self._failure or failure

    def take_no_more(self, why: str) -> None:
        """Refuse messages from now on: the end has come. What was taken is still flushed, and told of."""
        self._ending = why

    def shutdown(self) -> None:
        """Make all durable, note that it is, and let others have the directory."""
        self.write_out()
        self.take_no_more("the store has been shut down")
        self._flusher.stop()
        try:
            if self.state().failure is None:
                self._log.flush()
                self._reput.run()
                self.save_checkpoint()
                self._abort.remove()
        finally:
            self._close_files()

    def _close_files(self) -> None:
        try:
            self._log.close()
            self._queues.close()
            if self._index is not None:
                self._index.close()
        finally:
            self._lock.release()


def _has_key(record: memoryview, topic: bytes, key: bytes) -> bool:
    """The index knows hashes only: whether this is the message that was asked for. Bodies are not touched."""
    of_topic, _, _, _, _, properties = glance(record, 0, len(record))
    keys = property_of(properties, _KEYS) or b""
    return of_topic == topic and (
        property_of(properties, _UNIQ_KEY) == key or key in keys.split(KEY_SEPARATOR.encode())
    )


def _nothing() -> None:
    """In ASYNC_FLUSH a finished flush makes nothing visible that was not before."""
