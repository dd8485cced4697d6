"""Bodies and files with the configuration of topics and groups: the broker's own tables."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rmq_spark.wire.bodies import fastjson
from rmq_spark.wire.bodies.body_codec import ConfigEnum, encode_body

_I32 = struct.Struct(">i")


class TopicFilterType(ConfigEnum):
    """The number of tags of a topic's messages, one or several; RocketMQ never used the second."""

    SINGLE_TAG = 0
    MULTI_TAG = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DataVersion:
    """The version of a table; versions are only compared for equality."""

    timestamp: int = 0
    counter: int = 0
    state_version: int | None = None

    def next_version(self, timestamp: int) -> DataVersion:
        """Return the table's version after its next change, made at ``timestamp``."""
        return replace(self, timestamp=timestamp, counter=self.counter + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """The response to GET_TOPIC_CONFIG, and a part of lists of topics: one topic."""

    topic_name: str
    read_queue_nums: int = 16
    write_queue_nums: int = 16
    perm: int = 6
    topic_filter_type: TopicFilterType = TopicFilterType.SINGLE_TAG
    topic_sys_flag: int = 0
    order: bool = False
    attributes: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfigSerializeWrapper:
    """All topics: GET_ALL_TOPIC_CONFIG, and topics.json."""

    topic_config_table: Mapping[str, TopicConfig] = field(default_factory=dict)
    data_version: DataVersion = DataVersion()


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBrokerBody:
    """The body of REGISTER_BROKER: all topics of a broker.

    The compressed form is a deflated sequence of lengths and texts. It omits the ``order`` and
    ``topicSysFlag`` of topics:

        i32 length, data version as JSON
        i32 topics, and for each an i32 length and ``name readQueues writeQueues perm filter``,
            and the attributes as JSON if there are any
        i32 length, filter servers as JSON
    """

    filter_server_list: tuple[str, ...] = ()
    topic_config_serialize_wrapper: TopicConfigSerializeWrapper

    def encode(self, *, is_compressed: bool) -> bytes:
        """Return the body as JSON, or compressed."""
        if not is_compressed:
            return encode_body(self)
        wrapper = self.topic_config_serialize_wrapper
        topics = wrapper.topic_config_table.values()
        parts = [
            _with_length(encode_body(wrapper.data_version)),
            _I32.pack(len(topics)),
            *(_with_length(_topic_text(each).encode()) for each in topics),
            _with_length(b"[]"),
        ]
        return zlib.compress(b"".join(parts))


def _with_length(data: bytes) -> bytes:
    return _I32.pack(len(data)) + data


def _topic_text(config: TopicConfig) -> str:
    words = [
        config.topic_name,
        str(config.read_queue_nums),
        str(config.write_queue_nums),
        str(config.perm),
        config.topic_filter_type.name,
    ]
    if config.attributes:
        words.append(fastjson.dumps(dict(config.attributes)).decode())
    return " ".join(words)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionGroupConfig:
    """The configuration of one consumer group.

    The body of UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, and the response to
    GET_SUBSCRIPTIONGROUP_CONFIG. Fields that 5.x added are None if 4.9 wrote the configuration.
    """

    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool | None = None
    retry_queue_nums: int = 1
    retry_max_times: int = 16
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: int | None = None
    group_retry_policy: Any = None
    subscription_data_set: Any = None
    consume_timeout_minute: int | None = None
    attributes: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionGroupWrapper:
    """All groups: GET_ALL_SUBSCRIPTIONGROUP_CONFIG and subscriptionGroup.json."""

    subscription_group_table: Mapping[str, SubscriptionGroupConfig] = field(default_factory=dict)
    forbidden_table: Mapping[str, Mapping[str, int]] | None = None
    data_version: DataVersion = DataVersion()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOffsetSerializeWrapper:
    """The response to GET_ALL_CONSUMER_OFFSET, and consumerOffset.json.

    It has the offsets that groups have consumed, by ``topic@group`` and queue.
    """

    offset_table: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    data_version: DataVersion | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayOffsetSerializeWrapper:
    """The response to GET_ALL_DELAY_OFFSET, and delayOffset.json: progress by delay level."""

    offset_table: Mapping[int, int] = field(default_factory=dict)
    data_version: DataVersion | None = None


@dataclass(frozen=True, slots=True)
class TimerMetric:
    """The number of messages of a topic that wait for their timers, and when it changed."""

    count: int = 0
    time_stamp: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerMetricsSerializeWrapper:
    """The response to GET_TIMER_METRICS, and the file timermetrics: waiting messages by topic."""

    timing_count: Mapping[str, TimerMetric] = field(default_factory=dict)
    data_version: DataVersion | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopicListRequestBody:
    """The body of UPDATE_AND_CREATE_TOPIC_LIST."""

    topic_config_list: tuple[TopicConfig, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionGroupList:
    """The body of UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST."""

    group_config_list: tuple[SubscriptionGroupConfig, ...] = ()
