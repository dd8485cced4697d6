"""StateTables: the small tables of a broker, each with its file below ``config/``.

    topics.json  subscriptionGroup.json  consumerOffset.json  delayOffset.json  kvConfig.json
    users.json  acls.json  recentTopics.json  messageRequestMode.json
    consumerOrderInfo.json

Offsets change all the time and are saved every few seconds. All others change rarely and are saved
at once, or within a second.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rmq_spark.errors import BodyError
from rmq_spark.wire.bodies import decode_body
from rmq_spark.wire.bodies.configs import (
    ConsumerOffsetSerializeWrapper,
    DelayOffsetSerializeWrapper,
    SubscriptionGroupWrapper,
    TopicConfigSerializeWrapper,
)
from rmq_spark.wire.bodies.pop import ConsumerOrderInfoWrapper, MessageRequestModeWrapper

from ..auth.user_tables import ACLS_FILE, USERS_FILE, AclsBody, AclTable, UsersBody, UserTable
from ..settings.config import BrokerConfig
from ..state.tables.consumer_offset import ConsumerOffsetManager
from ..state.tables.consumer_order_info import ConsumerOrderInfoManager
from ..state.tables.kv_config import KVConfigs, KVConfigSerializeWrapper
from ..state.tables.message_request_mode import MessageRequestModes
from ..state.tables.subscription_group import SubscriptionGroupManager
from ..state.tables.table import SavedTable
from ..state.tables.topic_config import SystemTopics, TopicConfigManager
from ..store.files.disk import LocalDisk
from ..store.files.json_table import JsonTable

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class _TopicQueueMappings:
    topic_queue_mapping_info_map: Mapping[str, Any] = field(default_factory=dict)


class _SaveAfterFlush:
    """A table of offsets, saved after the messages to which they refer."""

    def __init__(
        self,
        table: JsonTable[ConsumerOffsetSerializeWrapper],
        make_log_durable: Callable[[], object],
    ) -> None:
        self.table = table
        self.load = table.load
        self._make_log_durable = make_log_durable

    def save(self, value: ConsumerOffsetSerializeWrapper) -> None:
        self._make_log_durable()
        self.table.save(value)


class _SaveAndFinishDeletions:
    """Saves the table of topics, then completes the deletion of topics missing from it.

    The store has recorded that these topics are being deleted. That record is removed last: until
    then, the next start removes such a topic and its offsets, and `TopicConfigManager` does not
    recreate it.
    """

    def __init__(
        self,
        table: JsonTable[TopicConfigSerializeWrapper],
        save_offsets: Callable[[], object],
        half_deleted_topics: Callable[[], Sequence[str]],
        finish_deletion: Callable[[str], object],
    ) -> None:
        self.load = table.load
        self._table = table
        self._save_offsets = save_offsets
        self._half_deleted_topics = half_deleted_topics
        self._finish_deletion = finish_deletion

    def save(self, value: TopicConfigSerializeWrapper) -> None:
        deleted_topics = [
            topic for topic in self._half_deleted_topics() if topic not in value.topic_config_table
        ]
        if deleted_topics:
            self._save_offsets()
        self._table.save(value)
        for topic in deleted_topics:
            self._finish_deletion(topic)


@dataclass(frozen=True)
class StateTables:
    """All state of a broker except its messages."""

    topics: TopicConfigManager
    groups: SubscriptionGroupManager
    offsets: ConsumerOffsetManager
    kv_configs: KVConfigs
    users: UserTable
    acls: AclTable
    request_modes: MessageRequestModes
    order_info: ConsumerOrderInfoManager
    topic_table: JsonTable[TopicConfigSerializeWrapper]
    delay_offset_table: JsonTable[DelayOffsetSerializeWrapper]
    files: tuple[JsonTable[Any], ...]

    @classmethod
    def load(
        cls,
        config: BrokerConfig,
        disk: LocalDisk,
        now_ms: Callable[[], int],
        make_log_durable: Callable[[], object] = lambda: None,
        half_deleted_topics: Callable[[], Sequence[str]] = tuple,
        finish_deletion: Callable[[str], object] = lambda _: None,
    ) -> StateTables:
        """Load all tables from the directory of an open store.

        ``make_log_durable`` is called in the thread that saves offsets of groups, before they are
        saved: after a power loss, offsets that refer to lost messages would make groups skip the
        next ones. ``half_deleted_topics`` returns the topics whose deletion the store has recorded.
        ``finish_deletion`` is called with each of them, in the thread that saves topics, when the
        topic and its offsets are gone from the tables.

        Raises:
            DamagedTable: Neither a table nor its backup can be read.
        """
        directory = config.store.store_path_root_dir / "config"

        tables: list[JsonTable[Any]] = []

        def table(name: str, body_type: type[Any], **how: bool) -> JsonTable[Any]:
            tables.append(JsonTable(disk, directory / name, body_type, **how))
            return tables[-1]

        offsets = ConsumerOffsetManager(
            _SaveAfterFlush(
                table("consumerOffset.json", ConsumerOffsetSerializeWrapper), make_log_durable
            ),
            max_offsets=config.max_consumer_offsets,
        )
        topic_table = table("topics.json", TopicConfigSerializeWrapper)
        topics = TopicConfigManager(
            _SaveAndFinishDeletions(
                topic_table, offsets.save, half_deleted_topics, finish_deletion
            ),
            table("recentTopics.json", TopicConfigSerializeWrapper),
            system=SystemTopics(
                cluster_name=config.broker_cluster_name,
                broker_name=config.broker_name,
                default_queue_nums=config.default_topic_queue_nums,
                delay_levels=len(config.store.message_delay_level_ms),
                revive_queues=config.pop.revive_queue_nums,
            ),
            auto_create=config.auto_create_topic_enable,
            max_topics=config.max_topics,
            max_queues=config.max_queues,
            now_ms=now_ms,
            static_topics=_static_topics(disk, directory / "topicQueueMapping.json"),
        )
        groups = SubscriptionGroupManager(
            table("subscriptionGroup.json", SubscriptionGroupWrapper),
            auto_create=config.auto_create_subscription_group,
            max_groups=config.max_groups,
            now_ms=now_ms,
        )
        return cls(
            topics=topics,
            groups=groups,
            offsets=offsets,
            kv_configs=KVConfigs(table("kvConfig.json", KVConfigSerializeWrapper)),
            users=UserTable(table(USERS_FILE, UsersBody, is_secret=True, keeps_older=False)),
            acls=AclTable(table(ACLS_FILE, AclsBody, keeps_older=False)),
            request_modes=MessageRequestModes(
                table("messageRequestMode.json", MessageRequestModeWrapper)
            ),
            order_info=ConsumerOrderInfoManager(
                table("consumerOrderInfo.json", ConsumerOrderInfoWrapper),
                now_ms=now_ms,
                queue_nums=topics.read_queue_nums,
                has_group=groups.groups.__contains__,
            ),
            topic_table=topic_table,
            delay_offset_table=table("delayOffset.json", DelayOffsetSerializeWrapper),
            files=tuple(tables),
        )

    def warn_of_damage(self) -> None:
        """Log a warning for tables read from a backup, which may lack the last saved changes."""
        for table in self.files:
            table.warn_of_damage()

    @property
    def may_miss_topics(self) -> bool:
        """True if topics were loaded from a backup or from no file, so that some may be missing."""
        return self.topic_table.loaded_from != self.topic_table.path

    @property
    def has_changed_configurations(self) -> bool:
        """True if `save_configurations` has something to save."""
        return any(table.is_dirty for table in self._configurations())

    def save_configurations(self) -> None:
        """Make changed topics, groups, key-value configurations, users and lists durable."""
        for table in self._configurations():
            table.save()

    def _configurations(self) -> tuple[SavedTable[Any], ...]:
        return (
            *(self.topics, self.groups, self.kv_configs),
            *(self.users, self.acls, self.request_modes),
        )

    def save(self) -> None:
        """Make all changes durable."""
        self.save_configurations()
        self.save_offsets()

    def save_offsets(self) -> None:
        """Make changed offsets of groups, and the records of pops in order, durable."""
        self.offsets.save()
        self.order_info.save()


def _static_topics(disk: LocalDisk, path: Path) -> frozenset[str]:
    """Return the static topics in RocketMQ's file, which this broker only reads."""
    try:
        data = disk.read(path)
    except FileNotFoundError:
        return frozenset()
    except IsADirectoryError:
        data = b""
    try:
        return frozenset(decode_body(_TopicQueueMappings, data).topic_queue_mapping_info_map)
    except BodyError as error:
        _log.warning(
            "%s cannot be read; static topics are served as ordinary ones: %s", path, error
        )
        return frozenset()
