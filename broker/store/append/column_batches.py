"""Column batches: the messages of one client's batch, encoded by columns.

    VariableSizeBatch   messages of any sizes: fields by columns, and a few calls of C for each
                        record
    FixedSizeBatch      messages of one size: the records are the rows of a table

Both give the same records as `RecordRun`, which needs no numpy and is faster for few messages.
"""

from __future__ import annotations

import struct
from array import array
from functools import cache, lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from rmq_spark.wire.isa_l import crc32
from rmq_spark.wire.message import record_layout as layout
from rmq_spark.wire.message.message_batch import FixedSizeEntries
from rmq_spark.wire.message.record_layout import CHECKSUM_BYTES, HEX_PIECES
from rmq_spark.wire.remoting.framing import Buffer

from ..bulk import lazy_numpy as np
from ..records.recent_writes import ColumnRun
from ..results import PhysicalOffset, QueueOffset
from .record_encoding import (
    PROPERTIES_LENGTH,
    RecordBatch,
    RecordTemplate,
    UniformParts,
    terminate_all,
    terminated_properties,
)

if TYPE_CHECKING:
    import numpy.typing as npt

COLUMN_BATCH_MIN: Final = 16
"""Below this many messages, encoding them one by one is faster."""

_BODY_LENGTH_BYTES = struct.calcsize(layout.struct_format(layout.TAIL[-1:]))
_KINDS = {"i": ">i4", "q": ">i8"}


class VariableSizeBatch(RecordBatch):
    """Messages of one template with successive queue offsets."""

    def __init__(self, template: RecordTemplate, parts: UniformParts, born_timestamp: int) -> None:
        parts = parts._replace(properties=terminate_all(parts.properties))
        self._template = template
        self._parts = parts
        self._born_timestamp = born_timestamp
        count = self.count = len(parts.bodies)
        self._body_lengths = np.fromiter(map(len, parts.bodies), np.int64, count)
        self._properties_lengths = np.fromiter(map(len, parts.properties), np.int64, count)
        self._sizes = self._body_lengths + self._properties_lengths + template.fixed_bytes
        self.body_bytes_max = int(self._body_lengths.max())
        self.properties_bytes_max = int(self._properties_lengths.max())
        super().__init__({template.queue}, int(self._sizes.sum()))

    @property
    def sizes(self) -> list[int]:
        """The sizes of the records, in bytes."""
        sizes: list[int] = self._sizes.tolist()
        return sizes

    def encode(
        self, _: QueueOffset, physical_offset: PhysicalOffset, store_timestamp: int
    ) -> bytes:
        """Return all records, given the first one's position and their common time."""
        template, sizes, count = self._template, self._sizes, self.count
        flags, bodies, properties = self._parts
        queue_offset = self.next_offsets[template.queue]
        positions = np.cumsum(sizes) - sizes + physical_offset
        first = template.seal(
            int(sizes[0]),
            flags[0],
            bodies[0],
            properties[0],
            self._born_timestamp,
            queue_offset,
            physical_offset,
            store_timestamp,
        )[0]
        body_at = template.head_bytes
        head_rows = _copies(first[:body_at], count)
        heads: Any = np.ndarray((count,), _head_dtype(), head_rows, strides=(body_at,))
        heads["total_size"] = sizes
        body_crcs = np.frombuffer(array("I", [*map(crc32, bodies)]), np.uint32)
        heads["body_crc"] = body_crcs & layout.BODY_CRC_MASK
        heads["flag"] = flags
        heads["queue_offset"] = np.arange(queue_offset, queue_offset + count)
        heads["physical_offset"] = positions
        head_rows[:, -_BODY_LENGTH_BYTES:].view(">i4")[:, 0] = self._body_lengths

        topic_at = body_at + len(bodies[0])
        topic_bytes = template.fixed_bytes - body_at - CHECKSUM_BYTES
        topic_rows = _copies(first[topic_at : topic_at + topic_bytes], count)
        lengths = self._properties_lengths + CHECKSUM_BYTES
        topic_rows[:, -PROPERTIES_LENGTH.size :].view(">i2")[:, 0] = lengths

        pieces = zip(_rows(head_rows), bodies, _rows(topic_rows), properties, strict=True)
        records = [*map(b"".join, pieces)]
        checksums = _rows(_checksums(np.frombuffer(array("I", [*map(crc32, records)]), np.uint32)))
        self.next_offsets[template.queue] = queue_offset + count
        width = self.properties_bytes_max
        are_of_one_width = bool((self._properties_lengths == width).all())
        self.recent = ColumnRun(
            template.queue,
            queue_offset,
            positions,
            sizes,
            b"".join(properties),
            width if are_of_one_width else self._properties_lengths,
            store_timestamp,
        )
        return b"".join(chain.from_iterable(zip(records, checksums, strict=True)))


class FixedSizeBatch(RecordBatch):
    """Messages of one template and one size, with successive queue offsets."""

    def __init__(
        self,
        template: RecordTemplate,
        entries: FixedSizeEntries,
        ending: bytes,
        born_timestamp: int,
    ) -> None:
        """Store at least one message; ``ending`` is appended to the properties of each.

        Either all properties or none must end with a separator.
        """
        self._template = template
        self._entries = entries
        first = entries.first
        properties = terminated_properties(first.properties + ending)
        self._properties = properties
        self._ending = properties[len(first.properties) :]
        self._born_timestamp = born_timestamp
        self.count = entries.rows
        self.body_bytes_max = len(first.body)
        self.properties_bytes_max = len(properties)
        self.record_bytes = template.fixed_bytes + self.body_bytes_max + self.properties_bytes_max
        super().__init__({template.queue}, self.record_bytes * self.count)

    @property
    def sizes(self) -> list[int]:
        """The sizes of the records, in bytes."""
        return [self.record_bytes] * self.count

    def encode(
        self, _: QueueOffset, physical_offset: PhysicalOffset, store_timestamp: int
    ) -> Buffer:
        """Return all records, given the first one's position and their common time."""
        entries, size, count = self._entries, self.record_bytes, self.count
        queue = self._template.queue
        queue_offset = self.next_offsets[queue]
        first = entries.first
        pieces = self._template.seal(
            size,
            first.flag,
            first.body,
            self._properties,
            self._born_timestamp,
            queue_offset,
            physical_offset,
            store_timestamp,
        )
        given = np.frombuffer(entries.data, np.uint8).reshape(count, entries.entry_bytes)
        records = np.empty((count, size), np.uint8)
        records[:] = np.frombuffer(b"".join(pieces), np.uint8)

        bodies = slice(entries.body_at, entries.body_at + self.body_bytes_max)
        body_at = self._template.head_bytes
        records[:, body_at : body_at + self.body_bytes_max] = given[:, bodies]
        own_bytes = len(first.properties)
        ending_at = size - CHECKSUM_BYTES - len(self._ending)
        records[:, ending_at - own_bytes : ending_at] = given[:, entries.entry_bytes - own_bytes :]

        heads: Any = np.ndarray((count,), _head_dtype(), records, strides=(size,))
        heads["body_crc"] = _crcs(entries.data, entries.entry_bytes, bodies) & layout.BODY_CRC_MASK
        heads["flag"] = np.ndarray(
            (count,), ">i4", entries.data, entries.flag_at, (entries.entry_bytes,)
        )
        heads["queue_offset"] = np.arange(queue_offset, queue_offset + count)
        positions = np.arange(physical_offset, physical_offset + self.size, size)
        heads["physical_offset"] = positions

        watched = slice(0, size - CHECKSUM_BYTES)
        records[:, watched.stop :] = _checksums(_crcs(records.reshape(-1).data, size, watched))
        self.next_offsets[queue] = queue_offset + count
        properties = records[:, ending_at - own_bytes : watched.stop].tobytes()
        length = self.properties_bytes_max
        self.recent = ColumnRun(
            queue, queue_offset, positions, size, properties, length, store_timestamp
        )
        return records.reshape(-1).data


def properties_of_batch(entries: FixedSizeEntries) -> bytes:
    """Return the properties of all messages, back to back."""
    rows = np.frombuffer(entries.data, np.uint8).reshape(entries.rows, entries.entry_bytes)
    return rows[:, entries.entry_bytes - len(entries.first.properties) :].tobytes()


def _crcs(data: Buffer, width: int, columns: slice) -> npt.NDArray[np.uint32]:
    rows = len(data) // width
    cut = _column_struct(columns.start, columns.stop - columns.start, width - columns.stop, rows)
    return np.frombuffer(array("I", [*map(crc32, cut.unpack(data))]), np.uint32)


@lru_cache(maxsize=8)
def _column_struct(before: int, length: int, after: int, rows: int) -> struct.Struct:
    """Return a struct that cuts columns out of all rows at once; a tuple per row is slow."""
    return struct.Struct(f"{before}x{length}s{after}x" * rows)


def _copies(row: bytes, count: int) -> npt.NDArray[np.uint8]:
    table = np.empty((count, len(row)), np.uint8)
    table[:] = np.frombuffer(row, np.uint8)
    return table


def _rows(table: npt.NDArray[np.uint8]) -> list[bytes]:
    rows: list[bytes] = table.view(f"V{table.shape[1]}")[:, 0].tolist()
    return rows


def _checksums(crcs: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint8]:
    """Return a table with the checksum property for each CRC, as `encode_checksum` writes it."""
    digits = _digits_by_byte()[crcs.astype(">u4").view(np.uint8)].view(np.uint8)
    table: npt.NDArray[np.uint8] = digits.reshape(len(crcs), CHECKSUM_BYTES)
    return table


@cache
def _head_dtype() -> Any:
    return np.dtype([(name, _KINDS[kind]) for name, kind in layout.HEAD])


@cache
def _digits_by_byte() -> Any:
    return np.frombuffer(b"".join(HEX_PIECES), f"V{len(HEX_PIECES[0])}")


ColumnBatch: TypeAlias = "FixedSizeBatch | VariableSizeBatch"
