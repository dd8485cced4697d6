"""Integrity: checks that records are unchanged since they were written.

It compares size, magic, position, topic, body CRC, and the checksum of the whole. A start checks
before it continues the log, and reput before it dispatches records that it read from the disk, so
that no consumer ever sees a record with a flipped bit.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rmq_spark.errors import RecordError
from rmq_spark.wire.message import record_layout as layout
from rmq_spark.wire.message.record import StoredMessage, body_crc_of, decode_blank, decode_record
from rmq_spark.wire.message.record_layout import has_valid_checksum
from rmq_spark.wire.remoting.framing import Buffer

from ..bulk import bulk_tools
from ..bulk import lazy_numpy as np
from ..results import PhysicalOffset
from .fields import topic_fault

if TYPE_CHECKING:
    import numpy.typing as npt

    from rmq_spark.wire.chunk import RecordChunk
    from rmq_spark.wire.chunk.buffer_slices import Positions


class RecordCheck:
    """Checks records, one by one or many at once.

    All records from ``sealed_from`` on have a checksum; earlier ones may be another program's.
    """

    def __init__(self, sealed_from: PhysicalOffset) -> None:
        self._sealed_from = sealed_from

    def decode(self, record: Buffer, physical_offset: PhysicalOffset) -> StoredMessage | None:
        """Return the message of a record, or None if it is damaged or belongs elsewhere."""
        try:
            message = decode_record(record)
        except RecordError:
            return None
        is_good = (
            message.physical_offset == physical_offset
            and (physical_offset < self._sealed_from or has_valid_checksum(record))
            and topic_fault(message.topic) is None
        )
        return message if is_good else None

    def check_one_by_one(
        self, data: Buffer, sizes: list[int], physical_offset: PhysicalOffset
    ) -> tuple[int, Sequence[int]]:
        """Return how many records from the first one on are valid, and their store times."""
        position = 0
        times: list[int] = []
        for number, size in enumerate(sizes):
            message = self.decode(data[position : position + size], physical_offset + position)
            if message is None:
                return number, times
            times.append(message.store_timestamp)
            position += size
        return len(sizes), times

    def check_columns(
        self, data: Buffer, sizes: list[int], physical_offset: PhysicalOffset
    ) -> tuple[int, Sequence[int]]:
        """Return what `check_one_by_one` returns, computed by columns.

        This loads the bulk tools.
        """
        try:
            chunk = bulk_tools.RecordChunk(data[: sum(sizes)], sizes)
        except RecordError:
            return self.check_one_by_one(data, sizes, physical_offset)
        bad = np.flatnonzero(~self._valid_mask(data, chunk, chunk.starts + physical_offset))
        good = int(bad[0]) if len(bad) else len(sizes)
        times = bulk_tools.COLUMNS["storeTimestamp"].build(chunk).view("int64").to_numpy()[:good]
        return good, times.tolist()

    def _valid_mask(
        self, data: Buffer, chunk: RecordChunk, positions: Positions
    ) -> npt.NDArray[np.bool_]:
        is_good = bulk_tools.intact_records(chunk)
        # Another program may have written the records before `sealed_from`: these have only a
        # checksum of the body.
        rows = np.flatnonzero(~is_good & (positions < self._sealed_from))
        starts = chunk.body_at[rows]
        bounds = zip(starts.tolist(), (starts + chunk.body_length[rows]).tolist(), strict=True)
        found_crcs = np.fromiter(
            (body_crc_of(data[start:end]) for start, end in bounds), np.int64, len(rows)
        )
        is_good[rows] = found_crcs == chunk.head["body_crc"][rows]
        topics = bulk_tools.COLUMNS["topic"].build(chunk).dictionary_encode()
        is_topic = np.array([topic_fault(topic) is None for topic in topics.dictionary.to_pylist()])
        found: npt.NDArray[np.bool_] = (
            is_good
            & (chunk.head["physical_offset"] == positions)
            & is_topic[topics.indices.to_numpy()]
        )
        return found


# ---- Sizes of records that lie back to back.

_SAME_MIN = 16
"""After this many records of one size, count how many more there are at once."""
_SIZE = struct.Struct(layout.struct_format(layout.HEAD[:1]))


def record_sizes(data: Buffer, count_max: int = sys.maxsize) -> list[int]:
    """Return the sizes of the records from the start of the data, up to a blank or zeros.

    ``count_max`` limits their number, because they are found one by one.
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
        if same == _SAME_MIN and position < len(data) and np.is_loaded():  # usual: equal sizes
            count_limit = min(count_max - len(sizes), (len(data) - position) // size)
            more = _count_same(data, position, size, count_limit)
            sizes += [size] * more
            position += more * size
            same = 0
    # Only the last can be a record that is cut off, or the blank that fills a file.
    if sizes and (position > len(data) or decode_blank(data, position - sizes[-1]) is not None):
        sizes.pop()
    return sizes


def _count_same(data: Buffer, position: int, size: int, count_limit: int) -> int:
    is_same = np.ndarray((count_limit,), _SIZE.format, data, position, (size,)) == size
    return count_limit if is_same.all() else int(np.argmin(is_same))
