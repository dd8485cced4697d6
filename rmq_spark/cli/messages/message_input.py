"""Message input: parses messages from lines, whole files, or JSON lines, each with its place.

Values in a line take precedence over those for all messages. Reading stops at the first message
that cannot be sent, and the error names its line.
"""

from __future__ import annotations

import base64
import binascii
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

import click
import orjson

from rmq_spark.cli.shell.failures import Failure
from rmq_spark.client.errors import MessageRejected
from rmq_spark.client.message import Message

_FIELDS: Final = (
    "body",
    "body_base64",
    "keys",
    "tags",
    "properties",
    "sharding_key",
    "delay_level",
    "flag",
)
_PLACEHOLDER_ID: Final = "0" * 32
_TEXT_BYTES_MAX: Final = 64 * 1024 * 1024
"""A limit for what one message is read from: in JSON, a body takes several times its bytes."""
_CONSUME_FIELDS: Final = frozenset(
    {"topic", "broker", "queue", "offset", "id", "stored", "born", "born_host"}
    | {"reconsume_times", "fault"}
)
"""Fields by which ``consume -o json`` tells of a stored message; they are not sent again."""


class MessageDefaults(NamedTuple):
    """Values for all messages that do not have their own."""

    topic: str
    tags: str | None
    keys: tuple[str, ...]
    properties: Mapping[str, str]
    sharding_key: str | None
    delay_level: int


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
            message.properties_text(_PLACEHOLDER_ID)  # else a wrong one is found without its place
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
    )


def _from_json(line: bytes, defaults: MessageDefaults) -> Message:
    try:
        given: Any = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error}") from None
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


def parse_property(text: str) -> tuple[str, str]:
    """Return name and value of a property, such as ``colour=red``."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise click.UsageError(f"--property {text} has no name or no =. Write NAME=VALUE")
    return name, value
