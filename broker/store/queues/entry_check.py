"""EntryCheck: checks whether queue entries are plausible, and lead to the right records.

Entries have no checksum. The check compares the size, queue offset and physical offset in the first
36 bytes of the record; and offsets must ascend. An entry that a filter rejects without reading its
record is checked less: zeros, overlapping records, offsets that the log used before, and a tags
code that no Java hash can have are detected, but not a flipped bit in the lower half of that code.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from struct import Struct, error
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rmq_spark.wire.codes import MessageSysFlag
from rmq_spark.wire.message import record_layout as layout
from rmq_spark.wire.message.record_layout import BLANK_SIZE
from rmq_spark.wire.remoting.framing import Buffer

from ..bulk import lazy_numpy as np
from ..records.fields import body_position
from ..results import Numbers, PhysicalOffset
from .consume_queue import ENTRY, ENTRY_BYTES, ENTRY_STRUCT

if TYPE_CHECKING:
    import numpy.typing as npt

    from .consume_queue import Entries

_HEAD = Struct(">i16xqq")
"""The size, queue offset and physical offset of a record."""

HEAD_BYTES = _HEAD.size
FEW_MAX = 64
"""Up to this number, entries are examined one by one."""
_CODES = range(-(1 << 31), 1 << 31)
_ANY = range(-(1 << 63), 1 << 63)
_POSITION_MAX = 1 << 62
"""No log is that long; past it, the ends of records would not fit into 64 bits."""


class WrongEntry(Exception):
    """An entry leads to another message or to none, or is impossible."""

    def __init__(
        self, position: int, right_count: int = 0, *, overlapped: int | None = None
    ) -> None:
        """Report the position to which a wrong entry leads.

        ``right_count`` entries before it are known to be right. ``overlapped`` entries before it
        were checked without reading their records; the last of these may be the wrong one instead.
        """
        super().__init__(position, right_count)
        self.position = position
        self.right_count = right_count
        self.overlapped = overlapped


class EntryCheck:
    """Checks successive entries of one queue, piece by piece."""

    def __init__(self, expired_before: PhysicalOffset, *, has_codes: bool) -> None:
        """Start a check of successive entries.

        No entry may lead before ``expired_before``; ``has_codes`` means that entries have tags
        codes, not delivery times.
        """
        self._end = expired_before
        self._has_codes = has_codes
        self._count = 0

    def check(self, entries: Buffer) -> None:
        """Check the next entries; raise `WrongEntry` for the first impossible one."""
        if len(entries) <= FEW_MAX * ENTRY_BYTES:
            self._check_few(entries)
        else:
            self._check_many(np.frombuffer(entries, ENTRY))

    def _check_few(self, entries: Buffer) -> None:
        end, codes = self._end, _CODES if self._has_codes else _ANY
        for position, size, code in ENTRY_STRUCT.iter_unpack(entries):
            if size != BLANK_SIZE:
                is_possible = end <= position < _POSITION_MAX
                if not is_possible or size < layout.RECORD_BYTES_MIN or code not in codes:
                    raise WrongEntry(position, overlapped=self._count)
                end = position + size
            self._count += 1
        self._end = end

    def _check_many(self, entries: Entries) -> None:
        has_message = entries["size"] != BLANK_SIZE
        before, self._count = self._count, self._count + len(entries)
        rows = np.arange(len(entries))
        if not has_message.all():
            rows = rows[has_message]
            entries = entries[rows]
        positions = entries["physical_offset"].astype(np.int64)
        sizes = entries["size"].astype(np.int64)
        ends = np.append(self._end, np.minimum(positions, _POSITION_MAX) + sizes)
        is_wrong = (
            (positions < ends[:-1])
            | (positions >= _POSITION_MAX)
            | (sizes < layout.RECORD_BYTES_MIN)
        )
        if self._has_codes:
            codes = entries["tags_code"].astype(np.int64)
            is_wrong |= codes != codes.astype(np.int32)
        if is_wrong.any():
            first = int(np.argmax(is_wrong))
            raise WrongEntry(int(positions[first]), overlapped=before + int(rows[first]))
        self._end = PhysicalOffset(ends[-1])


def matches_entry(head: Buffer, at: int, position: int, size: int, queue_offsets: range) -> bool:
    """Return whether the head of a record matches its entry."""
    own_size, queue_offset, own_position = _HEAD.unpack_from(head, at)
    return bool(own_size == size and own_position == position and queue_offset in queue_offsets)


def run_ends_match(
    records: Sequence[Buffer],
    runs: Sequence[slice],
    positions: Sequence[int],
    sizes: Sequence[int],
    queue_offsets: range,
) -> bool:
    """Return whether each run's first and last records match their entries, in order."""
    left = queue_offsets
    for data, run in zip(records, runs, strict=True):
        first, last = run.start, run.stop - 1
        for number in (first,) if first == last else (first, last):
            at = 0 if number == first else len(data) - sizes[last]
            own_size, queue_offset, own_position = _HEAD.unpack_from(data, at)
            if (own_size, own_position) != (
                sizes[number],
                positions[number],
            ) or queue_offset not in left:
                return False
            left = range(queue_offset + 1, queue_offsets.stop)
    return True


def first_wrong(
    records: Sequence[Buffer],
    positions: Numbers,
    sizes: Numbers,
    queue_offsets: range,
    owner: RecordOwner | None = None,
) -> int | None:
    """Return the first entry that leads to another record or another owner's record, or None."""
    if not isinstance(positions, list) or not isinstance(sizes, list):
        columns = np.asarray(positions, np.int64), np.asarray(sizes, np.int64)
        return _first_wrong_of_many(records, *columns, queue_offsets, owner)
    number, left = 0, queue_offsets
    for piece in records:
        at, end = 0, len(piece)
        while at < end:
            own_size, queue_offset, own_position = _HEAD.unpack_from(piece, at)
            if (
                (own_size, own_position) != (sizes[number], positions[number])
                or queue_offset not in left
                or (owner is not None and not owner.owns(piece, at, own_size))
            ):
                return number
            left = range(queue_offset + 1, queue_offsets.stop)
            at += own_size
            number += 1
    return None


def _first_wrong_of_many(
    records: Sequence[Buffer],
    positions: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
    queue_offsets: range,
    owner: RecordOwner | None,
) -> int | None:
    starts = np.cumsum(sizes) - sizes
    first = before = 0
    last_ahead = -1
    for piece in records:
        count = int(np.searchsorted(starts, before + len(piece)))
        at = starts[first:count] - before
        data = np.frombuffer(piece, np.uint8)
        heads = _heads(data, at)
        ahead = heads["queue_offset"].astype(np.int64) - queue_offsets.start
        is_right = (
            (heads["size"] == sizes[first:count])
            & (heads["place"] == positions[first:count])
            & (ahead >= 0)
            & (ahead < len(queue_offsets))
            & (np.diff(ahead, prepend=last_ahead) > 0)
        )
        if owner is not None and is_right.all():
            is_right &= owner.own_mask(data, at, sizes[first:count])
        # A piece without entries shows that the size in the entry before is wrong.
        if first == count or not is_right.all():
            return first + int(np.argmin(is_right)) if len(is_right) else max(first - 1, 0)
        first, before, last_ahead = count, before + len(piece), int(ahead[-1])
    return None


def _heads(data: npt.NDArray[np.uint8], at: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    """Return the heads of records that begin at these bytes, without the bulk tools."""
    positions = max(len(data) - HEAD_BYTES + 1, 0)
    overlapping = np.ndarray((positions,), f"V{HEAD_BYTES}", data, strides=(1,))
    heads: npt.NDArray[Any] = overlapping[at].view(_head_type())
    return heads


@lru_cache(maxsize=1)
def _head_type() -> np.dtype[Any]:
    """Return the layout of `_HEAD` as a dtype, created when numpy is first needed."""
    return np.dtype(
        [("size", ">i4"), ("between", "V16"), ("queue_offset", ">i8"), ("place", ">i8")]
    )


# ---- RecordOwner: the queue that must own a consume queue's records. An entry of a damaged file
# may lead to a valid record of another queue, of another topic, or of a deleted topic of the same
# name.

_QUEUE_HEAD = Struct(">4xi4xi20xi")
"""The magic, queue and sysFlag of a record."""
_NUMBER = Struct(">i")
_MAGIC_AT, _QUEUE_AT, _SYS_FLAG_AT = 4, 12, 36
_BODY_LENGTH_AT = body_position(0) - 4
"""The position of the body's length with IPv4 hosts."""
_V6_EXTRA_BYTES = layout.HOST_V6_BYTES - layout.HOST_V4_BYTES
_BORN_V6, _STORE_V6 = MessageSysFlag.BORN_HOST_V6.value, MessageSysFlag.STORE_HOST_V6.value
_LENGTH_BYTES: Final = {
    layout.MAGIC_V1: layout.TOPIC_LENGTH_V1_BYTES,
    layout.MAGIC_V2: layout.TOPIC_LENGTH_V2_BYTES,
}


class TopicFieldPosition(NamedTuple):
    """The position of the topic's length in a record, and the length and topic expected there."""

    at: int
    text: bytes


class RecordOwner(NamedTuple):
    """One queue of a topic, all of whose records lie at or past a log offset."""

    topic: bytes
    queue_id: int
    since: PhysicalOffset

    def topic_position(self, data: Buffer, at: int) -> TopicFieldPosition | None:
        """Return where the record at a position must have the topic, or None.

        None means that the bytes are not a record of this queue.
        """
        try:
            magic, queue_id, sys_flag = _QUEUE_HEAD.unpack_from(data, at)
            length_at = at + body_position(sys_flag) - 4
            (body_length,) = _NUMBER.unpack_from(data, length_at)
        except error:
            return None
        width = _LENGTH_BYTES.get(magic)
        if width is None or queue_id != self.queue_id or body_length < 0:
            return None
        return TopicFieldPosition(
            length_at + 4 + body_length, len(self.topic).to_bytes(width, "big") + self.topic
        )

    def owns(self, data: Buffer, at: int, size: int) -> bool:
        """Return whether the record of this size at a position belongs to this queue."""
        topic = self.topic_position(data, at)
        return topic is not None and (
            data[topic.at : min(topic.at + len(topic.text), at + size)] == topic.text
        )

    def own_mask(
        self, data: npt.NDArray[np.uint8], at: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.bool_]:
        """Return a mask of the records at these positions that belong to this queue."""
        is_own = sizes >= layout.RECORD_BYTES_MIN
        at = np.where(is_own, at, 0)
        if len(data) < layout.RECORD_BYTES_MIN:
            return is_own
        magics, flags = _words(data, at + _MAGIC_AT), _words(data, at + _SYS_FLAG_AT)
        is_v2 = magics == layout.MAGIC_V2
        is_own &= (is_v2 | (magics == layout.MAGIC_V1)) & (
            _words(data, at + _QUEUE_AT) == self.queue_id
        )
        v6_hosts = (flags & _BORN_V6 != 0).astype(np.int64) + (flags & _STORE_V6 != 0)
        length_at = np.minimum(at + _BODY_LENGTH_AT + _V6_EXTRA_BYTES * v6_hosts, len(data) - 4)
        body_lengths = _words(data, length_at)
        topic_at = length_at + 4 + body_lengths + np.where(is_v2, 2, 1)
        is_own &= (body_lengths >= 0) & (topic_at + len(self.topic) <= at + sizes)
        topic_at = np.where(is_own, topic_at, 2)
        is_own &= data[topic_at - 1] == len(self.topic) & 0xFF
        is_own &= ~is_v2 | (data[topic_at - 2] == len(self.topic) >> 8)
        for number, byte in enumerate(self.topic):
            is_own &= data[np.minimum(topic_at + number, len(data) - 1)] == byte
        return is_own


def _words(data: npt.NDArray[np.uint8], at: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    cells: npt.NDArray[np.void] = np.ndarray((len(data) - 3,), "V4", data, strides=(1,))
    return cells[at].view(">i4").astype(np.int64)
