"""TopicConfigManager: the configuration of all topics, and their creation on demand.

The table is saved as topics.json, in RocketMQ's format. A large table takes long to save, so
requests that create topics one by one do not wait for that:

    request     the topics that changed since the last save ──> recentTopics.json ──> response
    within 1 s  all topics ──> topics.json, and recentTopics.json is deleted

A start adds the topics of recentTopics.json to those of an older topics.json. Only a topic in
topics.json counts as saved, and only such a topic accepts messages: RocketMQ ignores the other
file, and so finds every topic that has messages.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType
from typing import Final, NamedTuple

from rmq_spark.wire.bodies.configs import TopicConfig, TopicConfigSerializeWrapper
from rmq_spark.wire.codes import TopicPermission
from rmq_spark.wire.names import (
    BENCHMARK_TOPIC,
    DEFAULT_TOPIC,
    DLQ_PREFIX,
    NOT_ALLOWED_SEND_TOPICS,
    OFFSET_MOVED_TOPIC,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    SELF_TEST_TOPIC,
    SYSTEM_TOPICS,
    TIMER_TOPIC,
    TRACE_TOPIC,
    dlq_topic,
    is_system_topic,
    light_queue_fault,
    reply_topic,
    retry_topic,
    revive_topic,
    topic_fault,
)

from .table import Change, ClearableTable, NamedTable, Table, check_limit, int32_fault

__all__ = [
    "DLQ_PREFIX",
    "NOT_ALLOWED_SEND_TOPICS",
    "RETRY_PREFIX",
    "SYSTEM_TOPICS",
    "TopicConfigManager",
    "dlq_topic",
    "is_system_topic",
    "retry_topic",
    "topic_fault",
]

QUEUE_NUMS_MAX: Final = 4_096
"""The maximum number of queues of a topic; listing each takes some 15 us of the only thread."""

SMALL_TABLE_TOPICS: Final = 256
"""Up to this number of topics, the table is saved as a whole: that takes some 2 ms."""

RECENT_TOPICS_MAX: Final = 128
"""The maximum topics in recentTopics.json; with more, the table is saved as a whole."""

UNSERVED_ATTRIBUTES: Final[Mapping[tuple[str, str], str]] = {
    ("cleanup.policy", "COMPACTION"): "compaction",
    ("queue.type", "BatchCQ"): "batch queues",
    ("message.type", "LITE"): "lite topics",
}
"""Attributes of topics whose messages RocketMQ keeps in files that this broker does not write."""

_log = logging.getLogger(__name__)
_READ_WRITE = int(TopicPermission.READ | TopicPermission.WRITE)
_INHERIT = int(TopicPermission.INHERIT)
_PERM_MAX = _READ_WRITE | _INHERIT
_BENCHMARK_QUEUES = 1_024
_CLUSTER_QUEUES = 16


class SystemTopics(NamedTuple):
    """Names and sizes of the topics that a broker has from its first start."""

    cluster_name: str
    broker_name: str
    default_queue_nums: int
    """The number of queues of the topic from which new topics inherit."""
    delay_levels: int
    """The delay levels, each with a queue; one no longer configured may still have messages."""
    revive_queues: int

    def configs(self) -> tuple[TopicConfig, ...]:
        """Return the topics that operators may change."""
        inherited = _READ_WRITE | _INHERIT
        return (
            _topic(SELF_TEST_TOPIC, 1),
            _topic(BENCHMARK_TOPIC, _BENCHMARK_QUEUES),
            _topic(self.cluster_name, _CLUSTER_QUEUES, inherited),
            _topic(self.broker_name, 1, inherited),
            _topic(OFFSET_MOVED_TOPIC, 1),
            _topic(TIMER_TOPIC, 1),
            _topic(TRACE_TOPIC, 1),
            _topic(reply_topic(self.cluster_name), 1),
        )


class TopicConfigManager(NamedTable[TopicConfigSerializeWrapper, str, TopicConfig]):
    """All topics. A change is durable after the next `save`."""

    def __init__(
        self,
        table: Table[TopicConfigSerializeWrapper],
        recent_table: ClearableTable[TopicConfigSerializeWrapper],
        *,
        system: SystemTopics,
        auto_create: bool,
        max_topics: int,
        max_queues: int,
        now_ms: Callable[[], int],
        static_topics: Container[str] = (),
    ) -> None:
        """Load the tables; with ``auto_create``, a message to an unknown topic creates the topic.

        ``recent_table`` has the topics that changed after ``table`` was saved. ``static_topics``
        are those that RocketMQ maps to queues of several brokers.
        """
        loaded = table.load(TopicConfigSerializeWrapper())
        topics, version = dict(loaded.topic_config_table), loaded.data_version
        recent = recent_table.load(TopicConfigSerializeWrapper())
        is_newer = recent.data_version.counter > version.counter
        if is_newer:
            topics.update(recent.topic_config_table)
            version = recent.data_version
        super().__init__(table, topics, self.wrapper, self._record_saved)
        self.is_dirty = is_newer
        self._recent_table = recent_table
        self._recent_version = recent.data_version if recent.topic_config_table else None
        self._unsaved_lock = threading.Lock()
        self._unsaved = dict.fromkeys(
            recent.topic_config_table if is_newer else (), version.counter
        )
        self._auto_create = auto_create
        self.max_topics = max_topics
        self.max_queues = max_queues
        self._static_topics = static_topics
        self._now_ms = now_ms
        self._queues = sum(map(_queues_of, topics.values()))
        self._own_topics = {config.topic_name for config in system.configs()}
        self.limited_topics = sum(map(self._is_limited, topics))
        """The number of topics that count towards the limit: all but the system's."""
        self.data_version = version
        for name, config in tuple(topics.items()):
            self._repair(name, config)
        self.saved = loaded
        """All topics as last saved, and their version."""
        self.on_saved: Callable[[], None] = lambda: None
        """Called in the thread that saves, when topics were saved."""
        self.topics: Mapping[str, TopicConfig] = MappingProxyType(self._values)
        self._deleting: dict[str, None] = {}
        self.deleting: Container[str] = self._deleting
        """Topics after `begin_deletion`: until deleted, they accept no messages and cannot be
        created.
        """
        for config in system.configs():
            if config.topic_name not in self._values:
                self._set(config.topic_name, config)
        self._set_default_topic(system.default_queue_nums)
        self._set_internal_topic(SCHEDULE_TOPIC, system.delay_levels)
        self._set_internal_topic(revive_topic(system.cluster_name), system.revive_queues)

    def _repair(self, name: str, config: TopicConfig) -> None:
        """Correct values that no broker could serve, as after a manual edit of the table."""
        if config.topic_name != name:
            _log.warning(
                "topics.json has topic %s under the key %s: using the key",
                config.topic_name,
                name,
            )
            config = replace(config, topic_name=name)
        if _queues_of(config) > max(self.max_queues, QUEUE_NUMS_MAX):
            _log.warning(
                "topics.json gives the topic %s %d queues, over maxQueues=%d: they are "
                "reduced to at most %d",
                name,
                _queues_of(config),
                self.max_queues,
                QUEUE_NUMS_MAX,
            )
            config = replace(
                config,
                read_queue_nums=min(config.read_queue_nums, QUEUE_NUMS_MAX),
                write_queue_nums=min(config.write_queue_nums, QUEUE_NUMS_MAX),
            )
        self._set(name, config)

    def _set_default_topic(self, queue_nums: int) -> None:
        """Set the topic that new topics inherit from; clients that see it may send to any topic."""
        config = self.get(DEFAULT_TOPIC)
        if config is not None:
            inherits = _INHERIT if self._auto_create else 0
            config = replace(config, perm=config.perm & ~_INHERIT | inherits)
            self._set(DEFAULT_TOPIC, config)
        elif self._auto_create:
            self._set(DEFAULT_TOPIC, _topic(DEFAULT_TOPIC, queue_nums, _READ_WRITE | _INHERIT))

    def _set_internal_topic(self, topic: str, queue_nums: int) -> None:
        config = self._values.get(topic, _topic(topic, queue_nums))
        self._set(topic, _with_queues(config, max(queue_nums, _queues_of(config))))

    def read_queue_nums(self, topic: str) -> int:
        """Return how many queues of a topic can be read; 0 if the topic does not exist."""
        config = self.get(topic)
        return 0 if config is None else config.read_queue_nums

    def put(self, config: TopicConfig, change: Change[str, TopicConfig] | None = None) -> None:
        """Create or overwrite a topic, as part of a change that may still be refused.

        Raises:
            ValueError: The name, a number or the permission is invalid.
            TooMany: The limit of topics or of queues in total would be exceeded.
        """
        _check(config)
        known = self.get(config.topic_name)
        if known is None and self._is_limited(config.topic_name):
            self._check_limits()
        more = _queues_of(config) - _queues_of(known)
        check_limit("queues", self._queues, self.max_queues, "maxQueues", more=more)
        self._change(config.topic_name, config, change)

    def check_list(self, configs: Iterable[TopicConfig]) -> Iterator[None]:
        """Check in steps whether `put` would accept these topics one after another."""
        wanted: dict[str, TopicConfig] = {}
        topics, queues = self.limited_topics, self._queues
        for config in configs:
            yield
            _check(config)
            known = wanted.get(config.topic_name) or self.get(config.topic_name)
            if known is None and self._is_limited(config.topic_name):
                check_limit("topics", topics, self.max_topics, "maxTopics")
                topics += 1
            more = _queues_of(config) - _queues_of(known)
            check_limit("queues", queues, self.max_queues, "maxQueues", more=more)
            queues += more
            wanted[config.topic_name] = config

    def _is_limited(self, topic: str) -> bool:
        return topic not in self._own_topics and not is_system_topic(topic)

    def _check_limits(self) -> None:
        check_limit("topics", self.limited_topics, self.max_topics, "maxTopics")

    def create_in_send(self, topic: str, default_topic: str, queue_nums: int) -> TopicConfig | None:
        """Return a topic, or create it like ``default_topic``; None if that is refused.

        The topic gets the requested number of queues, but no more than the default topic has. Retry
        topics need no default.
        """
        known = self.get(topic)
        if known is not None:
            return known
        if topic.startswith(RETRY_PREFIX):
            self._check_limits()
            return self.create_in_send_back(topic, 1)
        default = self.get(default_topic)
        if not self._auto_create or default is None or not default.perm & _INHERIT:
            return None
        queues = max(1, min(queue_nums, default.write_queue_nums))
        self.put(
            replace(
                _topic(topic, queues, default.perm & ~_INHERIT),
                topic_sys_flag=default.topic_sys_flag,
            )
        )
        return self._values[topic]

    def create_in_send_back(self, topic: str, queue_nums: int) -> TopicConfig:
        """Return a topic that the broker itself needs, such as a retry topic, or create it."""
        known = self.get(topic)
        if known is not None:
            return known
        config = _topic(topic, max(1, queue_nums), _READ_WRITE)
        _check(config)
        self._set(topic, config)
        return self._values[topic]

    def add_queues(self, topic: str, queue_nums: int) -> None:
        """Give an existing topic at least this many queues, for reading and writing."""
        self._set(topic, _with_queues(self._values[topic], queue_nums))

    def begin_deletion(self, topic: str) -> None:
        """Begin to delete a topic: add it to `deleting`, and change nothing else.

        Then call `cancel_deletion`, or `delete`, after which the topic stays in `deleting` until
        the table is saved.
        """
        self._deleting[topic] = None

    def cancel_deletion(self, topic: str) -> None:
        """Keep a topic whose deletion has failed."""
        self._deleting.pop(topic, None)

    def delete(self, topic: str) -> None:
        """Delete a topic from the table; the store deletes its queues."""
        self.changes.discard(topic)
        if topic in self._values:
            self._set(topic, None)
        elif topic in self._deleting:
            self._mark_changed()

    def wrapper(self) -> TopicConfigSerializeWrapper:
        """Return all topics and their version, in the form that is saved, sent and registered."""
        version = self.data_version  # read first: topics may be newer than the version, not older
        return TopicConfigSerializeWrapper(
            topic_config_table=dict(self._values), data_version=version
        )

    def save_changes(self) -> None:
        """Make the changes since the last save durable, at a limited cost.

        Of a large table, only the topics changed since then are saved: `is_dirty` stays true, and
        `is_saved` false.
        """
        if not self._save_recent():
            self.save()

    def _save_recent(self) -> bool:
        """Save the topics that changed since the last save; return whether that was possible."""
        with self._lock:
            if not self.is_dirty:
                return True
            version = self.data_version
            if version == self._recent_version:
                return True
            with self._unsaved_lock:
                names = tuple(self._unsaved)
            topics = {name: self._values.get(name) for name in names}
            changed = {name: config for name, config in topics.items() if config is not None}
            is_small = len(self._values) <= SMALL_TABLE_TOPICS
            if is_small or len(changed) < len(names) or len(names) > RECENT_TOPICS_MAX:
                return False
            self._recent_table.save(
                TopicConfigSerializeWrapper(topic_config_table=changed, data_version=version)
            )
            self._recent_version = version
            return True

    def unserved_feature(self, config: TopicConfig) -> str | None:
        """Return the feature of RocketMQ 5 because of which a topic takes no messages, or None.

        RocketMQ would not find messages of this broker in its files for the feature.
        """
        if config.topic_name in self._static_topics:
            return "static topics"
        for name, value in (config.attributes or {}).items():
            feature = UNSERVED_ATTRIBUTES.get((name, value))
            if feature is not None:
                return feature
        return None

    def is_saved(self, config: TopicConfig) -> bool:
        """Return whether the topic is saved with this configuration, and is not being deleted."""
        topic = config.topic_name
        return self.saved.topic_config_table.get(topic) is config and topic not in self._deleting

    def _record_saved(self, saved: TopicConfigSerializeWrapper) -> None:
        self.saved = saved
        counter = saved.data_version.counter
        with self._unsaved_lock:
            self._unsaved = {name: at for name, at in self._unsaved.items() if at > counter}
        if self._recent_version is not None:
            with suppress(OSError):  # the next start ignores it, because its version is older
                self._recent_table.clear()
            self._recent_version = None
        for topic in tuple(self._deleting):
            if topic not in saved.topic_config_table and topic not in self._values:
                self.cancel_deletion(topic)  # the topic's name may be used again
        self.on_saved()

    def _set(self, name: str, value: TopicConfig | None) -> None:
        self._queues += _queues_of(value) - _queues_of(self.get(name))
        if self._is_limited(name):
            self.limited_topics += (value is not None) - (name in self._values)
        with self._unsaved_lock:  # before the version grows: a save may come in between
            self._unsaved[name] = self.data_version.counter + 1
        super()._set(name, value)

    def _mark_changed(self) -> None:
        self.data_version = self.data_version.next_version(self._now_ms())
        self.is_dirty = True


def _topic(name: str, queue_nums: int, perm: int = _READ_WRITE) -> TopicConfig:
    return TopicConfig(
        topic_name=name, read_queue_nums=queue_nums, write_queue_nums=queue_nums, perm=perm
    )


def _queues_of(config: TopicConfig | None) -> int:
    return max(config.read_queue_nums, config.write_queue_nums) if config is not None else 0


def _with_queues(config: TopicConfig, queue_nums: int) -> TopicConfig:
    return replace(
        config,
        read_queue_nums=max(config.read_queue_nums, queue_nums),
        write_queue_nums=max(config.write_queue_nums, queue_nums),
    )


def _check(config: TopicConfig) -> None:
    name = config.topic_name
    fault = topic_fault(name) or light_queue_fault(name) or _fault_of_numbers(config)
    if fault is not None:
        raise ValueError(fault)


def _fault_of_numbers(config: TopicConfig) -> str | None:
    for name, queues in (("read", config.read_queue_nums), ("write", config.write_queue_nums)):
        if not 1 <= queues <= QUEUE_NUMS_MAX:
            return (
                f"topic {config.topic_name} needs 1 to {QUEUE_NUMS_MAX} {name} queues, not {queues}"
            )
    if not 0 <= config.perm <= _PERM_MAX:
        return (
            f"topic {config.topic_name} cannot have permission {config.perm}: use the sum of 4 "
            "(read), 2 (write) and 1 (inherit)"
        )
    return int32_fault(f"topicSysFlag of topic {config.topic_name}", config.topic_sys_flag)
