"""``rocketpoll produce``: sends lines of stdin or files, whole files, or JSON lines.

    texts (where each stands) ──> messages ──> batches ──> the producer, at no more than --rate

The command stops at the first text that cannot be sent, and the error names its line: everything
before it has been sent by then.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import click

from rmq_spark.cli.messages.message_input import (
    MessageDefaults,
    parse_messages,
    parse_property,
    read_texts,
)
from rmq_spark.cli.shell.command_tree import CommandWithExample
from rmq_spark.cli.shell.connection import ClusterAccess, connection_options
from rmq_spark.cli.shell.failures import Failure, explain_error
from rmq_spark.cli.shell.output import json_line, write_text
from rmq_spark.cli.shell.parameter_types import PositiveFloat
from rmq_spark.client.errors import ClientError, PartlySent
from rmq_spark.client.message import Message
from rmq_spark.errors import format_count

if TYPE_CHECKING:
    from rmq_spark.client.producer.producer import Producer
    from rmq_spark.client.results import SendResult

_GROUP: Final = "rocketpoll-produce"


@click.command(
    cls=CommandWithExample,
    example="echo 'one order' | rocketpoll produce orders --key order-42 --tags paid\n"
    "seq 1000 | rocketpoll produce orders --batch 100\n"
    "rocketpoll consume orders -n 5 -o json | rocketpoll produce orders-copy --json",
)
@click.argument("topic")
@click.argument("files", nargs=-1, metavar="[FILE]...")
@click.option("--json", "is_json", is_flag=True, help="Read lines as JSON objects with body or "
              "body_base64, keys, tags, properties, sharding_key, delay_level, flag.")  # fmt: skip
@click.option("--whole", is_flag=True, help="Send each file as one message, not each line.")
@click.option("-t", "--tags", metavar="TAG", help="Tag by which consumers can filter.")
@click.option("-k", "--key", "keys", multiple=True, metavar="KEY",
              help="Key by which messages can be found. Repeatable.")  # fmt: skip
@click.option("-p", "--property", "properties", multiple=True, metavar="NAME=VALUE",
              help="User property. Repeatable.")  # fmt: skip
@click.option("--sharding-key", metavar="KEY", help="Send all messages to one queue, in order.")
@click.option("--delay-level", type=click.IntRange(0, 18), default=0, show_default=True,
              metavar="N", help="Delay delivery: 1 to 18 are 1 s to 2 h, unless the broker is "
              "configured otherwise.")  # fmt: skip
@click.option("--batch", type=click.IntRange(1, 10_000), default=1, show_default=True, metavar="N",
              help="Messages per request.")  # fmt: skip
@click.option("--rate", type=PositiveFloat(), metavar="N",
              help="Send at most this many messages per second.")  # fmt: skip
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text",
              show_default=True, help="A summary, or one JSON line per request.")  # fmt: skip
@connection_options
def produce(
    topic: str,
    files: tuple[str, ...],
    tags: str | None,
    keys: tuple[str, ...],
    properties: tuple[str, ...],
    sharding_key: str | None,
    delay_level: int,
    batch: int,
    rate: float | None,
    output: str,
    *,
    is_json: bool,
    whole: bool,
    access: ClusterAccess,
) -> None:
    """Send each line of stdin, or of files, as a message.

    Empty lines are skipped, because RocketMQ has no empty bodies. --json reads what "consume -o
    json" prints, and sends it with keys, tags, properties, sharding key and flag.
    """
    if whole and (is_json or not files):
        raise click.UsageError("--whole needs files, and excludes --json. Name the files")
    named = dict(parse_property(text) for text in properties)
    settings = MessageDefaults(topic, tags, keys, named, sharding_key, delay_level)
    made = parse_messages(read_texts(files, whole=whole), settings, is_json=is_json)
    from rmq_spark.client.producer.producer import Producer  # noqa: PLC0415  # not for help

    with Producer(_GROUP, instance=access.instance()) as producer, _progress() as advance:
        sent = SendCounter(topic)
        try:
            for results, count in _send_batches(producer, _batches(made, batch), rate, sent):
                advance(count)
                if output == "json":
                    sys.stdout.buffer.write(_result_line(results, count))
        except (ClientError, Failure) as error:
            explained = explain_error(error) if isinstance(error, ClientError) else error
            before = f" (after {sent})" if sent.count else ""
            raise Failure(f"{explained.problem}{before}", explained.remedy) from error
    if output == "text":
        write_text(f"{sent}{sent.last_location}\n")


class SendCounter:
    """Counts what was sent so far, and describes it in words."""

    def __init__(self, topic: str) -> None:
        self.count = 0
        self._topic = topic
        self._last: SendResult | None = None

    def add(self, count: int, last: SendResult | None) -> None:
        """Count messages that a broker has stored."""
        self.count += count
        self._last = last or self._last

    def __str__(self) -> str:
        return f"{format_count(self.count, 'message was', 'messages were')} sent to {self._topic}"

    @property
    def last_location(self) -> str:
        """The position of the last message, or empty if there is none."""
        if self._last is None:
            return ""
        queue = self._last.queue
        newest = self._last.message_id.rpartition(",")[2]
        return f"; the last one is {newest} in {queue.broker_name}:{queue.queue_id}"


def _send_batches(
    producer: Producer, batches: Iterable[list[Message]], rate: float | None, counter: SendCounter
) -> Iterator[tuple[list[SendResult], int]]:
    """Send batches, at a rate; yield the results of each and the number of its messages."""
    started = time.monotonic()
    for batch in batches:
        if rate is not None:
            time.sleep(max(started + counter.count / rate - time.monotonic(), 0))
        try:
            results = (
                [producer.send(batch[0])] if len(batch) == 1 else list(producer.send_batch(batch))
            )
        except PartlySent as error:
            counter.add(error.messages_sent, None)
            raise
        counter.add(len(batch), results[-1])
        yield results, len(batch)


def _batches(messages: Iterator[Message], size: int) -> Iterator[list[Message]]:
    """Yield messages in batches; those before a fault are yielded before it is raised.

    A batch is stored in one queue, and so has one sharding key.
    """
    batch: list[Message] = []
    fault: Failure | None = None
    try:
        for message in messages:
            if batch and (len(batch) == size or message.sharding_key != batch[0].sharding_key):
                yield batch
                batch = []
            batch.append(message)
    except Failure as error:
        fault = error
    if batch:
        yield batch
    if fault is not None:
        raise fault


def _result_line(results: list[SendResult], count: int) -> bytes:
    first = results[0]
    return json_line(
        {
            "messages": count,
            "ids": [each for result in results for each in result.message_id.split(",")],
            "broker": first.queue.broker_name,
            "queue": first.queue.queue_id,
            "offset": first.queue_offset,
            "status": first.send_status.name,
        }
    )


@contextmanager
def _progress() -> Iterator[Any]:
    """Yield the function that counts messages on stderr, if only that is a terminal."""
    if not sys.stderr.isatty() or sys.stdin.isatty():
        yield lambda _: None
        return
    from rich.console import Console  # noqa: PLC0415  # only in a terminal
    from rich.progress import (  # noqa: PLC0415
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
    )

    columns = (
        SpinnerColumn(),
        TextColumn("{task.completed:,.0f} messages, {task.fields[rate]} per second"),
        TimeElapsedColumn(),
    )
    started = time.monotonic()
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("sent", total=None, rate="0")

        def advance(count: int) -> None:
            done = progress.tasks[0].completed + count
            rate = f"{done / max(time.monotonic() - started, 0.001):,.0f}"
            progress.update(task, advance=count, rate=rate)

        yield advance
