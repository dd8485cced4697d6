"""Whether the records that lie where entries of a consume queue lead are those of these entries.

Entries have no checksum. Of a record, its size, its offset in its queue and its place in the log are
compared, which are in its first 36 bytes; and offsets ascend. The file of the queue is not known here,
nor what is done about a wrong entry.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import TYPE_CHECKING

from broker.store import lazy_numpy as np
from rmq_spark.wire.framing import Buffer

if TYPE_CHECKING:
    import numpy.typing as npt

_HEAD = Struct(">i16xqq")
"""Size, queue offset and place of a record."""

HEAD_BYTES = _HEAD.size
_QUEUE_OFFSET_LOW, _PLACE_LOW = 24, 32
_LOW = (1 << 32) - 1


def is_of_entry(head: Buffer, at: int, place: int, size: int, queue_offsets: range) -> bool:
    """Whether a record that starts there is the one of an entry, by its first bytes."""
    own_size, queue_offset, own_place = _HEAD.unpack_from(head, at)
    return bool(own_size == size and own_place == place and queue_offset in queue_offsets)


def first_wrong_of_few(
    records: Sequence[Buffer], places: Sequence[int], sizes: Sequence[int], queue_offsets: range
) -> int | None:
    """Find the first entry whose record is not its own, one after the other; None if there is none."""
    number, left = 0, queue_offsets
    for piece in records:
        at, end = 0, len(piece)
        while at < end:
            if not is_of_entry(piece, at, places[number], sizes[number], left):
                return number
            left = range(_HEAD.unpack_from(piece, at)[1] + 1, queue_offsets.stop)
            at += sizes[number]
            number += 1
    return None


def first_wrong(
    records: Sequence[Buffer],
    places: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
    queue_offsets: range,
) -> int | None:
    """Find the first entry whose record is not its own; None if there is none.

    Of places and offsets, what is beyond 32 bits is left out: no queue goes that far within one get.
    """
    starts = np.cumsum(sizes) - sizes
    first = before = 0
    last_ahead = -1
    for piece in records:
        count = int(np.searchsorted(starts, before + len(piece)))
        at = starts[first:count] - before
        data = np.frombuffer(piece, np.uint8)
        ahead = (_low_word(data, at + _QUEUE_OFFSET_LOW) - queue_offsets.start) & _LOW
        is_right = (
            (_low_word(data, at) == sizes[first:count])
            & (_low_word(data, at + _PLACE_LOW) == places[first:count] & _LOW)
            & (ahead < len(queue_offsets))
            & (np.diff(ahead, prepend=last_ahead) > 0)
        )
        if not is_right.all():
            return first + int(np.argmin(is_right))
        first, before, last_ahead = count, before + len(piece), int(ahead[-1])
    return None


def _low_word(data: npt.NDArray[np.uint8], at: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Numbers of 32 bits without a sign that start anywhere."""
    word = data[at].astype(np.int64)
    for byte in (1, 2, 3):
        word = word << 8 | data[at + byte]
    return word
