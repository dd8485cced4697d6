"""``rocketpoll produce``: sends lines of stdin or files, whole files, or JSON lines.

``rocketpoll request`` sends them one by one, and prints the reply to each. ``rocketpoll recall``
recalls messages that wait for their time of delivery.

    texts (with their places) ──> messages ──> batches ──> the producer, at no more than --rate

The command stops at the first text that cannot be sent, and the error names its line: everything
before it has been sent by then.
"""

from __future__ import annotations

import base64
import binascii
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple

import click
import orjson

from rmq_spark.cli.messages.message_text import BODY_FORMATS, TEXT, renderer, show_messages
from rmq_spark.cli.shell.command_tree import CommandWithExample, option_set
from rmq_spark.cli.shell.connection import ClusterAccess, connection_options
from rmq_spark.cli.shell.failures import Failure, explain_error
from rmq_spark.cli.shell.output import json_line, write_text
from rmq_spark.cli.shell.parameter_types import PositiveFloat, parse_pairs, rate_limited
from rmq_spark.client.arguments import check_topic
from rmq_spark.client.errors import ClientError, MessageRejected, PartlySent, ReplyTimeout
from rmq_spark.client.message import Message
from rmq_spark.client.times import normalize_duration, normalize_time
from rmq_spark.errors import format_count

if TYPE_CHECKING:
    from rmq_spark.client.producer.producer import Producer
    from rmq_spark.client.results import SendResult

_GROUP: Final = "rocketpoll-produce"


# ---- Input: messages from lines, whole files or JSON lines, each with its place for errors.

_FIELDS: Final = ("body", "body_base64", "keys", "tags", "properties",
                  "sharding_key", "delay_level", "flag")  # fmt: skip
_PLACEHOLDER_ID: Final = "0" * 32
_TEXT_BYTES_MAX: Final = 64 * 1024 * 1024
"""The longest text of a message; in JSON, a body takes several times its bytes."""
_CONSUME_FIELDS: Final = frozenset(
    {"topic", "broker", "queue", "offset", "id", "stored", "born", "born_host"}
    | {"reconsume_times", "fault"}
)
"""Fields of ``consume -o json`` that describe a stored message; they are not sent again."""


class MessageDefaults(NamedTuple):
    """Values for all messages that do not have their own."""

    topic: str
    tags: str | None
    keys: tuple[str, ...]
    properties: Mapping[str, str]
    sharding_key: str | None
    delay_level: int
    deliver_after: str | None = None
    deliver_at: str | None = None


class InputText(NamedTuple):
    """A text to send, and its place for error messages."""

    origin: str
    data: bytes


def read_texts(files: tuple[str, ...], *, whole: bool) -> Iterator[InputText]:
    """Yield the non-empty lines of files, or of stdin; or files as a whole."""
    if not files:
        yield from _read_lines("line", sys.stdin.buffer)
    for name in files:
        if name == "-":
            yield from _read_lines("line", sys.stdin.buffer)
        else:
            yield from _read_file(Path(name), whole=whole)


def _read_file(path: Path, *, whole: bool) -> Iterator[InputText]:
    try:
        with path.open("rb") as file:
            if whole:
                yield InputText(str(path), _check_size(file.read(_TEXT_BYTES_MAX + 1), str(path)))
            else:
                yield from _read_lines(f"{path} line", file)
    except OSError as error:
        raise Failure(f"cannot read {path}: {error.strerror}", "Check the path") from error


def _read_lines(origin: str, file: BinaryIO) -> Iterator[InputText]:
    lines = iter(lambda: file.readline(_TEXT_BYTES_MAX + 1), b"")
    for number, line in enumerate(lines, 1):
        data = _check_size(line, f"{origin} {number}").removesuffix(b"\n").removesuffix(b"\r")
        if data:
            yield InputText(f"{origin} {number}", data)


def _check_size(data: bytes, origin: str) -> bytes:
    if len(data) > _TEXT_BYTES_MAX:
        raise Failure(f"{origin} has more than {_TEXT_BYTES_MAX} bytes", "Send less per message")
    return data


def parse_messages(
    texts: Iterable[InputText], defaults: MessageDefaults, *, is_json: bool
) -> Iterator[Message]:
    """Yield the message of each text."""
    for text in texts:
        try:
            message = (
                _from_json(text.data, defaults) if is_json else _from_bytes(text.data, defaults)
            )
            message.check()
            message.properties_text(_PLACEHOLDER_ID)  # an error of the send would not name the line
        except (MessageRejected, TypeError, ValueError) as error:
            raise Failure(f"{text.origin}: {error}") from error
        yield message


def _from_bytes(body: bytes, defaults: MessageDefaults) -> Message:
    return Message(
        defaults.topic,
        body,
        tags=defaults.tags,
        keys=list(defaults.keys) or None,
        properties=defaults.properties,
        sharding_key=defaults.sharding_key,
        delay_level=defaults.delay_level,
        deliver_after=defaults.deliver_after,
        deliver_at=defaults.deliver_at,
    )


def _from_json(line: bytes, defaults: MessageDefaults) -> Message:
    try:
        given: Any = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise ValueError(
            f"not JSON: {error.msg} at column {error.colno}. Write one JSON object on each line"
        ) from None
    if not isinstance(given, dict):
        raise TypeError(
            'not a JSON object. Write for example {"body": "text", "keys": ["order-42"]}'
        )
    if given.get("fault") is not None:
        raise ValueError(
            f"this message could not be read ({given['fault']}). Remove the field fault to send "
            "the stored bytes in body_base64 as its body"
        )
    unknown = [name for name in given if name not in _FIELDS and name not in _CONSUME_FIELDS]
    if unknown:
        raise ValueError(f"unknown field {unknown[0]!r}. Use {', '.join(_FIELDS)}")
    return Message(
        defaults.topic,
        _body_of(given),
        tags=given.get("tags") or defaults.tags,
        keys=given.get("keys") or list(defaults.keys) or None,
        properties={**defaults.properties, **_properties_of(given)},
        sharding_key=given.get("sharding_key") or defaults.sharding_key,
        delay_level=given.get("delay_level", defaults.delay_level),
        flag=given.get("flag", 0),
        deliver_after=defaults.deliver_after,
        deliver_at=defaults.deliver_at,
    )


def _body_of(fields: Mapping[str, Any]) -> bytes:
    if ("body" in fields) == ("body_base64" in fields):
        raise ValueError("no body, or two. Give either body or body_base64")
    if "body" in fields:
        body = fields["body"]
        return body.encode() if isinstance(body, str) else orjson.dumps(body)
    try:
        return base64.b64decode(fields["body_base64"], validate=True)
    except (TypeError, binascii.Error) as error:
        raise ValueError(f"body_base64: {error}") from error


def _properties_of(fields: Mapping[str, Any]) -> Mapping[str, str]:
    properties = fields.get("properties") or {}
    if not isinstance(properties, dict):
        raise TypeError('properties: not an object of strings. Write for example {"colour": "red"}')
    return properties


def _check(
    normalize: Callable[[str, str], int],
    name: str,
    _: click.Context,
    __: click.Parameter,
    text: str | None,
) -> str | None:
    if text is not None:
        try:
            normalize(name, text)
        except MessageRejected as error:
            raise click.BadParameter(str(error)) from None
    return text


_check_duration: Final = partial(_check, normalize_duration, "duration")
_check_time: Final = partial(_check, normalize_time, "time")

_message_options: Final = option_set(
    click.option("-t", "--tags", metavar="TAG", help="Tag by which consumers can filter."),
    click.option("-k", "--key", "keys", multiple=True, metavar="KEY",
                 help="Key by which messages can be found. Repeatable."),
    click.option("-p", "--property", "properties", multiple=True, metavar="NAME=VALUE",
                 help="User property. Repeatable."),
    click.option("--sharding-key", metavar="KEY",
                 help="Send all messages to one queue, in order."),
)  # fmt: skip


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
@_message_options
@click.option("--delay-level", type=click.IntRange(0, 18), default=0, show_default=True,
              metavar="N", help="Delay delivery: 1 to 18 are 1 s to 2 h, unless the broker is "
              "configured otherwise.")  # fmt: skip
@click.option("--delay", "deliver_after", metavar="TIME", callback=_check_duration,
              help="Delay delivery by a time, such as 90s; not with RocketMQ 4.9.")  # fmt: skip
@click.option("--at", "deliver_at", metavar="TIME", callback=_check_time,
              help="Deliver at a time, such as 2026-01-31T12:00:00Z.")  # fmt: skip
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
    deliver_after: str | None,
    deliver_at: str | None,
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
    check_topic(topic)  # before stdin is read
    if whole and (is_json or not files):
        raise click.UsageError("--whole needs files, and excludes --json. Name the files")
    delays = [name for name, given in (("--delay-level", delay_level), ("--delay", deliver_after),
                                       ("--at", deliver_at)) if given]  # fmt: skip
    if len(delays) > 1:
        raise click.UsageError(f"{delays[0]} excludes {delays[1]}. Give one of them")
    if (deliver_after or deliver_at) and batch > 1:
        raise click.UsageError(
            f"{delays[0]} excludes --batch: RocketMQ cannot delay batches. Omit it"
        )
    named = parse_pairs("--property", properties)
    settings = MessageDefaults(
        topic, tags, keys, named, sharding_key, delay_level, deliver_after, deliver_at
    )
    messages = parse_messages(read_texts(files, whole=whole), settings, is_json=is_json)
    from rmq_spark.client.producer.producer import Producer  # noqa: PLC0415  # --help does not need it

    with Producer(_GROUP, instance=access.instance()) as producer, _progress() as advance:
        sent = SendCounter(topic)
        try:
            for results, count in _send_batches(producer, _batches(messages, batch), rate, sent):
                advance(count)
                if output == "json":
                    sys.stdout.buffer.write(_result_line(results, count))
        except (ClientError, Failure) as error:
            explained = explain_error(error) if isinstance(error, ClientError) else error
            before = f" (after {sent})" if sent.count else ""
            raise Failure(f"{explained.problem}{before}", explained.remedy) from error
    if output == "text":
        write_text(f"{sent}{sent.last_location}\n")


@click.command(
    cls=CommandWithExample,
    example="echo AAPL | rocketpoll request prices --timeout 5s",
)
@click.argument("topic")
@click.argument("files", nargs=-1, metavar="[FILE]...")
@_message_options
@click.option("--timeout", default="3s", show_default=True, metavar="TIME",
              callback=_check_duration, help="How long to wait for each reply.")  # fmt: skip
@click.option("-f", "--format", "text_format", metavar="FORMAT",
              help="Line format, as in rocketpoll consume.")  # fmt: skip
@click.option("-o", "--output", type=click.Choice(BODY_FORMATS), default=TEXT, show_default=True,
              help="Output format, as in rocketpoll consume.")  # fmt: skip
@connection_options
def request(
    topic: str,
    files: tuple[str, ...],
    tags: str | None,
    keys: tuple[str, ...],
    properties: tuple[str, ...],
    sharding_key: str | None,
    timeout: str,
    text_format: str | None,
    output: str,
    access: ClusterAccess,
) -> None:
    """Send each line of stdin, or of files, as a request, and print its reply.

    A consumer of the topic replies, with producer.reply of the Python or Java client. Without a
    reply within --timeout, the command stops with exit code 1.
    """
    check_topic(topic)  # before stdin is read
    render = renderer(output, text_format)
    named = parse_pairs("--property", properties)
    settings = MessageDefaults(topic, tags, keys, named, sharding_key, delay_level=0)
    messages = parse_messages(read_texts(files, whole=False), settings, is_json=False)
    timeout_ms = normalize_duration("--timeout", timeout)
    from rmq_spark.client.producer.producer import Producer  # noqa: PLC0415  # --help does not need it

    with Producer(_GROUP, instance=access.instance()) as producer:
        replies = (producer.request(each, timeout_ms=timeout_ms) for each in messages)
        try:
            show_messages(replies, render, flush_each=True)
        except ReplyTimeout as error:
            raise Failure(
                f"no reply from a consumer of {topic} within {timeout}: {error.where}",
                "Check that a consumer of the topic replies, or raise --timeout",
            ) from error


@click.command(
    cls=CommandWithExample,
    example="echo 'pay order 1' | rocketpoll produce orders --delay 1h -o json "
    "| rocketpoll recall -",
)
@click.argument("handles", nargs=-1, required=True, metavar="HANDLE...")
@connection_options
def recall(handles: tuple[str, ...], access: ClusterAccess) -> None:
    """Recall messages that wait for their time of delivery.

    HANDLE is the recall_handle that "produce -o json" prints for a message sent with --delay or
    --at; - reads handles from stdin, or the lines that produce has printed. The broker does not
    check whether the message still waits.
    """
    texts = [text for each in handles for text in (_read_handles() if each == "-" else (each,))]
    from rmq_spark.client.producer.producer import Producer  # noqa: PLC0415  # --help does not need it

    with Producer(_GROUP, instance=access.instance()) as producer:
        for text in texts:
            write_text(f"recalled {producer.recall(text)}\n")


def _read_handles() -> Iterator[str]:
    """Yield the handles in stdin, each on a line of its own or in a line of ``produce -o json``."""
    for origin, data in _read_lines("line", sys.stdin.buffer):
        if not data.startswith(b"{"):
            yield data.decode(errors="replace").strip()
            continue
        try:
            yield orjson.loads(data)["recall_handle"]
        except (orjson.JSONDecodeError, KeyError):
            raise Failure(
                f"{origin} has no recall_handle",
                "Give lines that produce -o json has printed for messages with --delay or --at",
            ) from None


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
    for batch in rate_limited(batches, rate, len):
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
    """Yield messages in batches; raise a fault after yielding the messages before it.

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
            **({"recall_handle": first.recall_handle} if first.recall_handle else {}),
        }
    )


@contextmanager
def _progress() -> Iterator[Any]:
    """Yield a function that counts messages on stderr, if that is a terminal and stdin is not."""
    if not sys.stderr.isatty() or sys.stdin.isatty():
        yield lambda _: None
        return
    from rich.console import Console  # noqa: PLC0415  # only in a terminal
    from rich.progress import (  # noqa: PLC0415  # rich loads slowly
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
