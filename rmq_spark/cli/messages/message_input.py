"""Messages as users write them: lines, whole files, or JSON lines, each with its place.

What a line says itself goes before what was said for all. The first that cannot be sent ends the
reading, and the error names its line. This module must not know brokers.
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
_ANY_ID: Final = "0" * 32
_TEXT_BYTES_MAX: Final = 64 * 1024 * 1024
"""A limit for what one message is read from: in JSON, a body takes several times its bytes."""
_OF_CONSUME: Final = frozenset(
    {"topic", "broker", "queue", "offset", "id", "stored", "born", "born_host"}
    | {"reconsume_times", "fault"}
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


def texts_of(files: tuple[str, ...], *, whole: bool) -> Iterator[Text]:
    """Yield the lines of files, or of stdin, that are not empty; or files as a whole.

    Raises:
        Failure: A file cannot be read.
    """
    if not files:
        yield from _lines("line", sys.stdin.buffer)
    for name in files:
        if name == "-":
            yield from _lines("line", sys.stdin.buffer)
        else:
            yield from _texts_of(Path(name), whole=whole)


def _texts_of(path: Path, *, whole: bool) -> Iterator[Text]:
    try:
        with path.open("rb") as file:
            if whole:
                yield Text(str(path), _bounded(file.read(_TEXT_BYTES_MAX + 1), str(path)))
            else:
                yield from _lines(f"{path} line", file)
    except OSError as error:
        raise Failure(f"{path} cannot be read: {error.strerror}") from error


def _lines(place: str, file: BinaryIO) -> Iterator[Text]:
    lines = iter(lambda: file.readline(_TEXT_BYTES_MAX + 1), b"")
    for number, line in enumerate(lines, 1):
        data = _bounded(line, f"{place} {number}").removesuffix(b"\n").removesuffix(b"\r")
        if data:
            yield Text(f"{place} {number}", data)


def _bounded(data: bytes, place: str) -> bytes:
    if len(data) > _TEXT_BYTES_MAX:
        raise Failure(f"{place} has over {_TEXT_BYTES_MAX} bytes: a message is smaller")
    return data


def messages_of(texts: Iterable[Text], settings: Settings, *, is_json: bool) -> Iterator[Message]:
    """Yield the message of each text.

    Raises:
        Failure: A text is no message that can be sent; the error names its place.
    """
    for text in texts:
        try:
            message = _of_json(text.data, settings) if is_json else _of_bytes(text.data, settings)
            message.check()
            message.properties_text(_ANY_ID)  # else a wrong one is found without its place
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
    if given.get("fault") is not None:
        raise ValueError(
            f"fault: this message could not be read ({given['fault']}), and body_base64 has its "
            "stored bytes; leave fault out to send these as the body"
        )
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
        flag=given.get("flag", 0),
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


def property_of(text: str) -> tuple[str, str]:
    """Return name and value of a property, as ``colour=red``.

    Raises:
        click.UsageError: One of them is missing.
    """
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise click.UsageError(f"--property {text}: needed NAME=VALUE")
    return name, value
