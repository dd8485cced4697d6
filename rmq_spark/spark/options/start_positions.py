"""Positions: where a query starts or ends, as users write it, for all queues or for each by name.

    earliest, latest                    the first message in the queue; the end of the queue
    group, group:latest                 the offset that consumerGroup has committed; else earliest,
                                        or latest (but for a queue that still has its first message
                                        RocketMQ 4.9 answers 0: earliest)
    2026-01-31T12:00:00Z                the first message stored then or later
    -10m, -2h                           the first message stored within this time before now; a
                                        queue without one starts at its end
    -100 messages (or just -100)        100 messages before the end of each queue
    {"orders": {"broker-a": {"0": 23}}} the next offset to read; -2 and -1 are earliest and latest

In JSON, each leaf may be any of these, and ``"*"`` stands for all topics, brokers or queues that
are not named. The broker level may be omitted if only one broker has the topic. The JSON that
`source_offset` writes into a checkpoint is accepted as it is.

Positions are parsed here without asking a broker; `position_resolver` turns them into offsets.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from rmq_spark.client.times import duration_ms, time_in_ms
from rmq_spark.spark.errors import OptionError
from rmq_spark.spark.options.values import check_epoch_ms, json_object
from rmq_spark.wire.names import wrap_namespace

EARLIEST: Final = -2
LATEST: Final = -1
ANY: Final = "*"

_LEVELS: Final = 3

_COUNT: Final = re.compile(r"-\s*([0-9]{1,18})\s*(messages?|records?|rows?)?")
_HINT: Final = "earliest, latest, group, a time, -10m, -100 messages, or JSON of offsets"


@dataclass(frozen=True, slots=True)
class OffsetPosition:
    """A position given as the next offset to read, or EARLIEST or LATEST."""

    offset: int


@dataclass(frozen=True, slots=True)
class TimePosition:
    """The position of the first message stored at or after a time, in ms."""

    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class RelativeTimePosition:
    """A position given as milliseconds before now."""

    ms: int


@dataclass(frozen=True, slots=True)
class CountPosition:
    """A position given as a number of messages before the end of a queue."""

    messages: int


@dataclass(frozen=True, slots=True)
class GroupPosition:
    """The offset that a consumer group has committed, or else ``fallback``: EARLIEST or LATEST."""

    fallback: int


Position = OffsetPosition | TimePosition | RelativeTimePosition | CountPosition | GroupPosition

_WORDS: Final[Mapping[str, Position]] = {
    "earliest": OffsetPosition(EARLIEST),
    "latest": OffsetPosition(LATEST),
    "group": GroupPosition(EARLIEST),
    "group:earliest": GroupPosition(EARLIEST),
    "group:latest": GroupPosition(LATEST),
}


@dataclass(frozen=True, slots=True)
class Positions:
    """One position for all queues, or a tree: topic to broker (which may be omitted) to queue."""

    option: str
    common: Position | None = None
    tree: Mapping[str, Any] | None = None

    def position_of(self, topic: str, broker_name: str, queue_id: int) -> Position | None:
        """Return the position of a queue, or None if the option gives none for it."""
        if self.common is not None:
            return self.common
        found = _child(self.tree, topic)
        if isinstance(found, Mapping) and not _is_queue_level(found):
            found = _child(found, broker_name)
        if isinstance(found, Mapping):
            found = _child(found, str(queue_id))
        return None if isinstance(found, Mapping) else found

    def has_broker_level(self, topic: str) -> bool:
        """Return whether the positions of a topic, if any, distinguish between brokers."""
        below = _child(self.tree, topic)
        return not (isinstance(below, Mapping) and _is_queue_level(below) and set(below) - {ANY})

    def with_namespace(self, namespace: str | None) -> Positions:
        """Return the positions with full topic names, given names within a namespace."""
        if self.tree is None or namespace is None:
            return self
        tree = {
            each if each == ANY else wrap_namespace(namespace, each): at
            for each, at in self.tree.items()
        }
        return Positions(self.option, tree=tree)

    @property
    def topics(self) -> frozenset[str]:
        """The topics with explicit positions."""
        return frozenset(self.tree or ()) - {ANY}

    def named_queues(self, topic: str) -> list[tuple[str, str]]:
        """Return the brokers and queues named for a topic; ``*`` stands for those not named."""
        below = (self.tree or {}).get(topic)
        if not isinstance(below, Mapping):
            return []
        brokers = {ANY: below} if _is_queue_level(below) else below
        return [
            (broker, number)
            for broker, queues in brokers.items()
            for number in (queues if isinstance(queues, Mapping) else (ANY,))
        ]

    def named_brokers(self, topic: str) -> frozenset[str]:
        """Return the brokers named for a topic, or under ``*`` if the topic is not named."""
        below = _child(self.tree, topic)
        if not isinstance(below, Mapping) or _is_queue_level(below):
            return frozenset()
        return frozenset(below) - {ANY}

    def positions_of_topic(self, topic: str) -> list[Position]:
        """Return all positions that can apply to queues of a topic."""
        return [each for each in _leaves(_child(self.tree, topic)) if each is not None]

    @property
    def uses_group(self) -> bool:
        """True if any position is a consumer group's offset."""
        return any(isinstance(each, GroupPosition) for each in _leaves(self.common or self.tree))


def parse_positions(option: str, text: str) -> Positions:
    """Parse an option such as ``startingOffsets``: a word, a time, a count or a JSON object."""
    stripped = text.strip()
    if stripped.startswith("{"):
        found = json_object(option, stripped)
        if _is_version(found.get("v")) and isinstance(found.get("offsets"), dict):
            found = found["offsets"]  # from a checkpoint; else topics may have these names
        return Positions(option, tree=_parse_tree(option, found, (), _parse_offset))
    return Positions(option, common=parse_position(option, stripped))


def parse_times(option: str, text: str) -> Positions:
    """Parse an option such as ``startingOffsetsByTimestamp``: a JSON object of ms or ISO times."""
    return Positions(option, tree=_parse_tree(option, json_object(option, text), (), _parse_time))


def parse_position(option: str, text: str) -> Position:
    """Parse a position that is a word, a time, or a distance."""
    word = text.lower()
    if word in _WORDS:
        return _WORDS[word]
    if text in (str(EARLIEST), str(LATEST)):
        name = "earliest" if text == str(EARLIEST) else "latest"
        raise OptionError(
            option,
            f'{text} is ambiguous. Write {name}, or "{text} messages" to start that many messages '
            "before the end",
        )
    count = _COUNT.fullmatch(word)
    if count is not None:
        return CountPosition(int(count[1]))
    if word.startswith("-"):
        ms = duration_ms(word[1:])
        if ms is not None:
            return RelativeTimePosition(ms)
    at = time_in_ms(text)
    if at is not None:
        return TimePosition(at)
    hint = ". An offset is a number without quotes in JSON" if word.isdecimal() else ""
    raise OptionError(option, f"needed {_HINT}, found {text!r}{hint}")


def check_is_time(option: str, text: str, other: str) -> None:
    """Refuse a word or a time before now in an option that takes times; ``other`` takes both."""
    word = text.strip().lower()
    if word in _WORDS or (word.startswith("-") and word[-1].isalpha() and duration_ms(word[1:])):
        raise OptionError(
            option,
            "needed milliseconds since 1970 or a time such as 2026-01-31T12:00:00Z, found "
            f"{text!r}. Give it as {other}",
        )


def _parse_tree(
    option: str,
    found: Mapping[str, Any],
    path: tuple[str, ...],
    leaf: Callable[[str, str, Any], Position],
) -> dict[str, Any]:
    path_text = " > ".join(path)
    if not found:
        raise OptionError(
            option, f"{path_text or 'the object'} is empty: name queues, or {ANY} for all others"
        )
    if len(path) >= _LEVELS:
        raise OptionError(option, f"{path_text} is one level too deep: needed topic, broker, queue")
    tree: dict[str, Any] = {}
    for name, below in found.items():
        item_path = (*path, name)
        if isinstance(below, dict):
            tree[name] = _parse_tree(option, below, item_path, leaf)
            continue
        if path and name != ANY and not (name.isascii() and name.isdigit()):
            raise OptionError(option, f"{path_text}: needed a queue number, found {name!r}")
        tree[name] = leaf(option, " > ".join(item_path), below)
    return tree


def _parse_offset(option: str, path: str, value: object) -> Position:
    if isinstance(value, str):
        return parse_position(f"{option}, at {path}", value)
    if isinstance(value, bool) or not isinstance(value, int) or value < EARLIEST:
        raise OptionError(
            option, f"{path}: needed an offset of {EARLIEST} or more, found {value!r}"
        )
    return OffsetPosition(value)


def _parse_time(option: str, path: str, value: object) -> Position:
    if isinstance(value, str):
        ms = time_in_ms(value)
        if ms is not None:
            return TimePosition(ms)
    elif isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return TimePosition(check_epoch_ms(f"{option}, at {path}", value))
    raise OptionError(
        option,
        f"{path}: needed milliseconds since 1970 or a time such as 2026-01-31T12:00:00Z, found "
        f"{value!r}",
    )


def _is_version(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _child(tree: Mapping[str, Any] | None, name: str) -> Any:
    tree = tree or {}
    return tree[name] if name in tree else tree.get(ANY)


def _is_queue_level(node: Mapping[str, Any]) -> bool:
    """Return whether the JSON object of a topic holds queues directly, without a broker level."""
    return not any(isinstance(each, Mapping) for each in node.values())


def _leaves(found: Any) -> list[Any]:
    if isinstance(found, Mapping):
        return [leaf for below in found.values() for leaf in _leaves(below)]
    return [found]
