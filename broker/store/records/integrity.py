"""Tells records that are what was written.

By size, magic, place, topic, body CRC, and the checksum of the whole.

A start asks before it goes on behind a log, and reput before it carries records that were read from
the disk: a record in which a bit has changed is never shown, whoever comes to it first. This module
knows no files; it is given what was read, and the place of that in the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rmq_spark.errors import RecordError
from rmq_spark.wire.framing import Buffer
from rmq_spark.wire.record import StoredMessage, body_crc_of, decode_record
from rmq_spark.wire.record_checksum import has_valid_checksum

from ..bulk import bulk_tools
from ..bulk import lazy_numpy as np
from ..results import PhysicalOffset
from .topic_names import topic_fault

if TYPE_CHECKING:
    import numpy.typing as npt

    from rmq_spark.wire.chunk import RecordChunk
    from rmq_spark.wire.chunk.gather import Positions


class RecordCheck:
    """Checks of records, one by one or many at once.

    All from ``sealed_from`` on have a checksum, those before may be another program's.
    """

    def __init__(self, sealed_from: PhysicalOffset) -> None:
        """Keep the place in the log from which each record ends with a checksum."""
        self._sealed_from = sealed_from

    def decode(self, record: Buffer, physical_offset: PhysicalOffset) -> StoredMessage | None:
        """Return the message of a record, or None if it is damaged or does not belong there."""
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
        """Return how many records in a row are good, and their store times."""
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
        """Return what `check_one_by_one` returns, by columns.

        The tools for many are loaded for that.
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
        self, data: Buffer, chunk: RecordChunk, places: Positions
    ) -> npt.NDArray[np.bool_]:
        is_good = bulk_tools.intact_records(chunk)
        # Before that place others may have written: their records have a checksum
        # of the body alone.
        rows = np.flatnonzero(~is_good & (places < self._sealed_from))
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
            & (chunk.head["physical_offset"] == places)
            & is_topic[topics.indices.to_numpy()]
        )
        return found
