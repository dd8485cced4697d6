"""Checks of topics, queues, groups and records that requests name, and store times of messages."""

from __future__ import annotations

from typing import Final

from rmq_spark.errors import RecordError
from rmq_spark.wire.bodies.configs import SubscriptionGroupConfig, TopicConfig
from rmq_spark.wire.codes import ResponseCode, TopicPermission
from rmq_spark.wire.message.record import StoredMessage, decode_record
from rmq_spark.wire.remoting.framing import Buffer

from ..auth.rights import Action, ResourceType
from ..common.channel import Channel
from ..state.tables.subscription_group import SubscriptionGroupManager
from ..state.tables.topic_config import TopicConfigManager
from ..store.errors import UnreadableFile
from ..store.message_store import MessageStore
from ..store.records.fields import read_fields
from ..store.results import QueueOffset
from .processor import BrokerParts
from .request import RequestRejected, no_permission, system_error


def require_topic(topics: TopicConfigManager, topic: str) -> TopicConfig:
    """Return a topic's configuration."""
    config = topics.get(topic)
    if config is None:
        raise topic_not_exist(topic)
    return config


def require_readable_topic(topics: TopicConfigManager, topic: str) -> TopicConfig:
    """Return the configuration of a topic that consumers may read."""
    config = require_topic(topics, topic)
    if not config.perm & TopicPermission.READ:
        raise no_permission(f"the topic[{topic}] may not be read")
    return config


def require_group(groups: SubscriptionGroupManager, group: str) -> SubscriptionGroupConfig:
    """Return a group's configuration; the group is created if the broker may do that."""
    config = groups.find_or_create(group)
    if config is None:
        raise RequestRejected(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            f"subscription group [{group}] does not exist, create it first",
        )
    return config


def require_consuming_group(groups: SubscriptionGroupManager, group: str) -> None:
    """Refuse a group that does not exist, or that an operator has barred from consuming."""
    if not require_group(groups, group).consume_enable:
        raise no_permission(f"subscription group {group} may not consume")


def topic_not_exist(topic: str) -> RequestRejected:
    """Return the refusal of a request that names an unknown topic."""
    return RequestRejected(
        ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, apply first please!"
    )


def check_queue(store: MessageStore, config: TopicConfig, queue_id: int) -> None:
    """Refuse a queue that a topic does not have, unless it was removed and has had messages."""
    queues = max(config.read_queue_nums, config.write_queue_nums)
    if 0 <= queue_id < queues or (
        queue_id >= 0 and store.queue_offsets(config.topic_name, queue_id).next
    ):
        return
    raise system_error(
        f"queueId[{queue_id}] is illegal, topic[{config.topic_name}] has the queues 0 to "
        f"{queues - 1}"
    )


# ---- Store times.

NO_TIME: Final = 0
"""The store time that reports give a message that is missing, damaged or unreadable. A consumer
that pulls the message gets the error.
"""


def store_timestamp(store: MessageStore, topic: str, queue_id: int, queue_offset: int) -> int:
    """Return when the message at an offset was stored, in milliseconds, or `NO_TIME`."""
    if queue_offset < 0:
        return NO_TIME
    try:
        found = store.get_message(
            topic, queue_id, QueueOffset(queue_offset), count_max=1, scan_max=1
        )
    except UnreadableFile:
        return NO_TIME
    if not found.message_count:
        return NO_TIME
    record = found.buffers[0]
    try:  # reports read thousands of these, so bodies are not decoded
        return read_fields(record, 0, len(record))[4]
    except RecordError:
        return NO_TIME


def earliest_timestamp(store: MessageStore, topic: str, queue_id: int) -> int:
    """Return when the first message of a queue was stored, in milliseconds, or `NO_TIME`."""
    try:
        return max(store.earliest_timestamp(topic, queue_id), NO_TIME)
    except UnreadableFile:
        return NO_TIME


# ---- Records of the log at positions that clients send.


def may_read(broker: BrokerParts, connection: Channel, record: Buffer, *actions: Action) -> bool:
    """Return whether any of these actions allows a client to read a record of the log.

    The client sends the position, and the bytes there may be forged: a message's body can look like
    a record that names its sender's own topic, with lengths that reach into messages of others. So
    a record counts as one of its topic only if the topic's queue contains it.
    """
    access = broker.access
    if not access.is_enabled:
        return True
    reads_all = any(access.allows_every_topic(connection, action) for action in actions)
    try:
        message = decode_record(record, check_crc=False)
    except RecordError:  # the topic of the record is unknown
        return reads_all
    if not access.allows(connection, ResourceType.TOPIC, message.topic, *actions):
        return False
    if reads_all:
        return True
    return is_in_queue(broker.store, message, record)


def is_in_queue(store: MessageStore, message: StoredMessage, record: Buffer) -> bool:
    """Return whether the queue that a record names contains it, at the offset that it names."""
    position = message.topic, message.queue_id, QueueOffset(message.queue_offset)
    return b"".join(store.get_message(*position, count_max=1).buffers) == record


# ---- Young queues, which new groups read from the start.

MEMORY_RATIO: Final = 0.4
"""The share of memory that RocketMQ assumes to cache the end of the log."""

SCANNED_MAX: Final = 16
"""The maximum number of messages at a queue's start among which a readable one is searched."""


def is_whole_queue_in_memory(broker: BrokerParts, topic: str, queue_id: int) -> bool:
    """Return whether a queue's first message is so near the log's end that it is in memory.

    This is true for a queue that has had no message.
    """
    store = broker.store
    low, high = store.queue_offsets(topic, queue_id, allow_incomplete=True)
    if low > 0:
        return False
    if high == 0:
        return store.queue_offsets(topic, queue_id) == (0, 0)
    positions = (_position(store, topic, queue_id, at) for at in range(min(high, SCANNED_MAX)))
    position = next((position for position in positions if position is not None), None)
    cached_bytes = int(broker.memory_bytes * MEMORY_RATIO)
    return position is not None and store.confirm_offset() - position <= cached_bytes


def _position(store: MessageStore, topic: str, queue_id: int, queue_offset: int) -> int | None:
    try:
        found = store.get_message(
            topic, queue_id, QueueOffset(queue_offset), count_max=1, scan_max=1
        )
        if not found.message_count:
            return None
        return decode_record(found.buffers[0], check_crc=False).physical_offset
    except (RecordError, UnreadableFile):  # the consumer that pulls it is notified
        return None
