"""RocketMQFamilies: the metrics of RocketMQ 5, under its names, with its labels and units.

Dashboards made for RocketMQ work with them: names are those of 5.5.0, which end in their units.
Figures that this broker does not have are left out rather than guessed. Pulled messages in flight
are known only to clients. Messages have no types of their own, so the declared type of the topic is
given.
"""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Generator, Iterable, Iterator
from typing import Final, NamedTuple

from rmq_spark.wire.bodies.clients import CLIENT_LABELS, client_labels, consume_mode
from rmq_spark.wire.names import DLQ_PREFIX, RETRY_PREFIX, is_system_group, is_system_topic

from ..state.broker_stats import GROUP_GET, TOPIC_PUT, Key, Sum
from ..store.errors import EndUnknown, StoreError
from ..store.records.fields import read_fields
from ..store.results import PhysicalOffset
from .consumer_lags import ConsumerLag, ConsumerLags
from .exposition import CounterFamily, GaugeFamily, MetricFamily, MetricSample, gauge
from .sources import MetricsSources

_TYPE: Final = "message.type"
_IN_LABELS: Final = ("topic", "message_type", "is_system")
_OUT_LABELS: Final = ("topic", "consumer_group", "is_retry", "is_system")
_STORAGE_LABELS: Final = ("storage_type", "storage_medium")
_STORAGE: Final = ("local", "disk")


class _Traffic(NamedTuple):
    """The total of a topic, or of a group in a topic, with the values of its labels."""

    kind: str
    labels: tuple[str, ...]
    messages: int
    bytes: int


class RocketMQFamilies:
    """The metrics of one broker under RocketMQ's names."""

    def __init__(self, sources: MetricsSources) -> None:
        self._sources = sources
        self._lags = ConsumerLags(sources.broker)
        self._earliest = (-1, 0)
        """The start of the log at the last read, and the store time of its first message in ms."""

    def families(self) -> Iterator[MetricFamily]:
        """Yield all families; their rows are collected when they are read."""
        yield from self._traffic()
        yield from self._lag_families()
        yield from self._storage()
        yield from self._clients()

    # ---- messages

    def _traffic(self) -> Iterator[MetricFamily]:
        traffic: list[_Traffic] = []
        yield CounterFamily(
            "rocketmq_messages_in_total",
            "Messages that producers have sent, by the type that the topic was declared with.",
            _IN_LABELS,
            self._collect_totals(traffic),
        )
        for name, description, labels, kind, what in (
            ("throughput_in", "Bytes of messages as stored.", _IN_LABELS, TOPIC_PUT, "bytes"),
            ("messages_out", "Messages delivered to groups.", _OUT_LABELS, GROUP_GET, "messages"),
            (
                "throughput_out",
                "Bytes of messages delivered to groups.",
                _OUT_LABELS,
                GROUP_GET,
                "bytes",
            ),
        ):
            yield CounterFamily(
                f"rocketmq_{name}_total", description, labels, _samples_of(traffic, kind, what)
            )

    def _collect_totals(self, totals: list[_Traffic]) -> Iterator[MetricSample | None]:
        """Collect the totals of all four families; yield the rows of the first."""
        for key, total in self._sources.processors.stats.totals():
            each = self._traffic_of(key, total)
            if each is None:
                yield None
                continue
            totals.append(each)
            yield MetricSample(each.labels, each.messages) if each.kind == TOPIC_PUT else None

    def _traffic_of(self, key: Key, total: Sum) -> _Traffic | None:
        kind, owner = key
        if kind == TOPIC_PUT:
            config = self._sources.broker.topics.get(owner)
            attributes = (config.attributes if config is not None else None) or {}
            message_type = attributes.get(_TYPE, "UNSPECIFIED").lower()
            labels: tuple[str, ...] = (owner, message_type, _flag(is_system_topic(owner)))
        elif kind == GROUP_GET:
            topic, _, group = owner.partition("@")
            labels = (topic, group, *_flags(topic, group))
        else:
            return None
        return _Traffic(kind, labels, total.messages, total.bytes)

    # ---- lag

    def _lag_families(self) -> Iterator[MetricFamily]:
        labels = ("consumer_group", "topic", "is_retry", "is_system")
        lags: list[ConsumerLag] = []

        def messages() -> Iterator[MetricSample | None]:
            for lag in self._lags.collect():
                if lag is not None:
                    lags.append(lag)
                yield MetricSample(_labels_of(lag), lag.messages) if lag is not None else None

        yield GaugeFamily(
            "rocketmq_consumer_lag_messages",
            "Messages that a group has not consumed yet, whether it is online or not.",
            labels,
            messages(),
        )
        yield GaugeFamily(
            "rocketmq_consumer_lag_latency_milliseconds",
            "Milliseconds since the oldest message was stored that a group has not consumed.",
            labels,
            (MetricSample(_labels_of(lag), lag.latency_ms) for lag in lags),
        )
        in_flight = self._sources.broker.pop_counters.in_flight_by_group()
        yield GaugeFamily(
            "rocketmq_consumer_inflight_messages",
            "Messages that a group has popped since the start and not acknowledged yet.",
            labels,
            (
                MetricSample((group, topic, *_flags(topic, group)), count)
                for (topic, group), count in in_flight.items()
            ),
        )
        yield CounterFamily(
            "rocketmq_send_to_dlq_messages_total",
            "Messages that a group could not consume, and that became dead letters.",
            ("consumer_group", "is_system"),
            self._dead_letters(),
        )

    def _dead_letters(self) -> Iterator[MetricSample | None]:
        """Yield the end of each group's dead-letter queue: a count that survives a restart."""
        for topic in sorted(self._sources.broker.topics.topics):
            config = self._sources.broker.topics.get(topic)
            if config is None or not topic.startswith(DLQ_PREFIX):
                yield None
                continue
            count = yield from self._end_of(topic, config.write_queue_nums)
            group = topic[len(DLQ_PREFIX) :]
            yield MetricSample((group, _flag(is_system_group(group))), count)

    def _end_of(self, topic: str, queues: int) -> Generator[None, None, int]:
        count = 0
        for queue_id in range(queues):
            yield
            try:
                count += self._sources.broker.store.queue_offsets(topic, queue_id).next
            except EndUnknown:  # the start is not finished
                continue
        return count

    # ---- storage

    def _storage(self) -> Iterator[MetricFamily]:
        state = self._sources.broker.store.state()
        behind = max(state.written_offset - state.reput_from_offset, 0)
        for name, description, value in (
            ("size_bytes", "Bytes of the commit log.", state.written_offset - state.min_offset),
            (
                "flush_behind_bytes",
                "Bytes of the commit log that are not flushed yet.",
                max(state.written_offset - state.flushed_offset, 0),
            ),
            (
                "dispatch_behind_bytes",
                "Bytes of the commit log that are not in consume queues yet.",
                behind,
            ),
            (
                "message_reserve_time_milliseconds",
                "Milliseconds since the first message in the commit log was stored.",
                self._reserve_time(state.min_offset),
            ),
        ):
            rows = [MetricSample(_STORAGE, value)]
            yield GaugeFamily(f"rocketmq_storage_{name}", description, _STORAGE_LABELS, rows)

    def _reserve_time(self, min_offset: PhysicalOffset) -> int:
        known_offset, stored = self._earliest
        if known_offset != min_offset or not stored:
            try:
                record = self._sources.broker.store.record_at(min_offset)
            except (StoreError, OSError):  # consumers and the log report the error
                record = None
            stored = read_fields(record, 0, len(record))[4] if record is not None else 0
            self._earliest = (min_offset, stored)
        return max(self._sources.broker.now_ms() - stored, 0) if stored else 0

    # ---- clients, and the broker

    def _clients(self) -> Iterator[MetricFamily]:
        processors = self._sources.processors
        yield GaugeFamily(
            "rocketmq_producer_connections",
            "Online producers; a client counts once in each of its groups.",
            CLIENT_LABELS,
            _count_clients(
                client_labels(channel.language, channel.version)
                for channels in tuple(processors.producers.groups.values())
                for channel in tuple(channels.values())
            ),
        )
        yield GaugeFamily(
            "rocketmq_consumer_connections",
            "Members of a group that are online.",
            ("consumer_group", *CLIENT_LABELS, "consume_mode", "is_system"),
            _count_clients(
                (
                    name,
                    *client_labels(channel.language, channel.version),
                    consume_mode(group.consume_type),
                    _flag(is_system_group(name)),
                )
                for name in tuple(processors.consumers.names)
                if (group := processors.consumers.group(name)) is not None
                for channel in tuple(group.clients.values())
            ),
        )
        tables = self._sources.broker
        yield gauge("rocketmq_topic_number", "Topics.", len(tables.topics.topics))
        yield gauge("rocketmq_consumer_group_number", "Consumer groups.", len(tables.groups.groups))
        yield gauge(
            "rocketmq_broker_permission",
            "Permission of the whole broker: 4 read + 2 write.",
            self._sources.broker.config.broker_permission,
        )
        yield GaugeFamily(
            "rocketmq_processor_watermark",
            "Sends that wait for the disk.",
            ("processor",),
            [MetricSample(("send",), processors.acknowledger.queue().size)],
        )


def _count_clients(labels: Iterable[tuple[str, ...]]) -> Iterator[MetricSample | None]:
    """Count clients in steps, then yield a row for each combination of labels."""
    counts: Counts[tuple[str, ...]] = Counts()
    for each in labels:
        counts[each] += 1
        yield None
    for each, count in sorted(counts.items()):
        yield MetricSample(each, count)


def _samples_of(totals: Iterable[_Traffic], kind: str, what: str) -> Iterator[MetricSample | None]:
    for each in totals:
        yield MetricSample(each.labels, getattr(each, what)) if each.kind == kind else None


def _labels_of(lag: ConsumerLag) -> tuple[str, ...]:
    return (lag.group, lag.topic, *_flags(lag.topic, lag.group))


def _flags(topic: str, group: str) -> tuple[str, str]:
    is_retry = topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
    return _flag(is_retry), _flag(is_system_topic(topic) or is_system_group(group))


def _flag(value: bool) -> str:  # noqa: FBT001  # the only argument
    return "true" if value else "false"
