"""MessageStore: the interface to log, consume queues and index.

It opens an existing store (`startup.opener`), stores and returns messages, runs maintenance,
reports arrivals to one listener, and closes in order.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress

from rmq_spark.errors import RecordError
from rmq_spark.wire.message.record import StoredMessage, decode_record
from rmq_spark.wire.remoting.framing import Buffer

from ..common.recent_losses import RecentLosses
from .append.chunk_appender import AdmitFunction, ChunkAppender, Sizes, run_steps
from .append.column_batches import ColumnBatch
from .append.message_appender import MessageAppender
from .append.record_encoding import (
    RecordDraft,
    RecordRun,
    RecordTemplate,
    UniformParts,
)
from .batch_commit.coordinator import StagedBatches
from .components import WRITTEN_DIRECTORIES, StoreComponents
from .config import BrokerRole, StoreConfig
from .dispatch.dispatcher import MessageArrivingListener
from .dispatch.reput import ReputSupervisor
from .errors import (
    Degradation,
    StartInterrupted,
    StoreError,
    StoreFailed,
    UnreadableFile,
    describe_error,
    is_retryable,
    is_transient,
)
from .files.disk import LocalDisk
from .files.proof_files import ProofFiles
from .log.flusher import FlushService
from .maintenance.checkpointer import Checkpointer, delete_topic
from .maintenance.cleaner import Cleaner
from .queues.consume_queue import QueueBounds
from .read.entry_selection import DEFAULT_LIMITS, GetLimits, MessageFilter
from .read.message_reader import MessageReader, OffsetsOnlyPredicate
from .read.time_lookup import KeyQuery, TimeLookup
from .results import (
    GetMessageResult,
    PhysicalOffset,
    PutMessageResult,
    PutMessageStatus,
    QueueOffset,
    StoreState,
)
from .startup.directory_lock import AbortFile, lock_directory, make_root
from .startup.opener import ProgressCallback, StoreOpening

_log = logging.getLogger(__name__)


class MessageStore:
    """One store in one directory. The constructor recovers and opens it; `shutdown` closes it."""

    def __init__(
        self,
        config: StoreConfig,
        disk: LocalDisk,
        now_ms: Callable[[], int],
        listener: MessageArrivingListener | None = None,
        wake_reput: Callable[[], object] | None = None,
        random_bytes: Callable[[int], bytes] = os.urandom,
        on_progress: ProgressCallback | None = None,
    ) -> None:
        """Open a store; ``listener`` gets later arrivals, not messages that recovery finds.

        ``on_progress`` gets the progress of the start, and may end it. ``wake_reput`` is called, in
        any thread, when `reput` has something to do; by default `reput` runs at once, in the thread
        that appended or flushed.

        Raises:
            StoreInUse, ForeignFile, DamagedTable: As `store.errors` says. Nothing was changed.
            StartInterrupted: ``on_progress`` ended the start.
        """
        self._wake_reput: Callable[[], object] = wake_reput or self.reput
        is_slave = config.broker_role is BrokerRole.SLAVE
        self._slave_reason = "the broker is read-only: brokerRole=SLAVE" if is_slave else None
        self._failure: str | None = None
        self._closing_reason: str | None = None
        self._checkpoint_degradation = Degradation("no checkpoint is taken")
        self._start_degradation = Degradation(
            "repairs of the start are not finished, and messages are refused"
        )
        root = config.store_path_root_dir
        below = make_root(disk, root, WRITTEN_DIRECTORIES)
        self._lock = lock_directory(disk, root, below)
        self._components = parts = StoreComponents(config, disk, now_ms)
        self._log, self._queues, self._reput = parts.log, parts.queues, parts.reput
        self._is_sync, self.deleted_topic_files = parts.is_sync, parts.queues.deleted_topic_files
        self._reput_supervisor = ReputSupervisor(parts.reput, self._fail)
        self._checkpointer = Checkpointer(parts)
        self._abort_file = AbortFile(disk, root, random_bytes)
        self.proof_files = ProofFiles(disk, root, parts.log.files)
        self.proof_files.discard_leftovers()
        try:
            self._opening = StoreOpening(parts, self._checkpointer, self._abort_file, on_progress)
            self.finish_opening()
        except BaseException:
            self._close_files()
            raise
        self._create_services(config, now_ms)
        try:
            self.flusher.start()
        except BaseException:
            self._close_files()
            raise
        if listener is not None and not is_slave:
            self._reput.set_listener(listener)
        if self._start_degradation.text is not None:
            self._wake_reput()

    def _create_services(self, config: StoreConfig, now_ms: Callable[[], int]) -> None:
        parts, why = self._components, self.unavailable_reason
        recent_runs = parts.recent_writes.runs
        self._appender = MessageAppender(
            self._log, self._queues, config.max_message_size, why, recent_runs
        )
        self._chunk_appender = ChunkAppender(self._log, self._appender, parts.recent_writes.chunks)
        self.staged_batches = StagedBatches(
            parts, self._appender, why, self.flush_future, self._wake, self._fail
        )
        next_offset = self._appender.next_offset
        self._reader = MessageReader(parts, lambda: self.state().degradation, next_offset)
        self._time_lookup = TimeLookup(parts, self._reader)
        self._key_query = KeyQuery(parts, self.record_at)
        self.cleaner = Cleaner(
            parts,
            self._checkpointer,
            now_ms,
            self.save_checkpoint,
            self._stored_ms,
        )
        with suppress(OSError):  # the first cleanup reports the error
            self.cleaner.refuse_when_full()
        self.flusher = FlushService(
            self._log.flush,
            # With ASYNC_FLUSH, messages are visible before they are flushed.
            self._wake_reput if self._is_sync else lambda: None,
            self._fail,
            None if self._is_sync else config.flush_interval_commit_log_ms / 1000,
        )

    @property
    def is_opening(self) -> bool:
        """True if the start is unfinished, so that `finish_opening` must be called again later."""
        return not self._opening.is_finished and self._failure is None

    def finish_opening(self) -> bool:
        """Do the remaining writes of the start; return False after a shortage."""
        if self._opening.is_finished:
            return True
        if self._start_degradation.text is not None:
            with suppress(OSError):  # accept messages at once if there is room now
                self.cleaner.refuse_when_full()
        try:
            self._opening.finish()
        except StartInterrupted:
            raise
        except Exception as error:
            # the first error is retried only if it is transient, later ones if they are retryable
            is_waiting = self._start_degradation.text is not None
            if not (is_retryable(error) if is_waiting else is_transient(error)):
                self._fail(StoreFailed("the start has failed", error), is_logged=not is_waiting)
                raise
            self._start_degradation.begin(error)
            return False
        self._start_degradation.end()
        return True

    # ---- Putting messages.

    @property
    def losses(self) -> RecentLosses:
        """The losses of the last hour; the other parts of the broker report theirs here, too."""
        return self._components.losses

    @property
    def record_bytes_max(self) -> int:
        """The maximum size of the record of a client's message, in bytes."""
        return self._appender.record_room

    def put_message(self, message: StoredMessage) -> PutMessageResult:
        """Append a message that was stored before; under SYNC_FLUSH wait for `flush_future`."""
        return self._wake_after_append(self._appender.put_message(message))

    def put_together(self, messages: Sequence[StoredMessage]) -> Sequence[PutMessageResult]:
        """Append messages that were stored before, all or none, back to back in one write."""
        results = self._appender.put_together(messages)
        self._wake_after_append(results[0])
        return results

    def put_draft(self, draft: RecordDraft) -> PutMessageResult:
        """Append one message whose texts are already encoded as bytes."""
        return self._wake_after_append(self._appender.put_draft(draft))

    def put_buffered(
        self, template: RecordTemplate, body: Buffer, properties: bytes, born_timestamp: int
    ) -> PutMessageResult | None:
        """Buffer one message for the next `write_buffered`; return None, or why it is refused."""
        return self._appender.put_buffered(template, body, properties, born_timestamp)

    def put_run(self, run: RecordRun) -> PutMessageResult | None:
        """Append messages in one write, all or none; return None if `put_buffered` must be used."""
        result = self._appender.put_run(run)
        return None if result is None else self._wake_after_append(result)

    def write_buffered(self) -> Sequence[PutMessageResult]:
        """Write the buffered messages; return the results of all, in their order.

        Before this returns, no consumer can read them, and no response may be sent.
        """
        if not self._appender.write_buffered():
            return ()
        if not self._is_sync:
            self._wake()
        return self._appender.results()

    def put_batch(self, batch: RecordRun | ColumnBatch) -> PutMessageResult:
        """Append the messages of a batch of one queue, all or none."""
        return self._wake_after_append(self._appender.put_batch(batch))

    def put_large(
        self,
        template: RecordTemplate,
        parts: Iterable[UniformParts],
        born_timestamp: int,
        admit: AdmitFunction,
    ) -> Generator[Future[None] | None, None, tuple[PutMessageResult, Sequence[int]]]:
        """Append a very large batch of one template in steps, the last of which calls ``admit``."""
        result, sizes = yield from self._chunk_appender.put_large(
            template, parts, born_timestamp, admit
        )
        return self._wake_after_append(result), sizes

    def put_chunk(self, records: Buffer, sizes: Sizes) -> PutMessageResult:
        """Append encoded records of one queue."""
        return run_steps(self.put_chunk_in_steps(records, sizes, lambda: None))

    def put_chunk_in_steps(
        self, records: Buffer, sizes: Sizes, admit: AdmitFunction
    ) -> Generator[Future[None] | None, None, PutMessageResult]:
        """Append encoded records of one queue in steps, the last of which calls ``admit``.

        ``records`` must not change meanwhile.
        """
        return self._wake_after_append(
            (yield from self._chunk_appender.put_chunk(records, sizes, admit))
        )

    def _wake_after_append(self, result: PutMessageResult) -> PutMessageResult:
        if result.status is PutMessageStatus.PUT_OK and not self._is_sync:
            self._wake()
        return result

    def _wake(self) -> None:
        try:
            self._wake_reput()
        except Exception as error:
            if not is_transient(error):
                raise
            self._reput_supervisor.degradation.begin(error)  # the messages are stored nevertheless

    def flush_future(self, end_offset: PhysicalOffset) -> Future[None]:
        """Return a future of a flush up to an offset; one flush serves many futures."""
        return self.flusher.flush_future(end_offset)

    def wait_flushed(self) -> None:
        """Wait until everything written is on the disk, a flush fails, or a shortage delays it."""
        self.flusher.wait_flushed(self._log.written_offset)

    def wait_until_stored(
        self, result: PutMessageResult, timeout_seconds: float = 5.0
    ) -> PutMessageResult:
        """Return the final result; under SYNC_FLUSH, wait until the message is on the disk."""
        if not self._is_sync or result.status is not PutMessageStatus.PUT_OK:
            return result
        try:
            self.flush_future(result.end_offset).result(timeout_seconds)
        except TimeoutError:
            return result._replace(status=PutMessageStatus.FLUSH_DISK_TIMEOUT)
        except StoreError as error:
            return result._replace(status=PutMessageStatus.SERVICE_NOT_AVAILABLE, remark=str(error))
        return result

    def confirm_offset(self) -> PhysicalOffset:
        """Return the confirm offset: messages before it survive a crash."""
        return self._components.confirm_offset()

    def reput(self, should_stop: Callable[[], bool] = lambda: False) -> bool:
        """Dispatch confirmed messages to queues and index; return whether all are dispatched.

        This notifies the listener. It returns False after a transient or a read error, which
        `state` reports as degraded, or if ``should_stop`` ends the run. After any other failure,
        the store accepts no more messages.
        """
        return self._reput_supervisor.run(should_stop)

    @property
    def is_reput_degraded(self) -> bool:
        """True if the last `reput` ended with an error that is retried."""
        return self._reput_supervisor.degradation.text is not None

    def retry_degraded(self) -> None:
        """Retry degraded dispatch and writes; call this periodically."""
        self._appender.probe_writable()
        if self.is_reput_degraded:
            self._wake_reput()

    # ---- Getting messages.

    def get_message(
        self,
        topic: str,
        queue_id: int,
        queue_offset: QueueOffset,
        *,
        count_max: int = DEFAULT_LIMITS.count_max,
        bytes_max: int = DEFAULT_LIMITS.bytes_max,
        scan_max: int = DEFAULT_LIMITS.scan_max,
        message_filter: MessageFilter | None = None,
        wants_offsets_only: OffsetsOnlyPredicate | None = None,
    ) -> GetMessageResult:
        """Return messages of a queue from an offset on, by default as many as RocketMQ would.

        If ``wants_offsets_only`` accepts the positions and sizes of the records, return only these.
        """
        where = topic, queue_id, queue_offset
        limits = GetLimits(max(count_max, 1), bytes_max, scan_max)
        return self._reader.get_message(*where, limits, message_filter, wants_offsets_only)

    def queue_offsets(
        self, topic: str, queue_id: int, *, allow_incomplete: bool = False
    ) -> QueueBounds:
        """Return a queue's first and next offset.

        With ``allow_incomplete``, a start that has not dispatched all messages yet is no error.
        """
        return self._reader.queue_offsets(topic, queue_id, allow_incomplete=allow_incomplete)

    def queue_nums(self) -> dict[str, int]:
        """Return, by topic, one more than the highest number of a queue that has messages."""
        return {topic: queue_id + 1 for topic, queue_id, _ in self._queues}

    def offset_by_time(
        self, topic: str, queue_id: int, timestamp: int, *, upper: bool = False
    ) -> QueueOffset:
        """Return the first offset stored at or after a time; upper: the last at or before it."""
        return self._time_lookup.offset_by_time(topic, queue_id, timestamp, upper=upper)

    def earliest_timestamp(self, topic: str, queue_id: int) -> int:
        """Return when the first message of a queue was stored, in ms; -1 for an empty queue."""
        return self._time_lookup.earliest_timestamp(topic, queue_id)

    def record_at(self, physical_offset: PhysicalOffset) -> Buffer | None:
        """Return the record that starts at a physical offset, or None."""
        is_visible = physical_offset < self._reput.visible_offset()
        return self._reader.record_at(physical_offset) if is_visible else None

    def query_message(
        self, topic: str, key: str, max_num: int, begin_ms: int, end_ms: int
    ) -> list[Buffer]:
        """Return records with a key or a unique id, stored within a time span, newest first."""
        steps = self.query_message_in_steps(topic, key, max_num, begin_ms, end_ms)
        return [record for record in steps if record is not None]

    def query_message_in_steps(
        self, topic: str, key: str, max_num: int, begin_ms: int, end_ms: int
    ) -> Iterator[Buffer | None]:
        """Yield the results of `query_message`, or None for a step without a result."""
        return self._key_query.query_in_steps(topic, key, max_num, begin_ms, end_ms)

    # ---- Maintenance.

    @property
    def is_flush_due(self) -> bool:
        """True if a checkpoint is due early because too many files wait for a flush."""
        return self._components.pool.has_many_unflushed

    def save_checkpoint(self) -> bool:
        """Flush log, queues and index, and save a checkpoint; return False after a shortage.

        This ends early when the store is closing. After a failed flush, the store accepts no more
        messages.
        """
        return self._save_checkpoint(lambda: self._closing_reason is not None)

    def _save_checkpoint(self, should_stop: Callable[[], bool]) -> bool:
        if not self._opening.is_finished:
            return False
        try:
            # otherwise the next start would find refused messages, even after a clean stop
            self._appender.wipe_refused()
            is_saved = self._checkpointer.save(should_stop)
        except Exception as error:
            if is_retryable(error):
                self._checkpoint_degradation.begin(error)
                return False
            if isinstance(error, (OSError, StoreFailed, RecordError)):
                self._fail(StoreFailed("a checkpoint failed", error))
            raise
        if is_saved:
            self._checkpoint_degradation.end()
        return is_saved

    def delete_topic(self, topic: str) -> None:
        """Delete a topic. Its messages stay in the log until they expire, but cannot be read.

        Messages sent during the call belong to a new topic of that name, whose offsets continue
        after the old ones. A topic created later begins at offset 0, because no crash can bring the
        old messages back; only if the files of the old queues cannot be moved away, its offsets
        continue as well.

        Errors are those of `checkpointer.delete_topic`.
        """
        try:
            delete_topic(self._components, self._checkpointer, self._appender, topic)
        except StoreFailed as error:
            self._fail(error)
            raise
        self._wake_reput()

    @property
    def half_deleted_topics(self) -> Sequence[str]:
        """Deleted topics that wait for `finish_deletion`, because other data of them may exist."""
        return self._checkpointer.half_deleted

    def was_deleted(self, topic: str, physical_offset: PhysicalOffset) -> bool:
        """Return whether a topic was deleted after the log reached this physical offset."""
        return physical_offset < self._components.dispatcher.deleted_topics.get(topic, 0)

    def finish_deletion(self, topic: str) -> None:
        """Record that no data of a deleted topic, such as offsets of groups, remains.

        A crash or an error before that leaves the topic among `half_deleted_topics`.
        """
        self._checkpointer.finish_deletion(topic)

    def clean(self) -> int:
        """Delete expired files, or younger ones if the disk is too full; return their number."""
        return self.cleaner.clean()

    def _stored_ms(self, physical_offset: PhysicalOffset) -> int | None:
        """Return when the message at a log offset was stored; None if this is unknown."""
        try:
            record = self._reader.record_at(physical_offset)
        except UnreadableFile:
            return None
        return None if record is None else decode_record(record, check_crc=False).store_timestamp

    def unavailable_reason(self) -> str | None:
        """Return why messages are refused now; None if accepted."""
        degradation = (
            self._start_degradation.text
            or self._log.flush_degradation.text
            or self.staged_batches.stuck_reason()
        )
        refusal = self._slave_reason or self.cleaner.refusal_reason
        return self._failure or self._closing_reason or refusal or degradation

    @property
    def clock_behind_ms(self) -> int:
        """Milliseconds by which the clock lags the last message; new ones get its timestamp."""
        return self._log.clock_behind_ms

    def state(self) -> StoreState:
        """Return the state of the store for its operator: offsets, holes, and what fails."""
        log = self._log
        of_log = self._start_degradation, log.write_degradation, log.flush_degradation
        degradations = (
            *of_log,
            self._reput_supervisor.degradation,
            self._checkpoint_degradation,
            self.staged_batches.degradation,
        )
        return StoreState(
            min_offset=log.min_offset,
            written_offset=log.written_offset,
            flushed_offset=log.flushed_offset,
            reput_from_offset=self._reput.reput_from_offset,
            holes=self._reput.holes,
            failure=str(log.failure) if log.failure else self._failure,
            unwritable_reason=log.unwritable_reason,
            degradation="; ".join(each.text for each in degradations if each.text is not None)
            or None,
            recovered_from_crash=self._opening.recovered_from_crash,
            lost_bytes=self._opening.lost_bytes,
        )

    def _fail(self, failure: StoreError, *, is_logged: bool = False) -> None:
        """Accept no more messages; keep the first failure, and log it unless it ``is_logged``."""
        if self._failure is None and not is_logged:
            _log.error("the store accepts no messages until a restart: %s", failure)
        self._failure = self._failure or str(failure)

    def stop_accepting(self, reason: str) -> None:
        """Refuse messages from now on. Accepted ones are still flushed and dispatched."""
        self._closing_reason = reason

    def shutdown(self) -> str | None:
        """Make everything durable, save a checkpoint, and release the directory.

        Returns:
            What was not saved, so that the next start recovers as after a crash; None if all was.
        """
        self.write_buffered()
        self.stop_accepting("the store has been shut down")
        self.flusher.stop()
        try:
            if self.state().failure is None:
                self.reput()
            if not self.state().failure and self._checkpointer.save_last(self._save_checkpoint):
                self._abort_file.remove()
                return None
        except Exception as error:
            if not is_transient(error):
                raise
            return describe_error(error)
        finally:
            self._close_files()
        return self.state().unsaved_reason if self._opening.is_finished or self._failure else None

    def _close_files(self) -> None:
        self.proof_files.close()
        try:
            self._components.close()
        finally:
            self._lock.release()
