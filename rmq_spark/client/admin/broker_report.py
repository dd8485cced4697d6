"""BrokerReport: the state of all topics and groups of one broker, for exporters.

A report costs one request for each topic, one for the online members of each group, and one for all
committed offsets. Lag is computed from these. One more request for a group returns its times and
messages in flight, a row for each queue. It is sent for groups that lag, and for all groups while
the broker counts popped messages in flight, up to `ROWS_MAX` rows in total.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from rmq_spark.client.admin.admin import Admin
from rmq_spark.client.admin.lag import messages_behind
from rmq_spark.client.admin.lookups import ADMIN_TIMEOUT_MS
from rmq_spark.client.api.broker_api import BrokerApi
from rmq_spark.client.errors import BrokerRefused, ConsumerNotOnline
from rmq_spark.wire.bodies.operators import ConsumerConnection, OffsetWrapper

ROWS_MAX: Final = 65_536
"""Most rows requested per report to look up times and messages in flight of groups."""
_SEPARATOR = "@"


class TopicReport(NamedTuple):
    """The offsets of a topic on one broker, of all its queues together."""

    topic: str
    message_type: str  # as declared, such as NORMAL
    begin: int  # sum of the offsets of the first messages
    end: int  # sum of the end offsets: the number of messages that were ever sent


class GroupReport(NamedTuple):
    """The progress of a group in a topic on one broker, in all queues together."""

    group: str
    topic: str
    messages: int  # lag: the messages past the group's offsets
    consumed: int  # sum of the group's offsets
    last_timestamp_ms: int
    """Store time of the last consumed message, in milliseconds since the epoch, in the queue with
    the greatest lag; 0 if no queue has lag, or if times were not requested."""
    pops_in_flight: int
    """Popped messages that are not acknowledged; 0 if the broker does not count them (RocketMQ), or
    if times were not requested."""


class BrokerReport(NamedTuple):
    """One broker, with its topics and groups."""

    runtime: Mapping[str, str]
    """Figures that the broker reports on itself, by RocketMQ's names; empty in the first seconds of
    a RocketMQ broker."""

    topics: tuple[TopicReport, ...]
    group_names: tuple[str, ...]  # including those that have consumed nothing
    groups: tuple[GroupReport, ...]
    members: Mapping[str, ConsumerConnection]  # online members, by group


class _TopicOffsets(NamedTuple):
    """A topic's report, and the ends of its queues, from which its groups' reports are computed."""

    report: TopicReport
    ends: Mapping[int, int]


def read_broker_report(admin: Admin, address: str, *, with_times: bool = True) -> BrokerReport:
    """Return the report of a broker; topics and groups deleted in the meantime are left out.

    Args:
        admin: An `Admin` that was started.
        address: Address of the broker, as ``host:port``.
        with_times: Whether to look up times and messages in flight of groups as well. Groups with
            the fewest queues come first, up to `ROWS_MAX` rows in total.
    """
    api = BrokerApi(admin.instance.connections, ADMIN_TIMEOUT_MS)
    names = tuple(sorted(api.admin.group_configs(address)))
    topics = {each.report.topic: each for each in _topic_offsets(api, address)}
    members: dict[str, ConsumerConnection] = {}
    for group in names:
        # for an offline group, RocketMQ and our broker return different errors
        with suppress(ConsumerNotOnline, BrokerRefused):
            members[group] = api.admin.consumer_connection(address, group)
    groups = _group_reports(api, address, topics, names, members)
    runtime: Mapping[str, str] = {}
    with suppress(BrokerRefused):  # RocketMQ refuses until it has figures
        runtime = api.admin.runtime_info(address)
    return BrokerReport(
        runtime,
        tuple(each.report for each in topics.values()),
        names,
        tuple(_with_times(api, address, topics, groups, runtime) if with_times else groups),
        members,
    )


def _topic_offsets(api: BrokerApi, address: str) -> Iterator[_TopicOffsets]:
    for topic, config in sorted(api.admin.topic_configs(address).items()):
        with suppress(BrokerRefused):  # the topic was just deleted
            table = api.admin.topic_stats(address, topic).offset_table
            offsets = table.values()
            report = TopicReport(
                topic,
                (config.attributes or {}).get("message.type", "UNSPECIFIED"),
                sum(each.min_offset for each in offsets),
                sum(each.max_offset for each in offsets),
            )
            ends = {
                queue.queue_id: each.max_offset
                for queue, each in table.items()
                if queue.queue_id < config.read_queue_nums
            }
            yield _TopicOffsets(report, ends)


def _group_reports(
    api: BrokerApi,
    address: str,
    topics: Mapping[str, _TopicOffsets],
    group_names: Iterable[str],
    members: Mapping[str, ConsumerConnection],
) -> list[GroupReport]:
    """Return the progress of groups in the topics that they still subscribe to.

    Without a committed offset, a group has consumed nothing.
    """
    offsets_of: dict[str, dict[str, Mapping[int, int]]] = defaultdict(dict)
    with suppress(BrokerRefused):  # some brokers refuse if there is no offset
        for key, offsets in api.admin.all_offsets(address).items():
            topic, _, group = key.partition(_SEPARATOR)
            offsets_of[group][topic] = offsets
    reports = []
    for group in group_names:
        online = members.get(group)
        subscribed = online.subscription_table if online is not None else None
        for topic, offsets in sorted(offsets_of.get(group, {}).items()):
            if topic not in topics or (subscribed and topic not in subscribed):
                continue
            ends = topics[topic].ends
            committed = {queue_id: max(offsets.get(queue_id, 0), 0) for queue_id in ends}
            lag = sum(messages_behind(end, committed[queue_id]) for queue_id, end in ends.items())
            reports.append(GroupReport(group, topic, lag, sum(committed.values()), 0, 0))
    return reports


def _with_times(
    api: BrokerApi,
    address: str,
    topics: Mapping[str, _TopicOffsets],
    groups: Iterable[GroupReport],
    runtime: Mapping[str, str],
) -> list[GroupReport]:
    """Add to reports the times of groups with lag, and messages in flight, within `ROWS_MAX`."""
    of_group: dict[str, list[GroupReport]] = defaultdict(list)
    for each in groups:
        of_group[each.group].append(each)
    rows = {
        group: sum(len(topics[each.topic].ends) for each in reports)
        for group, reports in of_group.items()
    }
    has_pops = runtime.get("popsInFlight", "0") != "0"  # all groups; only our broker reports it
    left = ROWS_MAX
    for group in sorted(of_group, key=rows.__getitem__):
        is_behind = any(each.messages for each in of_group[group])
        if rows[group] <= left and (is_behind or has_pops):
            left -= rows[group]
            with suppress(BrokerRefused):  # the group was just deleted, or has too many queues
                stats = api.admin.consume_stats(address, group).offset_table
                by_topic: dict[str, list[OffsetWrapper]] = defaultdict(list)
                for queue, each_queue in stats.items():
                    by_topic[queue.topic].append(each_queue)
                of_group[group] = [
                    _with_stats(each, by_topic[each.topic], has_pops=has_pops)
                    for each in of_group[group]
                ]
    return [each for reports in of_group.values() for each in reports]


def _with_stats(
    report: GroupReport, queues: Sequence[OffsetWrapper], *, has_pops: bool
) -> GroupReport:
    """Add to a report the group's time, if it has lag in the topic, and its popped messages."""
    times = [
        each.last_timestamp
        for each in queues
        if each.broker_offset > each.consumer_offset and each.last_timestamp > 0
    ]
    in_flight = sum(each.in_flight or 0 for each in queues) if has_pops else 0
    return report._replace(last_timestamp_ms=min(times, default=0), pops_in_flight=in_flight)
