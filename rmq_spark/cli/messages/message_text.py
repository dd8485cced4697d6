r"""Message text: formats messages as lines, in a kcat-like format, as JSON lines, or bodies alone.

    %t topic   %b broker   %p queue   %o offset   %T stored (ms)   %k keys   %g tags   %i id
    %s body    %S its size in bytes   %h properties of the user   %r failed deliveries
    %% percent   \n \t \r \0 \\ \xHH

Messages may contain characters that control a terminal: output to a terminal escapes them, and
programs get every byte. Each message that cannot be read is named on stderr; JSON output has its
stored body and the fault, and output of bodies alone omits it.
"""

from __future__ import annotations

import base64
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import click

from rmq_spark.cli.shell.failures import Failure, print_error
from rmq_spark.cli.shell.output import (
    describe_location,
    escape_unprintable,
    format_cell,
    json_line,
    local_time,
    write_text,
)
from rmq_spark.client.forwarding import DEAD_LETTER_ERROR
from rmq_spark.client.message import Message, MessageExt
from rmq_spark.errors import format_count
from rmq_spark.wire.message.properties import RESERVED_NAMES

TEXT: Final = "text"
BODY_FORMATS: Final = (TEXT, "json", "raw", "hex")

Renderer = Callable[[MessageExt], bytes]

_FORMAT_TOKEN: Final = re.compile(r"%(.)|\\x([0-9a-fA-F]{2})|\\(.)|%$|\\$", re.DOTALL)
_ESCAPES: Final = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_FIELDS: Final[Mapping[str, Callable[[MessageExt], bytes]]] = {
    "t": lambda message: message.topic.encode(),
    "b": lambda message: message.queue.broker_name.encode(),
    "p": lambda message: b"%d" % message.queue.queue_id,
    "o": lambda message: b"%d" % message.queue_offset,
    "T": lambda message: b"%d" % message.store_timestamp,
    "k": lambda message: _bytes(" ".join(message.keys)),
    "g": lambda message: _bytes(message.tags or ""),
    "i": lambda message: _bytes(message.message_id),
    "s": lambda message: message.body,
    "S": lambda message: b"%d" % len(message.body),
    "r": lambda message: b"%d" % message.reconsume_times,
    "h": lambda message: _bytes(
        ",".join(f"{name}={value}" for name, value in user_properties(message).items())
    ),
}


def renderer(output: str, text_format: str | None) -> Renderer:
    """Return the function that formats a message, for this output or kcat-like format."""
    if text_format is not None:
        return _format_renderer(text_format)
    return {
        TEXT: _line,
        "json": lambda message: json_line(message_fields(message)),
        "raw": _body_renderer(lambda message: message.body + b"\n"),
        "hex": _body_renderer(lambda message: message.body.hex().encode() + b"\n"),
    }[output]


def show_messages(
    messages: Iterable[MessageExt], render: Renderer, *, flush_each: bool = False
) -> int:
    """Write messages to stdout and return their number; name unreadable ones on stderr."""
    count = left_out = 0
    for message in messages:
        count += 1
        text = render(message)
        if message.fault is not None:
            print_error(
                "rocketpoll", f"{describe_location(message)} cannot be read: {message.fault}"
            )
            left_out += not text
        write_bytes(text)
        if flush_each:
            sys.stdout.flush()
    if left_out:
        raise Failure(
            f"cannot read the bodies of {format_count(left_out, 'message')}, named above",
            "Print their stored bytes with -o json",
        )
    return count


def write_bytes(data: bytes) -> None:
    """Write to stdout; in a terminal, escape control characters."""
    if sys.stdout.isatty():
        write_text(data.decode(errors="backslashreplace"))
    else:
        binary = getattr(sys.stdout, "buffer", None)
        if binary is None:  # a program has replaced stdout
            sys.stdout.write(data.decode(errors="backslashreplace"))
        else:
            binary.write(data)


def user_properties(message: MessageExt) -> dict[str, str]:
    """Return the properties that the sender gave, without RocketMQ's own."""
    return {name: value for name, value in message.properties.items() if name not in RESERVED_NAMES}


def message_fields(message: MessageExt) -> dict[str, object]:
    """Return a message as its JSON fields, which ``produce --json`` accepts."""
    if message.fault is None:
        body = _body_fields(message.body)
    else:
        body = {"body_base64": base64.b64encode(message.body).decode(), "fault": message.fault}
    sharding_key = message.properties.get("__SHARDINGKEY")
    return {
        "topic": message.topic,
        "broker": message.queue.broker_name,
        "queue": message.queue.queue_id,
        "offset": message.queue_offset,
        "id": message.message_id,
        "stored": local_time(message.store_timestamp),
        "born": local_time(message.born_timestamp),
        "born_host": message.born_host,
        "reconsume_times": message.reconsume_times,
        "tags": message.tags,
        "keys": list(message.keys),
        "properties": user_properties(message),
        "sharding_key": sharding_key,
        "flag": message.flag,
        **body,
    }


def sendable_fields(message: Message) -> dict[str, object]:
    """Return the JSON fields of a message to send, which ``produce --json`` accepts."""
    keys = [message.keys] if isinstance(message.keys, str) else list(message.keys or ())
    given: dict[str, object] = {
        "keys": keys,
        "tags": message.tags,
        "properties": dict(message.properties),
        "sharding_key": message.sharding_key,
        "delay_level": message.delay_level,
        "flag": message.flag,
    }
    return {**_body_fields(message.body), **{name: text for name, text in given.items() if text}}


def _body_fields(body: bytes) -> dict[str, object]:
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode()}


def _line(message: MessageExt) -> bytes:
    """Return a line for people: when, where, tags, keys, body."""
    marks = [f"tags={escape_unprintable(message.tags)}"] if message.tags else []
    marks += [f"keys={escape_unprintable(','.join(message.keys))}"] if message.keys else []
    marks += [f"failures={message.reconsume_times}"] if message.reconsume_times else []
    error = message.properties.get(DEAD_LETTER_ERROR)
    marks += [f"error={escape_unprintable(error)}"] if error else []
    head = (
        f"{format_cell(local_time(message.store_timestamp))}  {escape_unprintable(message.topic)} "
        f"{escape_unprintable(message.queue.broker_name)}:{message.queue.queue_id}@{message.queue_offset}"
    )
    if message.fault is not None:
        body = f"cannot be read: {escape_unprintable(message.fault)}"
    else:
        try:
            body = escape_unprintable(message.body.decode())
        except UnicodeDecodeError:
            body = repr(message.body)
    return _bytes("  ".join([head, *marks, body]) + "\n")


def _body_renderer(render: Renderer) -> Renderer:
    """Return a renderer of bodies; it returns nothing for a message whose body cannot be read."""
    return lambda message: render(message) if message.fault is None else b""


def _format_renderer(text_format: str) -> Renderer:
    pieces: list[bytes | Callable[[MessageExt], bytes]] = []
    at = 0
    for found in _FORMAT_TOKEN.finditer(text_format):
        pieces.append(_bytes(text_format[at : found.start()]))
        pieces.append(_parse_token(found))
        at = found.end()
    pieces.append(_bytes(text_format[at:]))

    def render(message: MessageExt) -> bytes:
        return b"".join(piece if isinstance(piece, bytes) else piece(message) for piece in pieces)

    has_body = _FIELDS["s"] in pieces or _FIELDS["S"] in pieces
    return _body_renderer(render) if has_body else render


def _parse_token(token: re.Match[str]) -> bytes | Callable[[MessageExt], bytes]:
    field, digits, escape = token.groups()
    if field == "%":
        return b"%"
    if field in _FIELDS:
        return _FIELDS[field]
    if digits is not None:
        return bytes.fromhex(digits)
    if escape in _ESCAPES:
        return _ESCAPES[escape]
    fields = " ".join(f"%{each}" for each in _FIELDS)
    raise click.UsageError(f"-f: unknown field {token[0]!r}. Use {fields} %% \\n \\t \\xHH")


def _bytes(text: str) -> bytes:
    return text.encode(errors="backslashreplace")
