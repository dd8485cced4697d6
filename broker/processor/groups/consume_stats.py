"""ConsumeStatsProcessor: reports the lag of groups, in messages and in time.

The lag is measured from the committed offsets, whether the group is online or not. A topic that an
online group no longer subscribes to is left out, because the group will not consume the rest of it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from typing import Final

from rmq_spark.wire.bodies.configs import TopicConfig
from rmq_spark.wire.bodies.operators import (
    ConsumeStats,
    ConsumeStatsList,
    OffsetWrapper,
    QueryConsumeTimeSpanBody,
    QueueTimeSpan,
)
from rmq_spark.wire.codes import RequestCode
from rmq_spark.wire.headers.operators import GetConsumeStatsRequestHeader
from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.remoting.command import RemotingCommand

from ...common.channel import Channel, ResponseSteps
from ...state.tables.topic_config import QUEUE_NUMS_MAX
from ..processor import Processor, handles
from ..queues import earliest_timestamp, require_topic, store_timestamp
from ..request import header_of, success_response_in_steps, system_error

_TOPIC_SEPARATOR = ";"
_QUEUES_MAX: Final = 2 * QUEUE_NUMS_MAX
"""The maximum queues of a response, because clients accept frames up to 16 MiB."""


class ConsumeStatsProcessor(Processor):
    """Reports on one group, on one group in one topic, and on all groups."""

    # ---- in messages

    @handles(RequestCode.GET_CONSUME_STATS)
    def of_group(self, connection: Channel, request: RemotingCommand) -> ResponseSteps:
        """Answer GET_CONSUME_STATS, with an empty success if the group does not exist."""
        header: GetConsumeStatsRequestHeader = header_of(request)
        group = header.consumer_group
        if header.topic_list:
            topics: Iterable[str] = dict.fromkeys(
                filter(None, header.topic_list.split(_TOPIC_SEPARATOR))
            )
        else:
            topics = (
                [header.topic] if header.topic else sorted(self._broker.offsets.topics_of(group))
            )
        topics = filter(self._broker.access.visible_to(connection).has_topic, topics)
        table: dict[MessageQueue, OffsetWrapper] = {}
        tps = 0.0
        consumed = list(self._consumed(group, topics))
        _check_queue_count(sum(config.read_queue_nums for config in consumed))
        for config in consumed:
            each = yield from self._stats_of(group, config, config.read_queue_nums)
            table |= each.offset_table
            tps += each.consume_tps
        return (
            yield from success_response_in_steps(
                request, ConsumeStats(offset_table=table, consume_tps=tps)
            )
        )

    @handles(RequestCode.GET_BROKER_CONSUME_STATS)
    def of_broker(self, connection: Channel, request: RemotingCommand) -> ResponseSteps:
        """Answer GET_BROKER_CONSUME_STATS for all groups, or only for their ordered topics."""
        only_ordered = header_of(request).is_order
        consumed: dict[str, list[TopicConfig]] = {}
        queues = 0
        visible = self._broker.access.visible_to(connection)
        for group in filter(visible.has_group, sorted(self._broker.groups.groups)):
            yield None
            topics = filter(visible.has_topic, sorted(self._broker.offsets.topics_of(group)))
            configs = self._consumed(group, topics)
            consumed[group] = [config for config in configs if config.order or not only_ordered]
            queues += sum(config.write_queue_nums for config in consumed[group])
            _check_queue_count(queues)
        reports = []
        behind = in_flight = 0
        for group, found_configs in consumed.items():
            found = []
            for config in found_configs:
                each = yield from self._stats_of(group, config, config.write_queue_nums)
                offsets = each.offset_table.values()
                behind += sum(offset.broker_offset - offset.consumer_offset for offset in offsets)
                in_flight += sum(offset.in_flight or 0 for offset in offsets)
                found.append(each)
            reports.append({group: tuple(found)})
        body = ConsumeStatsList(
            consume_stats_list=tuple(reports),
            broker_addr=str(self._broker.advertised_host(connection)),
            total_diff=behind,
            total_inflight_diff=in_flight,
        )
        return (yield from success_response_in_steps(request, body))

    def _consumed(self, group: str, topics: Iterable[str]) -> Iterator[TopicConfig]:
        online = self._broker.consumers.group(group)
        for topic in topics:
            config = self._broker.topics.get(topic)
            if config is not None and (
                online is None or not online.subscriptions or topic in online.subscriptions
            ):
                yield config

    def _stats_of(
        self, group: str, config: TopicConfig, queue_nums: int
    ) -> Generator[None, None, ConsumeStats]:
        topic = config.topic_name
        known = self._broker.offsets.queues(group, topic)
        table = {}
        for queue_id in range(queue_nums):
            yield
            queue = MessageQueue(topic, self._broker.config.broker_name, queue_id)
            committed = max(known.get(queue_id, 0), 0)
            table[queue] = self._offset(group, topic, queue_id, committed)
        return ConsumeStats(
            offset_table=table, consume_tps=self._broker.stats.group_get_tps(group, [topic])
        )

    def _offset(self, group: str, topic: str, queue_id: int, consumer_offset: int) -> OffsetWrapper:
        in_flight = self._broker.pop_counters.in_flight((topic, group, queue_id))
        return OffsetWrapper(
            broker_offset=self._broker.store.queue_offsets(topic, queue_id).next,
            consumer_offset=consumer_offset,
            # tools compute the messages in flight from it; only clients know those of pulls
            pull_offset=consumer_offset + in_flight,
            last_timestamp=store_timestamp(
                self._broker.store, topic, queue_id, consumer_offset - 1
            ),
        )

    # ---- in time

    @handles(RequestCode.QUERY_CONSUME_TIME_SPAN)
    def time_span(self, _: Channel, request: RemotingCommand) -> ResponseSteps:
        """Answer QUERY_CONSUME_TIME_SPAN: the ages of queues, and of a group's next messages."""
        header = header_of(request)
        config = require_topic(self._broker.topics, header.topic)
        known = self._broker.offsets.queues(header.group, header.topic)
        spans = []
        for queue_id in range(config.write_queue_nums):
            yield None
            spans.append(self._span(header.topic, queue_id, known.get(queue_id, 0)))
        body = QueryConsumeTimeSpanBody(consume_time_span_set=tuple(spans))
        return (yield from success_response_in_steps(request, body))

    def _span(self, topic: str, queue_id: int, consumer_offset: int) -> QueueTimeSpan:
        low, high = self._broker.store.queue_offsets(topic, queue_id)
        earliest = earliest_timestamp(self._broker.store, topic, queue_id)
        consumed = store_timestamp(self._broker.store, topic, queue_id, consumer_offset - 1)
        waiting = store_timestamp(self._broker.store, topic, queue_id, max(consumer_offset, low))
        return QueueTimeSpan(
            message_queue=MessageQueue(topic, self._broker.config.broker_name, queue_id),
            min_time_stamp=earliest,
            max_time_stamp=store_timestamp(self._broker.store, topic, queue_id, high - 1),
            consume_time_stamp=consumed or earliest,
            delay_time=max(self._broker.now_ms() - waiting, 0) if waiting else 0,
        )


def _check_queue_count(queues: int) -> None:
    if queues > _QUEUES_MAX:
        raise system_error(
            f"the response would cover {queues} queues, over {_QUEUES_MAX}: ask for one "
            "group or one topic at a time"
        )
