"""BrokerReport: all that one broker says of its topics and groups, read as a whole, for exporters.

A broker is asked once for each of its topics and each of its groups, whatever the number of their
queues. It must not know how a report is shown, nor how often one is wanted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple

from rmq_spark.client.admin.admin import Admin
from rmq_spark.client.admin.message_lookups import ADMIN_TIMEOUT_MS
from rmq_spark.client.errors import BrokerRefused, ConsumerNotOnline
from rmq_spark.client.requests.broker_api import BrokerApi
from rmq_spark.wire.bodies.client_info import ConsumerConnection
from rmq_spark.wire.bodies.configs import TopicConfig
from rmq_spark.wire.bodies.stats import OffsetWrapper


class TopicReport(NamedTuple):
    """The offsets of a topic on one broker, of all its queues together.

    Attributes:
        topic: Name of the topic.
        message_type: Type that the topic was declared with, such as NORMAL.
        begin: Sum of the offsets of the first messages.
        end: Sum of the offsets behind the last messages: of all messages that were ever sent.
        last_update_ms: Milliseconds since the epoch at which the newest message was stored, or 0.
    """

    topic: str
    message_type: str
    begin: int
    end: int
    last_update_ms: int


class GroupReport(NamedTuple):
    """The progress of a group in a topic on one broker, in all queues together.

    Attributes:
        group: Name of the group.
        topic: Name of the topic.
        messages: Number of messages behind the group's offsets.
        consumed: Sum of the group's offsets.
        last_timestamp_ms: Milliseconds since the epoch at which the last consumed message was
            stored, of the queue that is furthest behind and has messages left; 0 without any.
    """

    group: str
    topic: str
    messages: int
    consumed: int
    last_timestamp_ms: int


class BrokerReport(NamedTuple):
    """One broker, with its topics and groups.

    Attributes:
        runtime: Figures of the broker on itself, by RocketMQ's names for them.
        topics: Its topics, by name.
        group_names: Its groups, by name, also those that have consumed nothing.
        groups: Its groups in their topics, by name.
        members: Members of those groups that are online, by group.
    """

    runtime: Mapping[str, str]
    topics: tuple[TopicReport, ...]
    group_names: tuple[str, ...]
    groups: tuple[GroupReport, ...]
    members: Mapping[str, ConsumerConnection]


def read_broker(admin: Admin, address: str) -> BrokerReport:
    """Return the report of a broker; what is deleted meanwhile is left out.

    Args:
        admin: An administration object that has been started.
        address: Address of the broker, as ``host:port``.

    Raises:
        ClientError: The broker does not answer.
    """
    api = BrokerApi(admin.instance.connections, ADMIN_TIMEOUT_MS)
    names = tuple(sorted(api.admin.group_configs(address)))
    return BrokerReport(
        api.admin.runtime_info(address),
        tuple(_topics(api, address)),
        names,
        tuple(_groups(api, address, names)),
        dict(_members(api, address, names)),
    )


def _topics(api: BrokerApi, address: str) -> Iterator[TopicReport]:
    for topic, config in sorted(api.admin.topic_configs(address).items()):
        with suppress(BrokerRefused):  # it has just been deleted
            offsets = api.admin.topic_stats(address, topic).offset_table.values()
            yield TopicReport(
                topic,
                _type_of(config),
                sum(each.min_offset for each in offsets),
                sum(each.max_offset for each in offsets),
                max((each.last_update_timestamp for each in offsets), default=0),
            )


def _type_of(config: TopicConfig) -> str:
    return (config.attributes or {}).get("message.type", "UNSPECIFIED")


def _members(
    api: BrokerApi, address: str, names: Iterable[str]
) -> Iterator[tuple[str, ConsumerConnection]]:
    for group in names:
        with suppress(ConsumerNotOnline, BrokerRefused):  # as some brokers say of one offline
            yield group, api.admin.consumer_connection(address, group)


def _groups(api: BrokerApi, address: str, names: Iterable[str]) -> Iterator[GroupReport]:
    for group in names:
        found: dict[str, list[OffsetWrapper]] = defaultdict(list)
        with suppress(BrokerRefused):  # some brokers refuse to tell of one that never consumed
            for queue, each in api.admin.consume_stats(address, group).offset_table.items():
                found[queue.topic].append(each)
        for topic, queues in sorted(found.items()):
            behind = [each for each in queues if each.broker_offset > each.consumer_offset]
            times = [each.last_timestamp for each in behind if each.last_timestamp > 0]
            yield GroupReport(
                group,
                topic,
                sum(each.broker_offset - max(each.consumer_offset, 0) for each in behind),
                sum(max(each.consumer_offset, 0) for each in queues),
                min(times, default=0),
            )
