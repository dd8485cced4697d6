"""``rocketpoll produce``: sends lines of stdin or files, whole files, or JSON lines.

    texts (where each stands) ──> messages ──> batches ──> the producer, at no more than --rate

The first text that cannot be sent ends it, and the error names its line: what stands before it is
sent by then.
"""

from __future__ import annotations

import base64
import binascii
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple

import click
import orjson

from rmq_spark.cli.connection import Access, connected
from rmq_spark.cli.failures import Failure, line_of
from rmq_spark.cli.output import json_line
from rmq_spark.cli.tree import HELP_SETTINGS, Verb
from rmq_spark.client.errors import ClientError, MessageRejected, PartlySent
from rmq_spark.client.message import Message

if TYPE_CHECKING:
    from rmq_spark.client.producer.producer import Producer
    from rmq_spark.client.results import SendResult

_GROUP: Final = "rocketpoll-produce"
_FIELDS: Final = (
    *("body", "body_base64", "keys", "tags", "properties", "sharding_key", "delay_level"),
)
_OF_CONSUME: Final = frozenset(
    {"topic", "broker", "queue", "offset", "id", "stored", "born", "born_host", "reconsume_times"}
)
"""Fields by which ``consume -o json`` tells of a stored message; they are not sent again."""


class Settings(NamedTuple):
    """Values for all messages that do not have their own."""

    topic: str
    tags: str | None
    keys: tuple[str, ...]
    properties: Mapping[str, str]
    sharding_key: str | None
    delay_level: int


class Text(NamedTuple):
    """A text to send, and the place that errors name."""

    place: str
    data: bytes


@click.command(
    cls=Verb,
    context_settings=HELP_SETTINGS,
    example="echo 'one order' | rocketpoll produce orders --key order-42 --tags paid\n"
    "seq 1000 | rocketpoll produce orders --batch 100\n"
    "rocketpoll consume orders -n 5 -o json | rocketpoll produce orders-copy --json",
)
@click.argument("topic")
@click.argument("files", nargs=-1, metavar="[FILE]...")
@click.option("--json", "is_json", is_flag=True, help="Lines are JSON objects: body or "
              "body_base64, keys, tags, properties, sharding_key, delay_level.")  # fmt: skip
@click.option("--whole", is_flag=True, help="Each file is one message, not each line.")
@click.option("-t", "--tags", metavar="TAG", help="Tag that consumers filter by.")
@click.option("-k", "--key", "keys", multiple=True, metavar="KEY", help="Key to look it up by; may "
              "be given several times.")  # fmt: skip
@click.option("-p", "--property", "properties", multiple=True, metavar="NAME=VALUE",
              help="A property; may be given several times.")  # fmt: skip
@click.option("--sharding-key", metavar="KEY", help="All go to one queue, in order.")
@click.option("--delay-level", type=click.IntRange(0, 18), default=0, metavar="1..18",
              help="Deliver later: 1 s to 2 h, as the broker is set.")  # fmt: skip
@click.option("--batch", type=click.IntRange(1, 10_000), default=1, show_default=True, metavar="N",
              help="Messages for each request.")  # fmt: skip
@click.option("--rate", type=click.FloatRange(0, min_open=True), metavar="N",
              help="Most messages a second.")  # fmt: skip
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text",
              show_default=True, help="A summary, or a JSON line for each request.")  # fmt: skip
@connected
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
    access: Access,
) -> None:
    """Send each line of stdin, or of files, as a message.

    Empty lines are passed over, as RocketMQ takes no empty bodies. What "consume -o json" prints,
    --json sends again, with keys, tags and properties.
    """
    if whole and (is_json or not files):
        raise click.UsageError("--whole is for files, and not for JSON lines")
    named = dict(_pair(text) for text in properties)
    settings = Settings(topic, tags, keys, named, sharding_key, delay_level)
    made = _messages(_texts(files, whole=whole), settings, is_json=is_json)
    from rmq_spark.client.producer.producer import Producer  # noqa: PLC0415  # not for help

    with Producer(_GROUP, instance=access.instance()) as producer, _progress() as advance:
        sent = Sent(topic)
        try:
            for results, count in _sends(producer, _batches(made, batch), rate, sent):
                advance(count)
                if output == "json":
                    sys.stdout.buffer.write(_result_line(results, count))
        except (ClientError, Failure) as error:
            text = line_of(error) if isinstance(error, ClientError) else error.format_message()
            raise Failure(f"{text}; {sent} before") from error
    if output == "text":
        sys.stdout.write(f"{sent}{sent.where}\n")


class Sent:
    """A count of all that was sent so far, in words."""

    def __init__(self, topic: str) -> None:
        self.count = 0
        self._topic = topic
        self._last: SendResult | None = None

    def add(self, count: int, last: SendResult | None) -> None:
        """Count messages that a broker has stored."""
        self.count += count
        self._last = last or self._last

    def __str__(self) -> str:
        what = "message was" if self.count == 1 else "messages were"
        return f"{self.count} {what} sent to {self._topic}"

    @property
    def where(self) -> str:
        """The place of the last message, or nothing if there is none."""
        if self._last is None:
            return ""
        queue = self._last.queue
        newest = self._last.message_id.rpartition(",")[2]
        return f"; the last is {newest} in {queue.broker_name}:{queue.queue_id}"


def _sends(
    producer: Producer, batches: Iterable[list[Message]], rate: float | None, sent: Sent
) -> Iterator[tuple[list[SendResult], int]]:
    """Send batches, at a rate; yield the results of each and the number of its messages."""
    started = time.monotonic()
    for batch in batches:
        if rate is not None:
            time.sleep(max(started + sent.count / rate - time.monotonic(), 0))
        try:
            results = (
                [producer.send(batch[0])] if len(batch) == 1 else list(producer.send_batch(batch))
            )
        except PartlySent as error:
            sent.add(error.messages_sent, None)
            raise
        sent.add(len(batch), results[-1])
        yield results, len(batch)


def _batches(messages: Iterator[Message], size: int) -> Iterator[list[Message]]:
    """Yield messages by the batch; those before a fault are yielded before it is raised."""
    batch: list[Message] = []
    fault: Failure | None = None
    try:
        for message in messages:
            batch.append(message)
            if len(batch) == size:
                yield batch
                batch = []
    except Failure as error:
        fault = error
    if batch:
        yield batch
    if fault is not None:
        raise fault


def _texts(files: tuple[str, ...], *, whole: bool) -> Iterator[Text]:
    if not files:
        yield from _lines("line", sys.stdin.buffer)
    for name in files:
        if name == "-":
            yield from _lines("line", sys.stdin.buffer)
        else:
            yield from _texts_of(Path(name), whole=whole)


def _texts_of(path: Path, *, whole: bool) -> Iterator[Text]:
    try:
        if whole:
            yield Text(str(path), path.read_bytes())
            return
        with path.open("rb") as file:
            yield from _lines(f"{path} line", file)
    except OSError as error:
        raise Failure(f"{path} cannot be read: {error.strerror}") from error


def _lines(place: str, file: BinaryIO) -> Iterator[Text]:
    for number, line in enumerate(file, 1):
        data = line.removesuffix(b"\n").removesuffix(b"\r")
        if data:
            yield Text(f"{place} {number}", data)


def _messages(texts: Iterable[Text], settings: Settings, *, is_json: bool) -> Iterator[Message]:
    for text in texts:
        try:
            message = _of_json(text.data, settings) if is_json else _of_bytes(text.data, settings)
            message.check()
        except (MessageRejected, TypeError, ValueError) as error:
            raise Failure(f"{text.place}: {error}") from error
        yield message


def _of_bytes(body: bytes, settings: Settings) -> Message:
    return Message(
        settings.topic,
        body,
        tags=settings.tags,
        keys=list(settings.keys) or None,
        properties=settings.properties,
        sharding_key=settings.sharding_key,
        delay_level=settings.delay_level,
    )


def _of_json(line: bytes, settings: Settings) -> Message:
    try:
        given: Any = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"no JSON: {error}") from None
    if not isinstance(given, dict):
        raise TypeError('needed an object, as {"body": "text", "keys": ["order-42"]}')
    unknown = [name for name in given if name not in _FIELDS and name not in _OF_CONSUME]
    if unknown:
        raise ValueError(f"{unknown[0]!r} means nothing; there are {', '.join(_FIELDS)}")
    return Message(
        settings.topic,
        _body_of(given),
        tags=given.get("tags") or settings.tags,
        keys=given.get("keys") or list(settings.keys) or None,
        properties={**settings.properties, **_properties_of(given)},
        sharding_key=given.get("sharding_key") or settings.sharding_key,
        delay_level=given.get("delay_level", settings.delay_level),
    )


def _body_of(given: Mapping[str, Any]) -> bytes:
    if ("body" in given) == ("body_base64" in given):
        raise ValueError("needed one of body and body_base64")
    if "body" in given:
        body = given["body"]
        return body.encode() if isinstance(body, str) else orjson.dumps(body)
    try:
        return base64.b64decode(given["body_base64"], validate=True)
    except (TypeError, binascii.Error) as error:
        raise ValueError(f"body_base64: {error}") from error


def _properties_of(given: Mapping[str, Any]) -> Mapping[str, str]:
    properties = given.get("properties") or {}
    if not isinstance(properties, dict):
        raise TypeError('properties: needed an object of texts, as {"colour": "red"}')
    return properties


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise click.UsageError(f"--property {text}: needed NAME=VALUE")
    return name, value


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
    """Yield what counts messages on stderr, if that is a terminal and is not typed into."""
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
        TextColumn("{task.completed:,.0f} messages, {task.fields[rate]} a second"),
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
