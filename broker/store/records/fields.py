"""Record fields: the parts of one record that consume queues and index need.

They are read without decoding the rest, for a few records at a time; for many, use a `RecordChunk`.
The records come from a checked log; if one is inconsistent nevertheless, `decode_record` reports
the fault.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from rmq_spark.errors import RecordError
from rmq_spark.wire.codes import MessageSysFlag
from rmq_spark.wire.message import record_layout as layout
from rmq_spark.wire.message.properties import (
    KEY_SEPARATOR,
    KEYS,
    NAME_VALUE_SEPARATOR,
    PROPERTY_SEPARATOR,
    UNIQ_KEY,
)
from rmq_spark.wire.message.record import decode_record
from rmq_spark.wire.remoting.framing import Buffer

from ..bulk import lazy_numpy as np
from ..results import QueueOffset

if TYPE_CHECKING:
    import numpy.typing as npt

    from rmq_spark.wire.chunk import RecordChunk
    from rmq_spark.wire.chunk.buffer_slices import Positions

_BORN_V6 = MessageSysFlag.BORN_HOST_V6.value
_STORE_V6 = MessageSysFlag.STORE_HOST_V6.value
_HOSTS_V6 = _BORN_V6 | _STORE_V6
_READ_FIELDS = ("magic", "queue_id", "queue_offset", "sys_flag", "store_timestamp", "body_length")
_LENGTH = struct.Struct(">h")
_TOPIC_LENGTH = {layout.MAGIC_V1: struct.Struct(">B"), layout.MAGIC_V2: _LENGTH}
_PIECE_ENDS = PROPERTY_SEPARATOR.encode()
_PADDING = bytes(16)
"""Bytes appended to the text, so that the first bytes of the last property can be read, too."""


def pattern_of(name: str) -> bytes:
    """Return the bytes before a property's value: a separator, its name, and the name's end."""
    return (PROPERTY_SEPARATOR + name + NAME_VALUE_SEPARATOR).encode()


_UNIQ_KEY, _KEYS = pattern_of(UNIQ_KEY), pattern_of(KEYS)


def head_struct(sys_flag: int, wanted: Collection[str] | None = None) -> struct.Struct:
    """Return a struct of the fields before the body that skips fields not in ``wanted``."""
    born_bytes, store_bytes = (
        layout.HOST_V6_BYTES if sys_flag & bit else layout.HOST_V4_BYTES
        for bit in (_BORN_V6, _STORE_V6)
    )
    born_host, store_host = ("born_host", f"{born_bytes}s"), ("store_host", f"{store_bytes}s")
    fields = (*layout.HEAD, born_host, *layout.STORE_TIMESTAMP, store_host, *layout.TAIL)
    kinds = (
        kind if wanted is None or name in wanted else f"{struct.calcsize(f'>{kind}')}x"
        for name, kind in fields
    )
    return struct.Struct(">" + "".join(kinds))


_HEADS = {
    sys_flag: head_struct(sys_flag, _READ_FIELDS)
    for sys_flag in (0, _BORN_V6, _STORE_V6, _HOSTS_V6)
}
_HEAD_V4 = _HEADS[0]


def body_position(sys_flag: int) -> int:
    """Return where the body begins in a record with these flags."""
    return _HEADS[sys_flag & _HOSTS_V6].size


def read_fields(
    data: Buffer, position: int, size: int
) -> tuple[bytes, int, QueueOffset, int, int, bytes]:
    """Return topic, queue, queue offset, sysFlag, store time and properties of a record.

    The result is a plain tuple, because creating a named tuple takes as long as reading the fields.
    """
    head = _HEAD_V4
    try:
        magic, queue_id, queue_offset, sys_flag, time, body_length = head.unpack_from(
            data, position
        )
        if sys_flag & _HOSTS_V6:
            head = _HEADS[sys_flag & _HOSTS_V6]
            magic, queue_id, queue_offset, sys_flag, time, body_length = head.unpack_from(
                data, position
            )
        topic_length = _TOPIC_LENGTH[magic]
        at = position + head.size + body_length
        topic_at = at + topic_length.size
        topic_end = topic_at + topic_length.unpack_from(data, at)[0]
        properties_at = topic_end + layout.PROPERTIES_LENGTH_BYTES
        properties_end = properties_at + _LENGTH.unpack_from(data, topic_end)[0]
    except (struct.error, KeyError) as error:
        raise _fault(data, position, size) from error
    if (
        body_length < 0
        or not topic_at <= topic_end < properties_at <= properties_end == position + size
    ):
        raise _fault(data, position, size)
    topic, properties = bytes(data[topic_at:topic_end]), bytes(data[properties_at:properties_end])
    return topic, queue_id, queue_offset, sys_flag, time, properties


def read_store_timestamp(head: Buffer) -> int:
    """Return when a record was stored, from its bytes before the body."""
    try:
        _, _, _, sys_flag, time, _ = _HEAD_V4.unpack_from(head)
        if sys_flag & _HOSTS_V6:
            _, _, _, _, time, _ = _HEADS[sys_flag & _HOSTS_V6].unpack_from(head)
    except struct.error as error:
        raise _fault(head, 0, len(head)) from error
    return int(time)


def property_of(properties: bytes, pattern: bytes) -> bytes | None:
    """Return the value of the property of a `pattern_of`, as `decode_properties` finds it."""
    at = properties.rfind(pattern)
    while at >= 0:
        value = _value_at(properties, at + len(pattern))
        if value:
            return value
        at = properties.rfind(pattern, 0, at)
    return (
        (_value_at(properties, len(pattern) - 1) or None)
        if properties.startswith(pattern[1:])
        else None
    )


class PropertySearch:
    """The properties of many messages, in which one property of all is found at once."""

    def __init__(self, texts: Iterable[bytes], lengths: npt.NDArray[np.int64]) -> None:
        """Join texts of properties, each of which is empty or ends with a separator.

        ``lengths`` has the length of each message's properties; a text may have those of several
        messages.
        """
        self.text = b"".join((_PIECE_ENDS, *texts, _PADDING))
        self.data = np.frombuffer(self.text, np.uint8)
        self._ends = np.cumsum(lengths) + len(_PIECE_ENDS)
        separators = np.flatnonzero(self.data == ord(PROPERTY_SEPARATOR))
        self._starts, self._stops = separators[:-1] + 1, separators[1:]
        # The first bytes of each property as one number: overlapping cells, one at every byte.
        cells = np.ndarray((len(self.text) - 7,), "<u8", self.text, strides=(1,))
        self._names = cells[self._starts]

    def find(self, pattern: bytes) -> tuple[Positions, Positions, Positions]:
        """Find a property by its `pattern_of`, in each message as `property_of` does.

        Returns:
            The rows of the messages that have it, in order, and the bounds of its values.
        """
        name = pattern[len(_PIECE_ENDS) :]
        first = name[:8]
        mask = np.uint64((1 << 8 * len(first)) - 1)
        hits = np.flatnonzero(self._names & mask == np.uint64(int.from_bytes(first, "little")))
        for at in range(len(first), len(name)):
            hits = hits[self.data[self._starts[hits] + at] == name[at]]
        starts, stops = self._starts[hits] + len(name), self._stops[hits]
        rows = self._ends.searchsorted(starts, "right")
        is_good = starts < stops
        if not is_good.all():
            rows, starts, stops = rows[is_good], starts[is_good], stops[is_good]
        is_last = np.append(rows[1:] != rows[:-1], True)[: len(rows)]
        if not is_last.all():
            rows, starts, stops = rows[is_last], starts[is_last], stops[is_last]
        return rows, starts, stops


def values_in_each(text: bytes, ends: npt.NDArray[np.int64], pattern: bytes) -> list[bytes] | None:
    """Return a property's value in each message, by its `pattern_of`; None unless each has it once.

    ``text`` has the properties of all messages, each empty or ending with a separator; ``ends`` has
    the end of each in it. For a hundred messages it takes half the time of a `PropertySearch`.
    """
    pieces = (_PIECE_ENDS + text).split(pattern)
    if len(pieces) != len(ends) + 1:
        return None
    starts = np.cumsum(np.fromiter(map(len, pieces), np.int64, len(pieces))[:-1])
    starts += np.arange(0, len(ends) * len(pattern), len(pattern))
    if (ends.searchsorted(starts, "right") != np.arange(len(ends))).any():
        return None
    return [piece.partition(_PIECE_ENDS)[0] for piece in pieces[1:]]


def has_key(record: Buffer, topic: bytes, key: bytes) -> bool:
    """Return whether a record has a topic and a key, by text: the index has only hashes."""
    of_topic, _, _, _, _, properties = read_fields(record, 0, len(record))
    keys = property_of(properties, _KEYS) or b""
    return of_topic == topic and (
        property_of(properties, _UNIQ_KEY) == key or key in keys.split(KEY_SEPARATOR.encode())
    )


def _value_at(properties: bytes, start: int) -> bytes:
    end = properties.find(_PIECE_ENDS, start)
    return properties[start:end] if end >= 0 else properties[start:]


def _fault(data: Buffer, position: int, size: int) -> RecordError:
    try:
        decode_record(data[position : position + size])
    except RecordError as error:
        return error
    return RecordError(
        "stored message", at=position, needed=f"a record of {size} bytes", found="another"
    )


# ---- Marks: the numbers that tell the rows of one commit from those of others.

NO_MARK = 0
"""The mark of records that are not rows of a commit."""
_PREPARED_AT = 4
"""The position of the prepared-transaction offset in the tail, after the reconsume times."""


def mark_rows(chunk: RecordChunk, mark: int) -> None:
    """Write the mark of a commit into each record of a chunk that is not sealed yet."""
    at = chunk.body_at - layout.TAIL_BYTES + _PREPARED_AT
    cells = np.ndarray((len(chunk.data) - 7,), "V8", chunk.data, strides=(1,))
    cells[at] = np.array(mark, ">i8").view("V8")


# ---- Names of topics that the store refuses.

TOPIC_CHARACTERS_MAX = 255
_TOPIC = re.compile(r"[%|a-zA-Z0-9_-]{1,255}")


def topic_fault(topic: str) -> str | None:
    """Return what is wrong with a topic's name as a directory name; None if it is valid."""
    if _TOPIC.fullmatch(topic):
        return None
    if not topic:
        return "the topic is blank"
    return (
        f"the topic {topic[:60]!r} must have at most {TOPIC_CHARACTERS_MAX} characters of % | a-z "
        "A-Z 0-9 _ -"
    )


# ---- Transaction states: decide which records get an entry in their consume queue.

TRANSACTION_MASK = MessageSysFlag.TRANSACTION_MASK.value
STATE_ROLLED_BACK = MessageSysFlag.TRANSACTION_ROLLBACK.value
STATES_WITHOUT_ENTRY = (MessageSysFlag.TRANSACTION_PREPARED.value, STATE_ROLLED_BACK)
"""The transaction states of messages without an entry, and so without a queue offset."""
