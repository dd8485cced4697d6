"""The lag of a query: in messages, bytes and milliseconds, for each queue.

    lag_of(query.lastProgress)        from Spark's report of the last batch (4.2 and later)
    LagListener                       the same for all queries of a session, as batches end; with a
                                      port, also for Prometheus
    lag_now(offset, "host:9876")      from the brokers: also for 4.0 and 4.1, for a query that is
                                      stopped, and for an offset that `checkpoint` reads

The lag in milliseconds is the time between the last message read and the newest one, both by the
broker's clock: how old the query's view of the queue is. The lag in bytes is the number of messages
times the mean size of those read so far.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, NamedTuple

from pyspark.sql.streaming.listener import StreamingQueryListener

from rmq_spark.client.admin.lag import messages_behind
from rmq_spark.client.arguments import (
    check_range,
    check_text,
    explain_all_keywords,
    explain_keywords,
)
from rmq_spark.client.errors import MessageRejected
from rmq_spark.http_server import MetricsServer, render_metrics
from rmq_spark.spark.brokers.fan_out import instance_for
from rmq_spark.spark.brokers.queue_client import QueueClient
from rmq_spark.spark.errors import CheckpointError, SetUpError
from rmq_spark.spark.options.options import read_options
from rmq_spark.spark.plan.micro_batch_planner import MicroBatchPlanner
from rmq_spark.spark.plan.source_offset import SourceOffset, sizes_in
from rmq_spark.wire.message_queue import MessageQueue


class QueueLag(NamedTuple):
    """The lag of one queue; ``bytes`` and ``ms`` are None if unknown."""

    queue: MessageQueue
    messages: int
    bytes: int | None
    ms: int | None


class QueryLag(NamedTuple):
    """The lag of a source: of each queue, in order, and in total."""

    queues: tuple[QueueLag, ...]

    @property
    def messages(self) -> int:
        """The number of unread messages in all queues."""
        return sum(each.messages for each in self.queues)

    @property
    def bytes(self) -> int | None:
        """The unread bytes of all queues whose message size is known; None if no size is known."""
        known = [each.bytes for each in self.queues if each.bytes is not None]
        return sum(known) if known else None

    @property
    def ms(self) -> int | None:
        """The lag in ms of the queue with the largest lag."""
        known = [each.ms for each in self.queues if each.ms is not None]
        return max(known) if known else None


@explain_keywords
def lag_of(progress: Any) -> QueryLag | None:
    """Return the lag in a query's progress report, or None if it has none.

    Other sources of the query are ignored. Spark reports the newest offsets from 4.2 on;
    for earlier releases ask the brokers with `lag_now`.

    Args:
        progress: A `StreamingQueryProgress`, or the object that its JSON holds.
    """
    found: list[QueueLag] = []
    is_known = False
    for source in _field(progress, "sources") or ():
        end, latest = (
            _parse_offset(_field(source, name)) for name in ("endOffset", "latestOffset")
        )
        if end is not None and latest is not None:
            is_known = True
            at, newest = SourceOffset.from_json(end), SourceOffset.from_json(latest)
            found += lag_between(at, newest, sizes_in(latest))
    return QueryLag(tuple(sorted(found))) if is_known else None


def topics_read(progress: Any) -> frozenset[str]:
    """Return the topics that a query has read, from its progress report."""
    offsets = (
        _parse_offset(_field(source, "endOffset")) for source in _field(progress, "sources") or ()
    )
    return frozenset(
        topic for offset in offsets if offset is not None for topic in offset["offsets"]
    )


def lag_between(
    current: SourceOffset, newest: SourceOffset, sizes: Mapping[MessageQueue, float]
) -> list[QueueLag]:
    """Return the lag of each queue between one offset and a newer one.

    Args:
        current: The offset up to which messages were read.
        newest: The offset at the end of the queues.
        sizes: The mean size of a message of each queue, in bytes.
    """
    found = []
    for queue, end in sorted(newest.positions.items()):
        at = current.positions.get(queue)
        messages = messages_behind(end.next_offset, at.next_offset if at is not None else None)
        if not messages:
            found.append(QueueLag(queue, messages=0, bytes=0, ms=0))
            continue
        size = sizes.get(queue)
        began_ms = at.stored_ms if at is not None else None
        ms = None
        if began_ms is not None and end.stored_ms is not None:
            ms = max(end.stored_ms - began_ms, 0)
        found.append(
            QueueLag(queue, messages, None if size is None else round(messages * size), ms)
        )
    return found


@explain_keywords
def lag_now(
    offset: SourceOffset | Mapping[str, Any], namesrv_addr: str, **options: str
) -> QueryLag:
    """Return the lag of an offset: how far it is behind the ends that brokers report now.

    Args:
        offset: An offset of a query, as an object or as the JSON that a checkpoint holds.
        namesrv_addr: The name servers, as ``"localhost:9876"``.
        options: Further options of the source.
    """
    reached = offset if isinstance(offset, SourceOffset) else SourceOffset.from_json(offset)
    if not reached.topics:
        return QueryLag(())
    given = read_options(
        {**options, "namesrvAddr": namesrv_addr, "topic": ",".join(sorted(reached.topics))}
    )
    instance = instance_for(given.access)
    try:
        batches = MicroBatchPlanner(given, QueueClient(given, instance), time.monotonic)
        reached = reached.renamed(given.broker_names)
        newest = batches.fetch_ends(reached)
        return QueryLag(tuple(lag_between(reached, newest, batches.sizes)))
    finally:
        instance.shutdown()


@explain_all_keywords
class LagListener(StreamingQueryListener):
    """A streaming query listener that keeps the lag of each query after its last batch.

    Add it with ``spark.streams.addListener(listener)``; then ``listener.lag("name of the query")``
    or its id gives the lag.
    """

    def __init__(
        self,
        on_lag: Callable[[str, QueryLag], None] | None = None,
        *,
        port: int | None = None,
        host: str | None = None,
    ) -> None:
        """Start with no query known.

        Args:
            on_lag: Called with name or id of a query, and its lag, after each batch, on Spark's
                listener thread.
            port: Port at which Prometheus reads the lag of all running queries, at /metrics; 0
                takes a free one, and `url` names it. None, the default, opens no port.
            host: Address to listen on, by default 127.0.0.1, for this machine only.

        Raises:
            SetUpError: The port cannot be opened.
            MessageRejected: A host is given without a port.
        """
        if host is not None and port is None:
            raise MessageRejected("port", "a port to listen on together with host", port)
        self._on_lag = on_lag
        self._by_query: dict[str, QueryLag] = {}
        self._running: dict[str, tuple[str, QueryLag]] = {}
        self._server = None if port is None else self._serve(host or "127.0.0.1", port)

    def _serve(self, host: str, port: int) -> MetricsServer:
        check_text("host", host, "127.0.0.1")
        check_range("port", port, 0, 65_535)
        try:
            server = MetricsServer(host, port, {"/metrics": self._metrics})
        except OSError as error:
            raise SetUpError(
                f"LagListener cannot listen on {host}:{port}: {error.strerror or error}. Choose "
                "another port or host"
            ) from error
        threading.Thread(target=server.serve_forever, name="LagListener", daemon=True).start()
        return server

    @property
    def url(self) -> str | None:
        """The address at which Prometheus reads the lag; None without a port."""
        return None if self._server is None else f"{self._server.url}/metrics"

    def close(self) -> None:
        """Close the port, if there is one; `lag` still answers."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def lag(self, query: str) -> QueryLag | None:
        """Return the lag of a query by its name or id; None before its first batch."""
        return self._by_query.get(query)

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802  # Spark's name
        """Do nothing: no lag is known yet."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802  # Spark's name
        """Record the lag from the progress report of a batch."""
        try:
            lag = lag_of(event.progress)
        except CheckpointError:  # a source of another format that looks like ours
            return
        if lag is None:
            return
        name = event.progress.name or str(event.progress.id)
        self._by_query[name] = self._by_query[str(event.progress.id)] = lag
        self._running[str(event.progress.id)] = name, lag
        if self._on_lag is not None:
            self._on_lag(name, lag)

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802  # Spark's name
        """Do nothing: there is no new message."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802  # Spark's name
        """Keep the last lag of a query that was terminated, and end its metrics."""
        self._running.pop(str(event.id), None)

    def _metrics(self) -> tuple[HTTPStatus, bytes]:
        """Return the lag of the running queries by topic, as Prometheus reads it."""
        from prometheus_client.core import GaugeMetricFamily  # noqa: PLC0415  # only with a port

        labels = ("query", "topic")
        messages = GaugeMetricFamily(
            "rocketpoll_query_lag_messages", "Messages that the query has not read.", labels=labels
        )
        size = GaugeMetricFamily(
            "rocketpoll_query_lag_bytes",
            "Estimated size of the messages that the query has not read.",
            labels=labels,
        )
        seconds = GaugeMetricFamily(
            "rocketpoll_query_lag_seconds",
            "Time between the last message read and the newest one, the longest of all queues.",
            labels=labels,
        )
        for name, lag in list(self._running.values()):
            topics = sorted({each.queue.topic for each in lag.queues})
            for topic in topics:
                part = QueryLag(tuple(each for each in lag.queues if each.queue.topic == topic))
                messages.add_metric((name, topic), part.messages)
                if part.bytes is not None:
                    size.add_metric((name, topic), part.bytes)
                if part.ms is not None:
                    seconds.add_metric((name, topic), part.ms / 1000)
        return HTTPStatus.OK, render_metrics((messages, size, seconds))


def _field(source: Any, name: str) -> Any:
    return source.get(name) if isinstance(source, Mapping) else getattr(source, name, None)


def _parse_offset(text: Any) -> dict[str, Any] | None:
    """Return an offset of this source, from JSON text or its content; None for other sources."""
    found = text
    if isinstance(text, str):
        try:
            found = json.loads(text)
        except ValueError:
            return None
    is_ours = isinstance(found, Mapping) and "v" in found and "offsets" in found
    return dict(found) if is_ours else None
