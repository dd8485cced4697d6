"""ClusterMetrics: reads a cluster periodically in a thread, and keeps the latest metrics as text.

A scrape gets that text at once: it costs the cluster nothing, and does not wait for a slow cluster.
A broker that is away is reported as down, without its old figures.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Final, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from rmq_spark.client.admin.admin import Admin
from rmq_spark.client.admin.broker_report import (
    BrokerReport,
    GroupReport,
    TopicReport,
    read_broker_report,
)
from rmq_spark.client.concurrency.scheduler import RepeatedTask, ThreadScheduler
from rmq_spark.client.errors import ClientError
from rmq_spark.client.failure_log import FailureLog
from rmq_spark.http_server import render_metrics
from rmq_spark.wire.bodies.clients import CLIENT_LABELS, client_labels, consume_mode
from rmq_spark.wire.codes import MASTER_ID
from rmq_spark.wire.names import DLQ_PREFIX, RETRY_PREFIX, is_system_group, is_system_topic

_log = logging.getLogger(__name__)
_STOP_MS: Final = 2_000
_NODE_LABELS: Final = ("cluster", "node_type", "node_id")
_RATE_METRICS: Final = {
    "putTps": ("rocketpoll_messages_in_per_second", "Messages stored per second."),
    "getTransferredTps": ("rocketpoll_messages_out_per_second", "Messages delivered per second."),
    "getTransferedTps": ("rocketpoll_messages_out_per_second", "Messages delivered per second."),
}
"""Rates of the last ten seconds that brokers report, in both of RocketMQ's spellings."""


class BrokerNode(NamedTuple):
    """A master of the cluster."""

    cluster: str
    name: str
    address: str

    @property
    def labels(self) -> tuple[str, str, str]:
        """The values of the labels that RocketMQ 5 gives to all metrics of a broker."""
        return self.cluster, "broker", self.name


class ClusterMetrics:
    """The metrics of a cluster as a text that is refreshed periodically."""

    def __init__(
        self, admin: Admin, interval_seconds: float, now: Callable[[], float] = time.time
    ) -> None:
        self._admin = admin
        self._interval_seconds = interval_seconds
        self._now = now
        self._scheduler = ThreadScheduler("ClusterMetrics")
        self._task = RepeatedTask(
            self._scheduler, self._refresh_safely, int(interval_seconds * 1_000)
        )
        self._failure_log = FailureLog()
        self._last_success_seconds = 0.0
        self.not_ready_reason: str | None = "the cluster has not been read yet"
        """The reason why the figures are incomplete; None if they are complete."""
        self.text = b""

    def start(self) -> None:
        """Start the thread that reads the cluster."""
        self._task.start(0)

    def stop(self) -> None:
        """Stop reading; wait at most 2 s for a read in progress."""
        self._task.stop()
        self._scheduler.stop(_STOP_MS)

    def _refresh_safely(self) -> int:
        started_at = self._now()
        try:
            self.refresh()
        except Exception:  # noqa: BLE001  # after any error the page must not show old figures
            _log.exception("reading the cluster failed, retrying")
            self.text, self.not_ready_reason = b"", "reading the cluster failed. See the log"
        return int(max(self._interval_seconds - (self._now() - started_at), 0.1) * 1_000)

    def refresh(self) -> None:
        """Read the cluster once, and update the text."""
        started_at = self._now()
        reports: list[tuple[BrokerNode, BrokerReport | None]] = []
        try:
            nodes = self._nodes()
        except ClientError as error:
            self._failure_log.record_failure("reading the name servers", error, self._now())
            self.not_ready_reason = f"the name servers do not answer: {error}"
        else:
            self._failure_log.record_success("reading the name servers", self._now())
            reports = [(node, self._read_broker(node)) for node in nodes]
            unreachable = [node.name for node, report in reports if report is None]
            self.not_ready_reason = (
                f"brokers do not answer: {', '.join(unreachable)}" if unreachable else None
            )
            if not unreachable:
                self._last_success_seconds = self._now()
        elapsed = self._now() - started_at
        prefix = "rocketpoll_exporter"
        metrics = [
            *_families(reports, started_at),
            GaugeMetricFamily(
                f"{prefix}_collect_seconds", "Duration of the last read of the cluster.", elapsed
            ),
            GaugeMetricFamily(
                f"{prefix}_last_success_timestamp_seconds",
                "Time of the last complete read of the cluster.",
                self._last_success_seconds,
            ),
        ]
        self.text = render_metrics(metrics)

    def _nodes(self) -> list[BrokerNode]:
        info = self._admin.cluster_info()
        return [
            BrokerNode(cluster, name, info.broker_addr_table[name].broker_addrs[MASTER_ID])
            for cluster, names in sorted(info.cluster_addr_table.items())
            for name in sorted(names)
            if name in info.broker_addr_table
            and MASTER_ID in info.broker_addr_table[name].broker_addrs
        ]

    def _read_broker(self, node: BrokerNode) -> BrokerReport | None:
        what = f"reading broker {node.name}"
        try:
            report = read_broker_report(self._admin, node.address)
        except ClientError as error:
            self._failure_log.record_failure(what, error, self._now())
            return None
        self._failure_log.record_success(what, self._now())
        return report


def _families(
    reports: Iterable[tuple[BrokerNode, BrokerReport | None]], now_seconds: float
) -> Iterator[Metric]:
    up = GaugeMetricFamily(
        "rocketpoll_broker_up", "1 if the broker answers, else 0.", labels=_NODE_LABELS
    )
    reachable: list[tuple[BrokerNode, BrokerReport]] = []
    for node, report in reports:
        up.add_metric(node.labels, report is not None)
        if report is not None:
            reachable.append((node, report))
    yield up
    yield from _rate_metrics(reachable)
    yield from _topic_metrics(
        [(node, each) for node, report in reachable for each in report.topics]
    )
    yield from _member_metrics(reachable)
    yield from _group_metrics(
        [(node, each) for node, report in reachable for each in report.groups], now_seconds
    )


def _member_metrics(reports: Iterable[tuple[BrokerNode, BrokerReport]]) -> Iterator[Metric]:
    online = GaugeMetricFamily(
        "rocketmq_consumer_connections",
        "Online members of a group.",
        labels=(*_NODE_LABELS, "consumer_group", *CLIENT_LABELS, "consume_mode", "is_system"),
    )
    for node, report in reports:
        for group, members in report.members.items():
            more = (consume_mode(members.consume_type), _flag(is_system_group(group)))
            kinds = Counter(client_labels(e.language, e.version) for e in members.connection_set)
            for kind, count in sorted(kinds.items()):
                online.add_metric((*node.labels, group, *kind, *more), count)
    yield online


def _rate_metrics(reports: Iterable[tuple[BrokerNode, BrokerReport]]) -> Iterator[Metric]:
    families = {
        name: GaugeMetricFamily(name, description, labels=_NODE_LABELS)
        for name, description in _RATE_METRICS.values()
    }
    for node, report in reports:
        rates = {
            _RATE_METRICS[key][0]: report.runtime[key]
            for key in _RATE_METRICS
            if key in report.runtime
        }
        for name, text in rates.items():
            with suppress(ValueError, IndexError):  # a broker in its first second has none yet
                families[name].add_metric(node.labels, float(text.split()[0]))
    yield from families.values()


def _topic_metrics(topics: Iterable[tuple[BrokerNode, TopicReport]]) -> Iterator[Metric]:
    labels = (*_NODE_LABELS, "topic", "message_type", "is_system")
    sent = CounterMetricFamily(
        "rocketmq_messages_in_total",
        "Messages stored in a topic since it was created.",
        labels=labels,
    )
    kept = GaugeMetricFamily(
        "rocketpoll_topic_messages", "Messages that a topic holds.", labels=labels
    )
    dead = CounterMetricFamily(
        "rocketmq_send_to_dlq_messages_total",
        "Messages that became dead letters of a group.",
        labels=(*_NODE_LABELS, "consumer_group", "is_system"),
    )
    for node, each in topics:
        is_system = _flag(is_system_topic(each.topic))
        values = (*node.labels, each.topic, each.message_type.lower(), is_system)
        sent.add_metric(values, each.end)
        kept.add_metric(values, each.end - each.begin)
        if each.topic.startswith(DLQ_PREFIX):
            group = each.topic[len(DLQ_PREFIX) :]
            dead.add_metric((*node.labels, group, _flag(is_system_group(group))), each.end)
    yield from (sent, kept, dead)


def _group_metrics(
    groups: Iterable[tuple[BrokerNode, GroupReport]], now_seconds: float
) -> Iterator[Metric]:
    labels = (*_NODE_LABELS, "consumer_group", "topic", "is_retry", "is_system")
    lag = GaugeMetricFamily(
        "rocketmq_consumer_lag_messages", "Messages that a group has yet to consume.", labels=labels
    )
    latency = GaugeMetricFamily(
        "rocketmq_consumer_lag_latency_milliseconds",
        "Age in milliseconds of the last consumed message, for groups with lag; else 0.",
        labels=labels,
    )
    offset = GaugeMetricFamily(
        "rocketpoll_group_offset", "Sum of a group's offsets in a topic.", labels=labels
    )
    in_flight = GaugeMetricFamily(
        "rocketmq_consumer_inflight_messages",
        "Messages that a group has popped and not acknowledged yet.",
        labels=labels,
    )
    for node, each in groups:
        is_retry = each.topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
        is_system = is_system_topic(each.topic) or is_system_group(each.group)
        values = (*node.labels, each.group, each.topic, _flag(is_retry), _flag(is_system))
        lag.add_metric(values, each.messages)
        offset.add_metric(values, each.consumed)
        if each.pops_in_flight:  # else omit it: brokers do not count pulled messages
            in_flight.add_metric(values, each.pops_in_flight)
        if not each.messages:
            latency.add_metric(values, 0)
        elif each.last_timestamp_ms:
            latency.add_metric(values, max(now_seconds * 1000 - each.last_timestamp_ms, 0))
    yield from (lag, latency, offset, in_flight)


def _flag(value: bool) -> str:  # noqa: FBT001  # its only argument
    return "true" if value else "false"
