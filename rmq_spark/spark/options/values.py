"""Option values: parsers for numbers, booleans, times, durations and sizes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Final

from rmq_spark.client.arguments import LIKELY_SECONDS, MILLISECONDS_MAX
from rmq_spark.client.times import duration_ms, time_in_ms
from rmq_spark.errors import excerpt
from rmq_spark.spark.errors import OptionError
from rmq_spark.wire.names import NAMESPACE_SEPARATOR, topic_fault


class BodyFormat(Enum):
    """The values of option ``bodyFormat``."""

    BINARY = "binary"
    TEXT = "text"
    JSON = "json"
    AVRO = "avro"
    MSGPACK = "msgpack"
    PROTOBUF = "protobuf"


class OnBadRecord(Enum):
    """The values of option ``onBadRecord``."""

    FAIL = "fail"
    NULL = "null"
    SKIP = "skip"
    DEAD_LETTER = "dead_letter"


class RowIds(str, Enum):
    """The kinds of row ids, with which a reader recognizes a row that was sent twice."""

    NONE = "false"
    POSITIONS = "true"
    """By partition and row number: correct if a task that is run again has the same rows in the
    same order."""
    KEYS = "keys"
    """By the row's keys: correct in every plan, if keys are unique within a batch."""


WRITE_NAME_MAX: Final = 255

_BYTES_OF_UNIT: Final = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_DIGITS_MAX: Final = 18
_NUMBER: Final = re.compile(r"[0-9]{1,18}")
_LIKELY_DATES: Final = range(1_900, LIKELY_SECONDS.start)
"""Numbers that may be a year or a date; as milliseconds they would be early in January 1970."""
_DATE_DIGITS: Final = len("20260131")
_AMOUNT: Final = re.compile(r"([0-9]{1,18})\s*([a-z]*)")


def whole_number(option: str, text: str, least: int = 0, most: int | None = None) -> int:
    """Parse an integer from ``least`` to ``most``."""
    digits = text.strip()
    is_number = _NUMBER.fullmatch(digits) is not None
    if not is_number or int(digits) < least or (most is not None and int(digits) > most):
        limits = f"from {least} on" if most is None else f"from {least} to {most}"
        if not is_number and digits.isascii() and digits.isdigit():
            limits += f", of at most {_DIGITS_MAX} digits"
        raise OptionError(option, f"needed a whole number {limits}, found {excerpt(text)}")
    return int(digits)


def timeout_ms(option: str, text: str) -> int:
    """Parse a request timeout in milliseconds."""
    return whole_number(option, text, 1, MILLISECONDS_MAX)


def boolean(option: str, text: str) -> bool:
    """Parse ``true`` or ``false``; other texts are refused."""
    word = text.strip().lower()
    if word not in ("true", "false"):
        raise OptionError(option, f"needed true or false, found {text!r}")
    return word == "true"


def one_of(*words: str) -> Callable[[str, str], str]:
    """Return a parser of one of these words, in any case."""

    def parse(option: str, text: str) -> str:
        word = text.strip().lower()
        if word not in words:
            needed = f"{', '.join(words[:-1])} or {words[-1]}"
            raise OptionError(option, f"needed {needed}, found {text!r}")
        return word

    return parse


def member_of(kind: type[Enum]) -> Callable[[str, str], Enum]:
    """Return a parser of the values of an enum."""
    parse = one_of(*(each.value for each in kind))
    return lambda option, text: kind(parse(option, text))


def names(option: str, text: str) -> tuple[str, ...]:
    """Parse names with commas between them."""
    found = tuple(name.strip() for name in text.split(","))
    if not all(found):
        raise OptionError(option, f"there is an empty name in {text!r}")
    return found


def milliseconds(option: str, text: str) -> int:
    """Parse a duration such as ``500``, ``500ms``, ``15m`` or ``10 minutes``."""
    found = duration_ms(text)
    if found is None:
        raise OptionError(option, f"needed a duration such as 500ms, 30s or 15m, found {text!r}")
    return found


def size_in_bytes(option: str, text: str, most: int | None = None) -> int:
    """Parse a size such as ``1048576``, ``64k``, ``8mb`` or ``1g``, up to ``most`` bytes."""
    match = _AMOUNT.fullmatch(text.strip().lower())
    unit = (
        (match[2][:1] if match[2] in (match[2][:1], match[2][:1] + "b") else "?") if match else "?"
    )
    if match is None or unit not in _BYTES_OF_UNIT or not int(match[1]):
        raise OptionError(
            option, f"needed a size above 0 such as 1000000, 64k, 8m or 1g, found {text!r}"
        )
    found = int(match[1]) * _BYTES_OF_UNIT[unit]
    if most is not None and found > most:
        raise OptionError(option, f"needed a size up to {most}, found {text!r}")
    return found


def timestamp(option: str, text: str) -> int:
    """Parse milliseconds since 1970, or an ISO time."""
    if _NUMBER.fullmatch(text.strip()):
        return check_epoch_ms(option, int(text))
    found = time_in_ms(text)
    if found is None:
        raise OptionError(
            option,
            "needed milliseconds since 1970 or a time such as 2026-01-31T12:00:00Z, found "
            f"{text!r}",
        )
    return found


def check_epoch_ms(option: str, ms: int) -> int:
    """Refuse numbers that are probably seconds or dates: as ms, they would be times in 1970."""
    if ms in LIKELY_SECONDS:
        raise OptionError(
            option,
            f"needed milliseconds since 1970, found {ms}: if these are seconds, write {ms * 1000}",
        )
    digits = str(ms)
    if len(digits) == _DATE_DIGITS:
        day = f"{digits[:4]}-{digits[4:6]}-{digits[6:]}"
        if time_in_ms(day) is not None:
            raise OptionError(
                option, f"needed milliseconds since 1970, found {ms}: if this is a day, write {day}"
            )
    if ms in _LIKELY_DATES:
        raise OptionError(
            option,
            f"needed milliseconds since 1970, found {ms}, which is within the first two days of "
            "1970: write a time such as 2026-01-31T12:00:00Z, or 0 for the beginning",
        )
    return ms


def json_object(option: str, text: str) -> dict[str, Any]:
    """Return the content of a JSON object; a repeated name is refused."""
    try:
        found = json.loads(text, object_pairs_hook=lambda pairs: _object(option, pairs))
    except ValueError as error:
        raise OptionError(
            option,
            f"not JSON ({error}): {text!r}. Write an object with names in double quotes, for "
            'example {"orders": ...}',
        ) from None
    if not isinstance(found, dict):
        raise OptionError(option, f"needed a JSON object, found {text!r}")
    return found


def _object(option: str, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise OptionError(
            option,
            f"a name occurs twice among {', '.join((name for name, _ in pairs))}. Keep one of them",
        )
    return found


def namespace(option: str, text: str) -> str:
    """Parse the namespace of topics and groups."""
    name = text.strip()
    if topic_fault(name) is not None or NAMESPACE_SEPARATOR in name:
        raise OptionError(option, f"needed letters, digits and | _ -, found {text!r}")
    return name


def write_name(option: str, text: str) -> str:
    """Parse the name of a write, which identifies its rows."""
    name = text.strip()
    if len(name) > WRITE_NAME_MAX or ":" in name or not name.isprintable():
        raise OptionError(
            option,
            f"needed a name of at most {WRITE_NAME_MAX} characters, none of them a colon or a "
            f"control character, found {text!r}",
        )
    return name


def broker_names(option: str, text: str) -> Mapping[str, str]:
    """Parse new names of brokers by their old ones."""
    found = json_object(option, text)
    for old, new in found.items():
        if not isinstance(new, str) or not new or not old:
            raise OptionError(
                option,
                f'needed names of brokers, for example {{"old": "new"}}, found {new!r} for {old!r}',
            )
        if new in found:
            raise OptionError(option, f"{new} is both an old and a new name. Use it once")
    return found
