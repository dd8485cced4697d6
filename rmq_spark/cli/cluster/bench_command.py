"""``rocketpoll bench``: measures how fast a cluster stores and delivers messages to one client.

produce and latency write to the given topic: use a topic without consumers. The benchmarks in
benchmarks/README.md are more careful, and compare rocketpoll with other brokers.
"""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import click

from rmq_spark.cli.shell.command_tree import CommandGroup
from rmq_spark.cli.shell.connection import ClusterAccess, full_name_options
from rmq_spark.cli.shell.failures import Failure
from rmq_spark.cli.shell.output import ByteSize, output_option, show_document
from rmq_spark.cli.shell.parameter_types import (
    PositionKind,
    PositiveFloat,
    TopicPosition,
    rate_limited,
    resolve_ranges,
)
from rmq_spark.client.message import Message
from rmq_spark.errors import RocketPollError, format_count

if TYPE_CHECKING:
    from rmq_spark.client.admin.admin import Admin
    from rmq_spark.client.producer.producer import Producer

_GROUP: Final = "rocketpoll-bench"
_TIMEOUT_SECONDS: Final = 10.0
_POLL_MS: Final = 100
_SENT_AT_PROPERTY: Final = "sentAt"

_TimedStep: TypeAlias = "Callable[[], list[float]]"
"""A step of a measurement; it returns the seconds that each of its sends took."""

_seconds = click.option("--seconds", type=PositiveFloat(), default=10.0, metavar="SECONDS",
                        show_default=True, help="How long to send.")  # fmt: skip
_bytes = click.option("--bytes", "body_bytes", type=click.IntRange(1, 4 << 20), default=100,
                      metavar="N", show_default=True, help="Size of a message body.")  # fmt: skip


@click.group(cls=CommandGroup)
def bench() -> None:
    """Measure how fast a cluster stores and delivers messages."""


@bench.command(example="rocketpoll bench produce bench --seconds 1 --batch 100")
@click.argument("topic")
@_seconds
@_bytes
@click.option("--batch", type=click.IntRange(1, 10_000), default=1, show_default=True, metavar="N",
              help="Messages per request.")  # fmt: skip
@click.option("--in-flight", type=click.IntRange(1, 10_000), default=1, show_default=True,
              metavar="N", help="Unanswered requests at a time. Needs --batch 1.")  # fmt: skip
@output_option
@full_name_options
def produce(
    topic: str,
    seconds: float,
    body_bytes: int,
    batch: int,
    in_flight: int,
    output: str,
    access: ClusterAccess,
) -> None:
    """Send as fast as possible; show rate and latency."""
    if batch > 1 and in_flight > 1:
        raise click.UsageError("--in-flight and --batch exclude each other. Leave one out")
    from rmq_spark.client.producer.producer import Producer  # noqa: PLC0415  # --help does not need it

    message = Message(topic, random.randbytes(body_bytes))  # noqa: S311  # no secret
    with access.admin() as admin, Producer(_GROUP, instance=admin.instance) as producer:
        admin.route(topic)
        send, rest = _sync_sender(producer, message, batch, in_flight)
        started = time.monotonic()
        latencies = []
        while time.monotonic() < started + seconds:
            latencies += send()
        latencies += rest()
        elapsed = time.monotonic() - started
    count = len(latencies) * batch
    show_document({**_rates(count, count * body_bytes, elapsed), **_percentiles(latencies)}, output)


@bench.command(example="rocketpoll bench consume orders")
@click.argument("topic")
@output_option
@full_name_options
def consume(topic: str, output: str, access: ClusterAccess) -> None:
    """Read all messages of a topic, queue by queue, and show the rate. Moves no offsets."""
    from rmq_spark.client.message import decode_pulled  # noqa: PLC0415  # --help does not need it
    from rmq_spark.client.reading.bulk_pull import BulkPull  # noqa: PLC0415  # --help needs no client
    from rmq_spark.client.reading.read_bounds import READER_GROUP  # noqa: PLC0415  # --help needs no client

    count = size = 0
    with access.admin() as admin:
        ranges = resolve_ranges(admin.instance, topic, TopicPosition(PositionKind.START), None)
        started = time.monotonic()
        for queue, address, start, end in ranges:
            for chunk in BulkPull(admin.instance.api, address, READER_GROUP, queue, start, end):
                for message in decode_pulled(chunk.records, queue):
                    count += 1
                    size += len(message.body)
        elapsed = time.monotonic() - started
    show_document(_rates(count, size, elapsed), output)


@bench.command(example="rocketpoll bench latency bench --seconds 1 --rate 50")
@click.argument("topic")
@_seconds
@_bytes
@click.option("--rate", type=PositiveFloat(), default=100.0, show_default=True, metavar="N",
              help="Messages per second.")  # fmt: skip
@output_option
@full_name_options
def latency(
    topic: str, seconds: float, body_bytes: int, rate: float, output: str, access: ClusterAccess
) -> None:
    """Send at a fixed rate; show the latency from producer to consumer."""
    from rmq_spark.client.producer.producer import Producer  # noqa: PLC0415  # --help does not need it

    count = max(int(seconds * rate), 1)
    with access.admin() as admin, Producer(_GROUP, instance=admin.instance) as producer:
        arrived = _delivery_latencies(admin, topic)
        next(arrived)  # reading starts here
        failed: list[RocketPollError] = []

        def send() -> None:
            try:
                _send_at_rate(producer, topic, body_bytes, rate, count)
            except RocketPollError as error:  # the loop below raises it
                failed.append(error)

        sending = threading.Thread(target=send, daemon=True)
        sending.start()
        latencies: list[float] = []
        deadline = time.monotonic() + seconds + _TIMEOUT_SECONDS
        for each in arrived:
            latencies += each
            if failed:
                raise failed[0]
            if len(latencies) >= count or time.monotonic() > deadline:
                break
        sending.join(_TIMEOUT_SECONDS)
    if not latencies:
        sent = format_count(count, "message")
        raise Failure(f"none of {sent} has arrived", "Run rocketpoll cluster health")
    show_document({"sent": count, "arrived": len(latencies), **_percentiles(latencies)}, output)


def _sync_sender(
    producer: Producer, message: Message, batch: int, in_flight: int
) -> tuple[_TimedStep, _TimedStep]:
    """Return two steps: one sends once, the other waits for all pending responses."""
    if in_flight > 1:
        return _async_sender(producer, message, in_flight)
    messages = [message] * batch

    def send() -> list[float]:
        before = time.monotonic()
        if batch == 1:
            producer.send(message)
        else:
            producer.send_batch(messages)
        return [time.monotonic() - before]

    return send, list


def _async_sender(
    producer: Producer, message: Message, in_flight: int
) -> tuple[_TimedStep, _TimedStep]:
    waiting: deque[tuple[float, Any]] = deque()

    def send() -> list[float]:
        waiting.append((time.monotonic(), producer.send_async(message)))
        return [] if len(waiting) < in_flight else [await_oldest()]

    def await_oldest() -> float:
        before, future = waiting.popleft()
        future.result(_TIMEOUT_SECONDS)
        return time.monotonic() - before

    return send, lambda: [await_oldest() for _ in range(len(waiting))]


def _send_at_rate(producer: Producer, topic: str, body_bytes: int, rate: float, count: int) -> None:
    body = random.randbytes(body_bytes)  # noqa: S311  # no secret
    for _ in rate_limited(range(count), rate):
        now = {_SENT_AT_PROPERTY: repr(time.monotonic())}
        producer.send(Message(topic, body, properties=now))


def _delivery_latencies(admin: Admin, topic: str) -> Iterator[list[float]]:
    """Yield once when reading has started, then the latencies in seconds of messages received."""
    from rmq_spark.client.consumer.lite_pull_consumer import Consumer  # noqa: PLC0415  # --help does not need it
    from rmq_spark.client.consumer.settings import LitePullSettings  # noqa: PLC0415  # --help needs no client
    from rmq_spark.client.reading.read_bounds import READER_GROUP  # noqa: PLC0415  # --help needs no client

    ranges = resolve_ranges(admin.instance, topic, TopicPosition(PositionKind.END), None)
    consumer = Consumer(
        READER_GROUP, instance=admin.instance, settings=LitePullSettings(auto_commit=False)
    )
    with consumer:
        consumer.assign([bounds.queue for bounds in ranges])
        for bounds in ranges:
            consumer.seek(bounds.queue, bounds.start)
        yield []
        while True:
            found = consumer.poll(_POLL_MS)
            now = time.monotonic()
            yield [
                now - float(m.properties[_SENT_AT_PROPERTY])
                for m in found
                if _SENT_AT_PROPERTY in m.properties
            ]


def _rates(count: int, size: int, seconds: float) -> dict[str, object]:
    return {
        "messages": count,
        "seconds": round(seconds, 3),
        "messages_per_second": round(count / seconds),
        "bytes_per_second": ByteSize(size / seconds),
    }


def _percentiles(latencies: Sequence[float]) -> dict[str, object]:
    ordered = sorted(latencies)
    if not ordered:
        return {}
    named = {"p50_ms": 0.5, "p99_ms": 0.99, "p999_ms": 0.999, "max_ms": 1.0}
    return {
        name: round(ordered[min(int(part * len(ordered)), len(ordered) - 1)] * 1_000, 3)
        for name, part in named.items()
    }
