"""TableReconciliation: compares the saved tables with the log at the start, and corrects them.

Messages and tables are saved separately, and an operator may have restored an older copy of one.
Missing topics that have messages are restored, interrupted deletions are completed, and offsets
that would make groups skip messages are moved. What cannot be corrected is logged.

The broker may serve while it still opens queues. Steps that need all queues run when they are open.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from rmq_spark.errors import format_count
from rmq_spark.wire.message.record_layout import RECORD_BYTES_MIN
from rmq_spark.wire.names import SCHEDULE_TOPIC, topic_fault

from ..state.tables.topic_config import QUEUE_NUMS_MAX
from ..store.config import StoreConfig
from ..store.errors import is_transient
from ..store.message_store import MessageStore
from .state_tables import StateTables

_log = logging.getLogger(__name__)
_DEFAULT_QUEUE_NUMS = 4
"""The number of queues that Java's producers request."""
_HOUR_MS = 3_600_000
_NAMES_MAX = 5


class TableReconciliation:
    """The reconciliation at one start."""

    def __init__(self, store: MessageStore, tables: StateTables, default_queue_nums: int) -> None:
        """Store the opened parts, and the number of queues of an auto-created topic."""
        self._store = store
        self._tables = tables
        self._queue_nums_min = min(_DEFAULT_QUEUE_NUMS, default_queue_nums)

    def reconcile_at_start(self) -> None:
        """Make all corrections that are possible before all queues are open."""
        self.restore_missing_topics()
        self._reconcile_offsets()

    def reconcile_complete_queues(self) -> None:
        """Make the corrections that need all queues to be open."""
        self.restore_missing_topics()
        self._clamp_offsets()

    def restore_missing_topics(self) -> None:
        """Restore topics and queues that are missing and have messages.

        Queues that are missing in the newest table stay missing, because an operator has removed
        them.
        """
        topics = self._tables.topics
        for topic, queues in self._store.queue_nums().items():
            known, queue_nums = topics.get(topic), min(queues, QUEUE_NUMS_MAX)
            if known is None and topic_fault(topic) is None:
                self.recreate_topic(topic, queue_nums)
            elif known is not None and self._tables.may_miss_topics:
                fewest = min(known.read_queue_nums, known.write_queue_nums)
                if fewest < queue_nums:
                    _log.warning(
                        "topic %s is restored to %d queues, which have messages: the old table "
                        "has %d",
                        topic,
                        queue_nums,
                        fewest,
                    )
                    topics.add_queues(topic, queue_nums)

    def recreate_topic(self, topic: str, queue_nums: int) -> int | None:
        """Create a topic again; return its number of queues, or None if it is being deleted."""
        topics = self._tables.topics
        if topic in topics.deleting:
            return None
        queue_nums = max(min(queue_nums, QUEUE_NUMS_MAX), self._queue_nums_min)
        config = topics.create_in_send_back(topic, queue_nums)
        _log.warning(
            "topic %s was missing, and is restored with messages. If you deleted it, delete it "
            "again",
            topic,
        )
        return config.write_queue_nums

    def log_warnings(self, config: StoreConfig) -> None:
        """Log what is damaged or missing, after all tables have been read."""
        self._tables.warn_of_damage()
        self._warn_of_missing_delay_offsets()
        self._warn_of_unserved_features()
        _warn_of_long_delays(config)
        _warn_of_small_files(config, self._store.record_bytes_max)

    def _reconcile_offsets(self) -> None:
        """Correct offsets that would make groups skip messages.

        Such offsets belong to a deleted topic, or to a log that was longer. Topics whose deletion
        was interrupted by a crash are deleted with their offsets.
        """
        store, offsets, topics = self._store, self._tables.offsets, self._tables.topics
        half_deleted = store.half_deleted_topics
        recreated = store.queue_nums() if half_deleted else {}
        for topic in half_deleted:
            offsets.discard_topic(topic)
            if topic not in recreated:
                topics.begin_deletion(topic)
                topics.delete(topic)
        if not store.is_opening:  # otherwise the queues are not complete yet
            self._clamp_offsets()
        try:
            offsets.save()
            for topic in half_deleted:
                if topic in recreated:  # all other deletions end when the table of topics is saved
                    store.finish_deletion(topic)
        except OSError as error:
            if not is_transient(error):
                raise

    def _clamp_offsets(self) -> None:
        ends = self._tables.offsets.clamp(lambda *queue: self._store.queue_offsets(*queue).next)
        for topic, count in ends.items():
            _log.warning(
                "%d offsets past the ends of %s are reset: the log was longer, or they were edited",
                count,
                topic,
            )

    def _warn_of_unserved_features(self) -> None:
        topics = self._tables.topics
        by_feature: dict[str, list[str]] = {}
        for name, config in topics.topics.items():
            feature = topics.unserved_feature(config)
            if feature is not None:
                by_feature.setdefault(feature, []).append(name)
        for feature, names in by_feature.items():
            _log.warning(
                "RocketMQ 5's feature %s is not served: %s can only be read",
                feature,
                _describe_topics(names),
            )
        prioritized = [
            name
            for name, config in topics.topics.items()
            if (config.attributes or {}).get("message.type") == "PRIORITY"
        ]
        if prioritized:
            _log.warning(
                "priorities of RocketMQ 5 are not served: %s, delivered in order of arrival",
                _describe_topics(prioritized),
            )

    def _warn_of_missing_delay_offsets(self) -> None:
        table = self._tables.delay_offset_table
        # A broker that was killed may have had no time to save it.
        was_saved = not self._store.state().recovered_from_crash
        if was_saved and table.loaded_from is None and SCHEDULE_TOPIC in self._store.queue_nums():
            _log.warning(
                "%s and its backup are missing: delayed messages in the log are delivered, "
                "perhaps again",
                table.path,
            )


def _warn_of_small_files(config: StoreConfig, record_bytes_max: int) -> None:
    if config.max_message_size + RECORD_BYTES_MIN > record_bytes_max:
        _log.warning(
            "maxMessageSize=%d is too large for mappedFileSizeCommitLog=%d: messages over %d "
            "bytes, with properties, are refused. Lower it",
            config.max_message_size,
            config.mapped_file_size_commit_log,
            record_bytes_max - RECORD_BYTES_MIN,
        )


def _warn_of_long_delays(config: StoreConfig) -> None:
    longest_hours = max(config.message_delay_level_ms) / _HOUR_MS
    if longest_hours > config.file_reserved_time_hours:
        _log.warning(
            "messageDelayLevel has delays of up to %.4g hours, and fileReservedTime=%d may delete"
            " such messages first. Raise fileReservedTime",
            longest_hours,
            config.file_reserved_time_hours,
        )


def _describe_topics(names: Sequence[str]) -> str:
    shown = ", ".join(sorted(names)[:_NAMES_MAX])
    more = ", ..." if len(names) > _NAMES_MAX else ""
    return f"{format_count(len(names), 'topic')} ({shown}{more})"
