"""scanning."""

from __future__ import annotations

import struct
import sys

from rmq_spark.errors import RecordError
from rmq_spark.wire import record_layout as layout
from rmq_spark.wire.framing import Buffer
from rmq_spark.wire.record import decode_blank

from ..bulk import lazy_numpy as np
from ..results import PhysicalOffset

_SAME_MIN = 16
"""Behind so many records of one size it is worth a look how many more there are."""
_SIZE = struct.Struct(layout.struct_format(layout.HEAD[:1]))


def record_sizes(data: Buffer, count_max: int = sys.maxsize) -> list[int]:
    """Return the sizes of the records from the start of the data, up to a blank or zeros.

    ``count_max`` limits their number: to find them takes a while, record by record.
    """
    sizes: list[int] = []
    add, read = sizes.append, _SIZE.unpack_from
    position, end = 0, len(data) - layout.RECORD_BYTES_MIN
    last = same = 0
    while position <= end and len(sizes) < count_max:
        (size,) = read(data, position)
        if size < layout.RECORD_BYTES_MIN:
            break
        add(size)
        position += size
        same = same + 1 if size == last else 0
        last = size
        if same == _SAME_MIN and position < len(data) and np.is_loaded():  # as they mostly are
            most = min(count_max - len(sizes), (len(data) - position) // size)
            more = _count_same(data, position, size, most)
            sizes += [size] * more
            position += more * size
            same = 0
    # Only the last can be a record that is cut off, or the blank that fills a file.
    if sizes and (position > len(data) or decode_blank(data, position - sizes[-1]) is not None):
        sizes.pop()
    return sizes


def limit_records(
    sizes: list[int], count_max: int, start: PhysicalOffset, next_offset: PhysicalOffset
) -> tuple[list[int], PhysicalOffset]:
    """Limit the number of records from a place on; return their sizes, and where they end."""
    if len(sizes) <= count_max:
        return sizes, next_offset
    return sizes[:count_max], start + sum(sizes[:count_max])


def limit_to_valid(
    sizes: list[int], count: int, start: PhysicalOffset, next_offset: PhysicalOffset
) -> tuple[list[int], PhysicalOffset]:
    """Cut records down to those that are good, which are some unless there were none at all.

    Raises:
        RecordError: The first is not good.
    """
    if sizes and not count:
        raise RecordError("log", at=start, needed="a whole record in its place", found=sizes[0])
    return limit_records(sizes, count, start, next_offset)


def _count_same(data: Buffer, position: int, size: int, most: int) -> int:
    """Return how many records of one size, up to a number, begin at a place in the data."""
    is_same = np.ndarray((most,), _SIZE.format, data, position, (size,)) == size
    return most if is_same.all() else int(np.argmin(is_same))
