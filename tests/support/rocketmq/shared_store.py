"""A directory that our store and a real RocketMQ broker open in turn, and what each
reads from it."""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from support.rocketmq.real_broker import Broker, RocketMQ, free_broker_port
from support.stores.small_store import read_all, small_config

from rmq_spark.wire.bodies.configs import (
    SubscriptionGroupConfig,
    SubscriptionGroupWrapper,
    TopicConfig,
    TopicConfigSerializeWrapper,
)
from rmq_spark.wire.codes import MessageSysFlag
from rmq_spark.wire.message.hosts import Host, parse_host
from rmq_spark.wire.message.record import StoredMessage, decode_record
from rmq_spark.wire.message_queue import QueueKey
from rocketpoll.broker.store.files.disk import LocalDisk
from rocketpoll.broker.store.files.json_table import JsonTable
from rocketpoll.broker.store.message_store import MessageStore

LOG_FILE_BYTES = 1 << 20
GROUP = "peers_consumer"

Queues = dict[QueueKey, dict[str, Any]]


class Place:
    """A directory that our store and a real broker use in turn, on the same port."""

    def __init__(
        self, rocketmq: RocketMQ, name: str, root: Path, topics: Mapping[str, int]
    ) -> None:
        """Use these topics, given with their numbers of queues."""
        self._rocketmq = rocketmq
        self._name = name
        self.port = free_broker_port()
        self.host = parse_host(f"127.0.0.1:{self.port}")
        self.root = root
        self.version = rocketmq.version
        self.config = small_config(
            root,
            mapped_file_size_commit_log=LOG_FILE_BYTES,
            mapped_file_size_consume_queue=200 * 20,
            max_hash_slot_num=100,
            max_index_num=300,
        )
        self._first_topic = next(iter(topics))
        tell_of_topics(root / "config", topics)

    @property
    def name_server(self) -> str:
        """Return the name server of the Java broker."""
        return self._rocketmq.address

    def our_store(self, clock: Callable[[], int] | None = None) -> MessageStore:
        return MessageStore(self.config, LocalDisk(), clock or now_ms)

    def java_broker(self, **more: object) -> Broker:
        """Start a Java broker with more settings, named as RocketMQ names them."""
        return self._rocketmq.broker(self._name, self.port, self.config, self._first_topic, more)


def tell_of_topics(directory: Path, names: Mapping[str, int]) -> None:
    directory.mkdir(parents=True)
    topics = {
        name: TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues)
        for name, queues in names.items()
    }
    JsonTable(LocalDisk(), directory / "topics.json", TopicConfigSerializeWrapper).save(
        TopicConfigSerializeWrapper(topic_config_table=topics)
    )
    JsonTable(LocalDisk(), directory / "subscriptionGroup.json", SubscriptionGroupWrapper).save(
        SubscriptionGroupWrapper(
            subscription_group_table={GROUP: SubscriptionGroupConfig(group_name=GROUP)}
        )
    )


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def java_queues(broker: Broker, queues: Iterable[QueueKey]) -> Queues:
    """Return all messages that a Java client pulls from the queues."""
    return {
        (topic, queue_id): broker.ask("queue", topic=topic, queueId=queue_id)
        for topic, queue_id in queues
    }


def all_queues(store: MessageStore, queues: Iterable[QueueKey]) -> Queues:
    """Return all messages that our store reads from the queues, in the form of `java_queues`."""
    found = {}
    for topic, queue_id in queues:
        low, high = store.queue_offsets(topic, queue_id)
        messages = [as_java_says(each, store) for each in read_all(store, topic, queue_id)]
        found[topic, queue_id] = {"minOffset": low, "maxOffset": high, "messages": messages}
    return found


def as_java_says(stored_message: StoredMessage, store: MessageStore) -> dict[str, Any]:
    """Return the fields of a message that a Java client sees."""
    __tracebackhide__ = True
    record = store.record_at(stored_message.physical_offset)
    assert record is not None
    assert decode_record(record) == stored_message
    fields = {
        "topic": stored_message.topic,
        "queueId": stored_message.queue_id,
        "queueOffset": stored_message.queue_offset,
        "physicalOffset": stored_message.physical_offset,
        "storeSize": len(record),
        "body": stored_message.plain_body().hex(),
        "bodyCrc": stored_message.body_crc,
        "tags": stored_message.tags,
        "keys": stored_message.keys,
        "properties": stored_message.properties,
        "flag": stored_message.flag,
        "sysFlag": stored_message.sys_flag & ~MessageSysFlag.COMPRESSED.value,
        "bornTimestamp": stored_message.born_timestamp,
        "bornHost": java_text(stored_message.born_host),
        "storeTimestamp": stored_message.store_timestamp,
        "storeHost": java_text(stored_message.store_host),
        "reconsumeTimes": stored_message.reconsume_times,
        "preparedTransactionOffset": stored_message.prepared_transaction_offset,
        "messageId": stored_message.message_id,
        "offsetMessageId": stored_message.offset_message_id,
    }
    return {name: value for name, value in fields.items() if value is not None}


def java_text(host: Host) -> str:
    """Format a host as Java does: IPv6 addresses with all zeros."""
    if not host.is_v6:
        return f"/{host}"
    groups = ipaddress.IPv6Address(host.address).exploded.split(":")
    return f"/[{':'.join(f'{int(group, 16):x}' for group in groups)}]:{host.port}"


def check_same(found: Queues, expected: Queues) -> None:
    """Compare message by message: an assertion on thousands would print too much."""
    __tracebackhide__ = True
    assert found.keys() == expected.keys()
    for queue, held in expected.items():
        ends = {"minOffset": held["minOffset"], "maxOffset": held["maxOffset"]}
        assert (queue, {name: found[queue][name] for name in ends}) == (queue, ends)
        for theirs, ours in zip(found[queue]["messages"], held["messages"], strict=True):
            assert theirs == ours
