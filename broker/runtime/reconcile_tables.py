"""TableCheck: a start holds what the tables say against what the log has, and corrects the tables.

Messages and tables are saved apart, and somebody may have put an older copy of one in its place.
Topics come back for the messages that they have (`TopicRestore`), deletions that a kill cut short are
completed, and offsets that would let groups pass over messages are moved. What cannot be corrected
is told.

A start may go on opening queues while the broker serves: what needs all of them is done when these
are complete. This module knows no loop and no clients.
"""

from __future__ import annotations

import logging

from rmq_spark.wire.names import SCHEDULE_TOPIC
from rmq_spark.wire.record_layout import RECORD_BYTES_MIN

from ..store.config import StoreConfig
from ..store.errors import is_transient
from ..store.message_store import MessageStore
from .state_tables import StateTables
from .topic_restore import TopicRestore

_log = logging.getLogger(__name__)
_HOUR_MS = 3_600_000


class TableReconciliation:
    """The check of one start."""

    def __init__(self, store: MessageStore, tables: StateTables, default_queue_nums: int) -> None:
        """Take what has been opened, and how many queues a topic has that is made unasked."""
        self._store = store
        self._tables = tables
        self.topic_restore = TopicRestore(tables, default_queue_nums)

    def reconcile_at_start(self) -> None:
        """Correct what can be known before all queues are complete."""
        self.topic_restore.restore_missing(self._store.queue_nums())
        self._reconcile_offsets()

    def reconcile_complete_queues(self) -> None:
        """Do what has been left until then."""
        self.topic_restore.restore_missing(self._store.queue_nums())
        self._clamp_offsets()

    def log_warnings(self, config: StoreConfig) -> None:
        """Tell what has been damaged or is missing, once all tables have been read."""
        self._tables.warn_of_damage()
        self._warn_of_missing_delay_offsets()
        _warn_of_long_delays(config)
        _warn_of_small_files(config, self._store.record_bytes_max)

    def _reconcile_offsets(self) -> None:
        """Correct offsets that would let groups pass over messages.

        Such offsets are of a deleted topic, or of a log that was longer. Topics whose deletion was
        under way when the broker was killed are deleted, and their offsets forgotten.
        """
        store, offsets, topics = self._store, self._tables.offsets, self._tables.topics
        half_deleted = store.half_deleted_topics
        made_again = store.queue_nums() if half_deleted else {}
        for topic in half_deleted:
            offsets.forget_topic(topic)
            if topic not in made_again:
                topics.begin_deletion(topic)
                topics.delete(topic)
        if not store.is_opening:  # else the queues are not complete yet
            self._clamp_offsets()
        try:
            offsets.save()
            for topic in half_deleted:
                if topic in made_again:  # all others end when the table of topics is saved
                    store.finish_deletion(topic)
        except OSError as error:
            if not is_transient(error):
                raise

    def _clamp_offsets(self) -> None:
        ends = self._tables.offsets.clamp(lambda *queue: self._store.queue_offsets(*queue).next)
        for topic, count in ends.items():
            _log.warning(
                "%d offsets of groups were behind the ends of their queues of %s, and are "
                "there now: the log has been longer, or somebody has put them there",
                count,
                topic,
            )

    def _warn_of_missing_delay_offsets(self) -> None:
        table = self._tables.delay_offset_table
        # One that was killed may have had no time to save it.
        was_saved = not self._store.state().recovered_from_crash
        if was_saved and table.loaded_from is None and SCHEDULE_TOPIC in self._store.queue_nums():
            _log.warning(
                "%s is missing, and its backup: which delayed messages were delivered is not "
                "known, and all that the log still has are delivered when they are due; those "
                "that were before come again",
                table.path,
            )


def _warn_of_small_files(config: StoreConfig, record_bytes_max: int) -> None:
    if config.max_message_size + RECORD_BYTES_MIN > record_bytes_max:
        _log.warning(
            "maxMessageSize=%d is more than a file of the commit log has room for: with "
            "mappedFileSizeCommitLog=%d, a message of more than %d bytes, topic and properties "
            "included, is refused. Set maxMessageSize below that",
            config.max_message_size,
            config.mapped_file_size_commit_log,
            record_bytes_max - RECORD_BYTES_MIN,
        )


def _warn_of_long_delays(config: StoreConfig) -> None:
    longest_hours = max(config.message_delay_level_ms) / _HOUR_MS
    if longest_hours > config.file_reserved_time_hours:
        _log.warning(
            "messageDelayLevel has delays of up to %.4g hours, and fileReservedTime=%d keeps "
            "messages for so many: what is delayed for longer may be deleted before it is due",
            longest_hours,
            config.file_reserved_time_hours,
        )
