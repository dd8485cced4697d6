"""Stored properties: rewrites the properties of a message before the broker stores it.

It adds CLUSTER, the cluster's name, and, like 5.x, MSG_REGION and TRACE_ON: a consumer of 5.x drops
the trace of a message without a region. The broker drops WAIT, an instruction to itself, except in
the messages of a batch, where RocketMQ ignores it. The rest of the text is unchanged, and is
decoded only if it may contain one of the names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from rmq_spark.wire.message.properties import (
    CLUSTER,
    DELAY,
    MSG_REGION,
    NAME_VALUE_SEPARATOR,
    PROPERTY_SEPARATOR,
    TIMER_OUT_MS,
    TIMER_PROPERTIES,
    TRACE_ON,
    TRAN_MSG,
    UNIQ_KEY,
    WAIT,
    decode_properties,
    encode_properties,
)

_ADDED_NAMES: Final = (CLUSTER, MSG_REGION, TRACE_ON)
_NAME_PREFIXES: Final = tuple(
    f"{name}{NAME_VALUE_SEPARATOR}" for name in (WAIT, DELAY, TRAN_MSG, *_ADDED_NAMES)
)
_WAIT, _DELAY, _TRAN_MSG, _CLUSTER, _MSG_REGION, _TRACE_ON = _NAME_PREFIXES
_TIMER = "TIMER_DEL"  # the common beginning of TIMERS
_INSTRUCTIONS = (*_NAME_PREFIXES, _TIMER)
_UNIQ_KEY = f"{UNIQ_KEY}{NAME_VALUE_SEPARATOR}"
_SEPARATOR = PROPERTY_SEPARATOR.encode()
_ADDED_BYTES = (_CLUSTER.encode(), _MSG_REGION.encode(), _TRACE_ON.encode())
_DELAY_BYTES, _TIMER_BYTES = _DELAY.encode(), _TIMER.encode()
_LAST_WAIT_PROPERTY = f"{PROPERTY_SEPARATOR}{_WAIT}true"
_WAIT_PROPERTY = f"{_LAST_WAIT_PROPERTY}{PROPERTY_SEPARATOR}"
"""WAIT as Java's producers write it; newer ones omit the last separator."""


class StoredProperties(NamedTuple):
    """The text to store, and the instructions that the properties contained."""

    text: str
    waits: bool = True
    """True if the sender wants a response only when the message is on the disk."""
    delay_level: int = 0
    is_half_message: bool = False
    timer: str | None = None
    """The property that requests a timer, or None."""


_new_properties: Callable[[type[StoredProperties], tuple[Any, ...]], StoredProperties] = (
    tuple.__new__
)


class PropertyRewriter:
    """Rewrites properties for one broker."""

    def __init__(self, cluster_name: str, response_fields: Mapping[str, str]) -> None:
        """Store the properties to add: CLUSTER, and MSG_REGION and TRACE_ON as in responses."""
        self._added_properties = {**response_fields, CLUSTER: cluster_name}
        self._added = encode_properties(self._added_properties)

    def rewrite(self, text: str | None) -> StoredProperties:
        """Return the properties of a send as they are stored."""
        if not text:
            return StoredProperties(self._added)
        if (
            _DELAY in text
            or _CLUSTER in text
            or _TRAN_MSG in text
            or _TIMER in text
            or _MSG_REGION in text
            or _TRACE_ON in text
        ):
            return self._parse(text)
        waits = True
        if _WAIT in text:
            shorter = text.replace(_WAIT_PROPERTY, PROPERTY_SEPARATOR)
            if shorter.endswith(_LAST_WAIT_PROPERTY):
                shorter = shorter[: 1 - len(_LAST_WAIT_PROPERTY)]
            if _WAIT in shorter:
                waits, text = _without_wait(text)
            else:
                text = shorter
        if text and not text.endswith(PROPERTY_SEPARATOR):
            text += PROPERTY_SEPARATOR
        return _new_properties(StoredProperties, (text + self._added, waits, 0, False, None))

    def rewrite_all(self, texts: str, separator: str) -> list[bytes] | None:
        """Return the properties of many sends, each rewritten as for a single send.

        ``separator`` divides the texts and occurs in none of them. Return None if a text has
        instructions other than to wait for the disk.
        """
        text = f"{texts}{separator}".replace(_WAIT_PROPERTY, PROPERTY_SEPARATOR)
        text = text.replace(f"{_LAST_WAIT_PROPERTY}{separator}", f"{PROPERTY_SEPARATOR}{separator}")
        text = text[: -len(separator)]
        if any(map(text.count, _INSTRUCTIONS)):
            return None
        added = self._added.encode()
        return [
            each + added
            if each.endswith(_SEPARATOR) or not each
            else b"".join((each, _SEPARATOR, added))
            for each in text.encode().split(separator.encode())
        ]

    @staticmethod
    def batch_properties(text: str) -> bytes:
        """Return the properties that a batch adds to its messages, except the id of 5.x clients."""
        if _UNIQ_KEY in text:
            properties = decode_properties(text)
            properties.pop(UNIQ_KEY, None)
            text = encode_properties(properties)
        return text.encode()

    def join_in_batch(self, own: bytes, batch_properties: bytes) -> bytes:
        """Join the properties of one message of a batch: its own, then the batch's as stored."""
        # Counting takes a third of the time of `in`, which for bytes first tries a number.
        if any(map(own.count, _ADDED_BYTES)):
            properties = decode_properties(own.decode("utf-8", "replace"))
            for name in _ADDED_NAMES:
                properties.pop(name, None)
            own = encode_properties(properties).encode()
        if own and not own.endswith(_SEPARATOR):
            own += _SEPARATOR
        return own + batch_properties

    def join_all_in_batch(self, own: Sequence[bytes], batch_properties: bytes) -> list[bytes]:
        """Join the properties of all messages of a batch, as `join_in_batch` does for one."""
        if not all(own) or any(map(b"".join(own).count, _ADDED_BYTES)):
            return [self.join_in_batch(each, batch_properties) for each in own]
        return [
            each + batch_properties
            if each.endswith(_SEPARATOR)
            else each + _SEPARATOR + batch_properties
            for each in own
        ]

    @staticmethod
    def batch_suffix(own: bytes, width: int, batch_properties: bytes) -> bytes | None:
        """Return the text to append to the own properties of each message of a batch.

        ``own`` contains the properties of all messages back to back, each ``width`` bytes long.
        Return None if a message is delayed, or if `join_all_in_batch` would do more than append
        one text.
        """
        if any(map(own.count, (*_ADDED_BYTES, _DELAY_BYTES, _TIMER_BYTES))):
            return None
        last_bytes = own[width - 1 :: width] if width else b""
        ended = last_bytes.count(_SEPARATOR)
        if ended == len(last_bytes):
            return batch_properties
        return None if ended else _SEPARATOR + batch_properties

    def find_delay_in_batch(self, own: Sequence[bytes]) -> str | None:
        """Return the name of a property by which a message of a batch requests a delay, or None."""
        text = b"".join(own)
        if not text.count(_DELAY_BYTES) and not text.count(_TIMER_BYTES):
            return None
        for each in own:
            properties = self._parse(each.decode("utf-8", "replace"))
            if properties.delay_level or properties.timer:
                return properties.timer or DELAY
        return None

    def _parse(self, text: str) -> StoredProperties:
        properties = decode_properties(text)
        waits = properties.pop(WAIT, "true") == "true"
        properties.update(self._added_properties)
        level = properties.get(DELAY, "0")
        delay_level = int(level) if level.isdecimal() and len(level) < 10 else 0
        if delay_level:  # a delay takes precedence over a timer, as in RocketMQ
            for name in TIMER_PROPERTIES:
                properties.pop(name, None)
        return StoredProperties(
            encode_properties(properties),
            waits,
            delay_level,
            properties.get(TRAN_MSG) == "true",
            _timer_of(properties),
        )


def _timer_of(properties: Mapping[str, str]) -> str | None:
    """Return the property that requests a timer; None if the message had a timer before."""
    if TIMER_OUT_MS in properties:
        return None
    return next((name for name in TIMER_PROPERTIES if name in properties), None)


def _without_wait(text: str) -> tuple[bool, str]:
    """Return whether WAIT is true, and the text without it; other names may end with WAIT."""
    waits = True
    kept = []
    for piece in text.split(PROPERTY_SEPARATOR):
        if piece.startswith(_WAIT):
            waits = piece == f"{_WAIT}true"
        elif piece:
            kept.append(piece)
    return waits, PROPERTY_SEPARATOR.join(kept)
