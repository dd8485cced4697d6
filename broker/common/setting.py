"""Setting: declares a setting with its key, the type of its values, its default and its purpose.

A setting is a field of a frozen dataclass, beside the code that uses it, declared by `setting`.
That declaration alone describes it; `KEYS` in `settings` has all settings by their keys.

A value type parses the text of a value, and formats it as in a file. For an invalid text it raises
a ValueError whose message says what is expected.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

_Value = TypeVar("_Value")
_Choice = TypeVar("_Choice", bound=Enum)


@dataclass(frozen=True, slots=True)
class ValueType(Generic[_Value]):
    """A type of values: a function that parses their text, and one that formats them.

    Attributes:
        bounds: The lowest and the highest value of a number, both included; else None.
        is_secret: True if no error and no list of settings shows a value.
    """

    parse: Callable[[str], _Value]
    to_text: Callable[[_Value], str] = str
    bounds: tuple[int, int] | None = None
    is_secret: bool = False


def number(low: int, high: int) -> ValueType[int]:
    """Return the type of whole numbers from ``low`` to ``high``, both included."""

    def parse(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,19}", text) or not low <= int(text) <= high:
            raise ValueError(f"a number from {low} to {high}")
        return int(text)

    return ValueType(parse, bounds=(low, high))


def choice(choices: type[_Choice], note: str = "") -> ValueType[_Choice]:
    """Return a type for the names of an Enum's members; ``note`` ends the error."""

    def parse(text: str) -> _Choice:
        if text not in choices.__members__:
            raise ValueError(" or ".join(choices.__members__) + note)
        return choices[text]

    return ValueType(parse, lambda member: member.name)


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("true or false")
    return text.lower() == "true"


def _name(text: str) -> str:
    if not re.fullmatch(r"[%|a-zA-Z0-9_.-]{1,127}", text):
        raise ValueError("letters, digits and % | _ . - only")
    return text


def _address(text: str) -> str:
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        raise ValueError("an IP address, for example 127.0.0.1") from None


def _hosts(text: str) -> tuple[str, ...]:
    hosts = tuple(filter(None, (each.strip() for each in text.split(";"))))
    for each in hosts:
        name, _, port = each.rpartition(":")
        is_name = re.fullmatch(r"[a-zA-Z0-9_.-]{1,253}|\[[0-9a-fA-F:.]{2,45}\]", name)
        if not (is_name and re.fullmatch(r"[0-9]{1,5}", port) and 0 < int(port) <= 65_535):
            raise ValueError("addresses as host:port, separated by semicolons")
    return hosts


def _path(text: str, kind: str = "a path") -> Path:
    if "\0" in text:
        raise ValueError(f"{kind}, without a NUL byte")
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise ValueError(f"{kind} without ~, because the home directory is unknown") from None


def _directory(text: str) -> Path:
    if not text:
        raise ValueError("a directory")
    return _path(text, "a directory")


def _hours(text: str) -> tuple[int, ...]:
    hours = tuple(
        int(hour) for hour in text.split(";") if re.fullmatch(r"[0-9]{1,2}", hour.strip())
    )
    if not hours or len(hours) != len(text.split(";")) or max(hours) > 23:
        raise ValueError("hours of the day, for example 04 or 04;16")
    return hours


_UNITS_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_LEVELS_MAX: Final = 1_024
"""Limit on the delay levels, because each has a queue."""
_DELAY_MS_MAX: Final = 36_500 * _UNITS_MS["d"]


def _delay_levels(text: str) -> tuple[int, ...]:
    words = [re.fullmatch(r"([0-9]{1,9})([smhd])", word) for word in text.split()]
    levels = [int(word[1]) * _UNITS_MS[word[2]] for word in words if word]
    if not levels or len(levels) < len(words):
        raise ValueError("delays separated by spaces, for example 1s 5s 10m 2h 1d")
    if len(levels) > _LEVELS_MAX or max(levels) > _DELAY_MS_MAX:
        raise ValueError(
            f"up to {_LEVELS_MAX} delays of up to {_DELAY_MS_MAX // _UNITS_MS['d']}d each"
        )
    return tuple(levels)


def _delay_levels_to_text(levels: Iterable[int]) -> str:
    words = []
    for delay_ms in levels:
        unit = next(unit for unit in "dhms" if delay_ms % _UNITS_MS[unit] == 0)
        words.append(f"{delay_ms // _UNITS_MS[unit]}{unit}")
    return " ".join(words)


@dataclass(frozen=True, slots=True)
class Secret:
    """A text that no log, error or list of settings shows."""

    text: str = field(default="", repr=False)

    def __str__(self) -> str:
        return HIDDEN if self.text else ""


def _secret(text: str) -> Secret:
    if text == HIDDEN:
        raise ValueError("the secret itself")
    return Secret(text)


HIDDEN: Final = "********"
"""The text shown instead of a secret."""
SIZE: Final = number(1, 1 << 50)
OPTIONAL_SIZE: Final = number(0, 1 << 50)
JAVA_INT_MAX: Final = (1 << 31) - 1
"""RocketMQ opens files of up to this many bytes."""
MS: Final = number(0, 1 << 40)
COUNT: Final = number(1, 1 << 30)
FLAG: Final = ValueType(_flag, lambda value: str(value).lower())
NAME: Final = ValueType(_name)
ADDRESS: Final = ValueType(_address)
OPTIONAL_ADDRESS: Final = ValueType(lambda text: _address(text) if text else "")
OPTIONAL_PORT: Final[ValueType[int | None]] = ValueType(
    lambda text: number(0, 65_535).parse(text) if text else None,
    lambda port: "" if port is None else str(port),
    (0, 65_535),
)
HOSTS: Final = ValueType(_hosts, ";".join)
DIRECTORY: Final = ValueType(_directory)
OPTIONAL_PATH: Final[ValueType[Path | None]] = ValueType(
    lambda text: _path(text) if text else None, lambda path: "" if path is None else str(path)
)
SECRET: Final = ValueType(_secret, is_secret=True)
PERCENT: Final = ValueType(
    lambda text: number(1, 100).parse(text) / 100, lambda ratio: str(round(ratio * 100)), (1, 100)
)
HOURS: Final = ValueType(_hours, lambda hours: ";".join(f"{hour:02d}" for hour in hours))
DELAY_LEVELS: Final = ValueType(_delay_levels, _delay_levels_to_text)


@dataclass(frozen=True, slots=True)
class Setting:
    """The description of one setting.

    Attributes:
        key: Its name in a file, which is RocketMQ's own where RocketMQ has it.
        value_type: The type of its values.
        comment: One line on its purpose, with its unit.
        rocketmq: RocketMQ's default if it differs; empty if it is the same, or RocketMQ has none.
        is_reloadable: Whether SIGHUP can change it in a running broker: a limit or rule that is
            looked up on each use. All others are built into parts of the broker at its start.
    """

    key: str
    value_type: ValueType[Any]
    comment: str
    rocketmq: str
    is_reloadable: bool


SETTING: Final = "setting"
"""The key under which a field's metadata has its `Setting`."""


def setting(
    key: str,
    value_type: ValueType[_Value],
    comment: str,
    *,
    default: _Value,
    rocketmq: str = "",
    is_reloadable: bool = False,
) -> _Value:
    """Declare a field of a dataclass as a setting; see `Setting` for the arguments."""
    declared = Setting(key, value_type, comment, rocketmq, is_reloadable)
    return field(default=default, metadata={SETTING: declared})


def required_setting(key: str, value_type: ValueType[_Value], comment: str) -> _Value:
    """Declare a field as a setting without a default, to be given on construction."""
    declared = Setting(key, value_type, comment, "", is_reloadable=False)
    made: _Value = field(metadata={SETTING: declared})
    return made
