"""RecordChunk: the positions of all fields in many stored messages; `record` decodes one.

A chunk is records back to back, as in the body of a pull and in a commit log. `RecordChunk` finds
the parts of each record and checks that they are consistent; `columns` builds the requested columns
from that. CRCs are checked only on request, because that costs as much as all the rest.
"""

from __future__ import annotations

import struct
from contextlib import suppress
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_spark.errors import RecordError, Verbatim
from rmq_spark.wire.chunk.buffer_slices import (
    BUFFER_BYTES_MAX,
    Positions,
    Structures,
    Widths,
    as_text,
    chunk_error,
    dtype_before_body,
    pack_slices,
    struct_dtype,
    take_bytes,
    take_structures,
)
from rmq_spark.wire.chunk.crc import Crcs, crcs_of_strings
from rmq_spark.wire.chunk.properties import PropertyColumns
from rmq_spark.wire.codes import MessageSysFlag
from rmq_spark.wire.message import record_layout as layout
from rmq_spark.wire.message.properties import PROPERTY_SEPARATOR
from rmq_spark.wire.message.record import record_size
from rmq_spark.wire.message.record_layout import CHECKSUM_BYTES
from rmq_spark.wire.remoting.framing import Buffer

_STORE_TIMESTAMP = np.dtype(">i8")
_TAIL = struct_dtype(layout.TAIL)

_BEFORE_BODY = dtype_before_body(layout.HOST_V4_BYTES, layout.HOST_V4_BYTES)
"""The fields before the body if both hosts are IPv4; every record is at least as long."""

_SIZE = struct.Struct(layout.struct_format(layout.HEAD[:1]))
_BEFORE_BODY_WITHOUT_HOSTS = layout.HEAD_BYTES + layout.STORE_TIMESTAMP_BYTES + layout.TAIL_BYTES

# Half of a checksum in one number: every second byte is a separator.
_WORD = np.dtype(np.uint64)
_SEPARATORS_AT = np.frombuffer(b"\x00\xff" * 4, _WORD)
_SEPARATORS = np.frombuffer(b"\x00\x02" * 4, _WORD)


class RecordChunk:
    """Records that lie back to back, checked and measured."""

    def __init__(self, data: Buffer, sizes: npt.ArrayLike | None = None) -> None:
        """Find the records; ``sizes`` saves finding their sizes if the sender sent them."""
        self.data = np.frombuffer(data, np.uint8)
        self.buffer = pa.py_buffer(data)
        if len(self.data) > BUFFER_BYTES_MAX:
            raise chunk_error(0, f"at most {BUFFER_BYTES_MAX} bytes", len(self.data))
        given = np.array(_find_sizes(data), np.int64) if sizes is None else _size_array(sizes)
        self.sizes: Positions = given.astype(np.int64, copy=False)
        # No size is larger than the data, so their sums cannot overflow.
        largest = int(given.max(initial=0))
        if largest > len(self.data) or int(given.min(initial=largest)) < layout.RECORD_BYTES_MIN:
            no_size = (given < layout.RECORD_BYTES_MIN) | (given > len(self.data))
            self._raise_if_any(no_size, "totalSize of a record", given)
        self.ends: Positions = np.cumsum(self.sizes)
        self.starts: Positions = self.ends - self.sizes
        total = int(self.ends[-1]) if len(self.ends) else 0
        if total != len(self.data):
            raise chunk_error("sizes", f"a sum of {len(self.data)} bytes", total)
        before_body = take_structures(self.data, self.starts, _BEFORE_BODY)
        self.head: Structures = before_body["head"]
        self.store_timestamp: Structures = before_body["store_timestamp"]
        self.tail: Structures = before_body["tail"]
        self._measure()

    def __len__(self) -> int:
        return len(self.starts)

    def record(self, row: int) -> bytes:
        """Return the bytes of one record."""
        return self.data[int(self.starts[row]) : int(self.ends[row])].tobytes()

    def _measure(self) -> None:
        """Find the parts of each record, checking every length before it is used.

        Nearly all chunks have only IPv4 hosts and the first magic. For these, widths are plain
        numbers instead of arrays, which saves as much time as the checks take.
        """
        head = self.head
        self._raise_if_any(head["total_size"] != self.sizes, "totalSize", head["total_size"])
        is_v1 = head["magic"] == layout.MAGIC_V1
        topic_length_bytes: Widths = layout.TOPIC_LENGTH_V1_BYTES
        self._is_all_v1 = bool(is_v1.all())
        if not self._is_all_v1:
            self._raise_if_any(~is_v1 & (head["magic"] != layout.MAGIC_V2), "magic", head["magic"])
            topic_length_bytes = np.where(is_v1, topic_length_bytes, layout.TOPIC_LENGTH_V2_BYTES)
        self.sys_flag = head["sys_flag"].astype(np.int32)
        self.sys_flags_union = int(np.bitwise_or.reduce(self.sys_flag, initial=0))
        self.born_host_bytes = self._host_bytes(MessageSysFlag.BORN_HOST_V6)
        self.store_host_bytes = self._host_bytes(MessageSysFlag.STORE_HOST_V6)
        hosts_bytes = self.born_host_bytes + self.store_host_bytes
        before_body = hosts_bytes + _BEFORE_BODY_WITHOUT_HOSTS
        self.body_at: Positions = self.starts + before_body
        room = self.sizes - (before_body + topic_length_bytes + layout.PROPERTIES_LENGTH_BYTES)
        self._raise_if_any(room < 0, "totalSize with these hosts", self.sizes)
        if not isinstance(hosts_bytes, int):
            self.tail = take_structures(self.data, self.body_at - layout.TAIL_BYTES, _TAIL)
            self.store_timestamp = take_structures(
                self.data, self.store_timestamp_at, _STORE_TIMESTAMP
            )
        self.body_length: Positions = self.tail["body_length"].astype(np.int64)
        self._raise_if_any(_exceeds(self.body_length, room), "bodyLength", self.body_length)
        room -= self.body_length
        body_ends = self.body_at + self.body_length
        behind = self.ends - body_ends
        self._tail, at = pack_slices(self.data, body_ends, behind)
        self._tail_ends: Positions = at + behind
        self.topic_at: Positions = body_ends + topic_length_bytes
        self.topic_length: Positions = self._tail[at].astype(np.int64)
        if not isinstance(topic_length_bytes, int):
            wide = take_structures(self._tail, at[~is_v1], ">i2")
            self.topic_length[~is_v1] = wide
        self._raise_if_any(_exceeds(self.topic_length, room), "topicLength", self.topic_length)
        room -= self.topic_length
        self.properties_at: Positions = self.ends - room
        self.properties_length: Positions = take_structures(
            self._tail, self._tail_ends - room - layout.PROPERTIES_LENGTH_BYTES, ">i2"
        ).astype(np.int64)
        self._raise_if_any(
            self.properties_length != room, "propertiesLength", self.properties_length
        )

    def set_stored(self, queue_offsets: Positions, timestamp: int) -> None:
        """Update the fields of this object that the store has written into the records."""
        self.head["queue_offset"] = queue_offsets
        self.store_timestamp[:] = timestamp

    def _host_bytes(self, v6_flag: MessageSysFlag) -> Widths:
        if not self.sys_flags_union & v6_flag.value:
            return layout.HOST_V4_BYTES
        is_v6 = self.sys_flag & v6_flag.value
        return np.where(is_v6, layout.HOST_V6_BYTES, layout.HOST_V4_BYTES)

    @property
    def born_host_at(self) -> Positions:
        """The position of each born host."""
        return self.starts + layout.HEAD_BYTES

    @property
    def store_timestamp_at(self) -> Positions:
        """The position of each store timestamp."""
        return self.starts + (self.born_host_bytes + layout.HEAD_BYTES)

    @property
    def store_host_at(self) -> Positions:
        """The position of each store host."""
        return self.store_timestamp_at + layout.STORE_TIMESTAMP_BYTES

    @cached_property
    def topics(self) -> pa.StringArray:
        """The topic of each record, as text."""
        return as_text(take_bytes(self.buffer, self.topic_at, self.topic_length))

    def has_topic(self, topic: bytes) -> npt.NDArray[np.bool_]:
        """Return which records are of a topic.

        If the bytes after the bodies were packed, each topic is compared with its length byte in
        front, eight bytes at a time.
        """
        part = bytes([len(topic) & 0xFF]) + topic
        width = len(self._tail) // max(len(self), 1)
        if self._tail is not self.data and self._is_all_v1 and len(part) <= width:
            words_bytes = -(-len(part) // _WORD.itemsize) * _WORD.itemsize
            expected = np.frombuffer(part.ljust(words_bytes, b"\0"), _WORD)
            masks = np.frombuffer((b"\xff" * len(part)).ljust(words_bytes, b"\0"), _WORD)
            words = self._tail.view(_WORD).reshape(len(self), -1)
            differ = (words[:, 0] ^ expected[0]) & masks[0]
            for number in range(1, len(expected)):
                differ |= (words[:, number] ^ expected[number]) & masks[number]
            are_same: npt.NDArray[np.bool_] = differ == 0
            return are_same
        are_of: npt.NDArray[np.bool_] = self.topic_length == len(topic)
        at = self._tail_ends - self.properties_length - layout.PROPERTIES_LENGTH_BYTES
        found = take_structures(self._tail, (at - len(topic))[are_of], np.dtype(f"S{len(topic)}"))
        are_of[are_of] = found == topic
        return are_of

    @cached_property
    def stored_bodies(self) -> pa.BinaryArray:
        """The bodies as they are stored, which may be compressed, in one new buffer."""
        return take_bytes(self.buffer, self.body_at, self.body_length)

    @cached_property
    def body_crcs(self) -> Crcs:
        """The CRCs computed from the bodies: all 32 bits, of which records store 31."""
        return crcs_of_strings(self.data, self.body_at, self.body_length)

    def check_crcs(self) -> None:
        """Refuse the first record whose body does not match its CRC."""
        found = self.body_crcs & np.uint32(layout.BODY_CRC_MASK)
        self._raise_if_any(found != self.head["body_crc"], "bodyCRC", self.head["body_crc"])

    def _raise_if_any(
        self, bad: npt.NDArray[np.bool_], what: str, found: npt.NDArray[np.integer[Any]]
    ) -> None:
        if not bad.any():
            return
        row = int(np.argmax(bad))
        at = int(self.sizes[:row].sum())
        raise chunk_error(at, f"a {what} that fits (record {row})", int(found[row]))

    @cached_property
    def properties(self) -> PropertyColumns:
        """The messages' properties, scanned on first use."""
        lengths = self.properties_length - CHECKSUM_BYTES * self.has_checksum
        starts = self._tail_ends - self.properties_length
        return PropertyColumns(pa.py_buffer(self._tail), starts, lengths)

    @cached_property
    def has_checksum(self) -> npt.NDArray[np.bool_]:
        """A mask of the records that end with a checksum, valid or not."""
        start = self._tail_ends - CHECKSUM_BYTES
        last = take_structures(self._tail, np.maximum(start, 0), f"V{CHECKSUM_BYTES}")
        separates = (last.view(_WORD) & _SEPARATORS_AT) == _SEPARATORS
        is_behind_one = self._tail[start - 1] == ord(PROPERTY_SEPARATOR)
        is_behind_one &= self.properties_length > CHECKSUM_BYTES
        has_checksum: npt.NDArray[np.bool_] = is_behind_one
        if not (separates.all() and is_behind_one.all()):
            has_checksum = is_behind_one | (self.properties_length == CHECKSUM_BYTES)
            has_checksum &= separates[::2] & separates[1::2]
        return has_checksum


def _exceeds(lengths: Positions, room: Positions) -> npt.NDArray[np.bool_]:
    """Return which lengths are negative or exceed the room, which is never negative.

    As unsigned numbers, negative lengths are larger than any room.
    """
    is_beyond: npt.NDArray[np.bool_] = lengths.view(np.uint64) > room.view(np.uint64)
    return is_beyond


def readable_records(
    data: Buffer, sizes: npt.ArrayLike | None = None
) -> tuple[RecordChunk, RecordError | None]:
    """Return the records before the first unreadable one, and the fault of that one.

    Raises:
        RecordError: The records can be read, but do not have the ``sizes`` given.
    """
    try:
        return RecordChunk(data, sizes), None
    except RecordError as error:
        fault = error
    known = _sizes_before_fault(data) if sizes is None else _size_array(sizes).tolist()
    readable = RecordChunk(b"")
    low, high = 0, len(known) + 1
    while high - low > 1:
        count = (low + high) // 2
        try:
            readable = RecordChunk(memoryview(data)[: sum(known[:count])], known[:count])
            low = count
        except RecordError:
            high = count
    if sizes is not None and low == len(known):
        raise fault
    return readable, fault


def _sizes_before_fault(data: Buffer) -> list[int]:
    sizes: list[int] = []
    position = 0
    with suppress(RecordError):
        while position < len(data):
            sizes.append(record_size(data, position))
            position += sizes[-1]
    return sizes


def _size_array(sizes: npt.ArrayLike) -> npt.NDArray[np.integer[Any]]:
    """Return the sizes that a peer sent as an array of integers, or raise RecordError."""
    try:
        given = np.asarray(sizes)
    except (TypeError, ValueError, OverflowError) as error:
        raise chunk_error("sizes", "a list of integers", Verbatim(error)) from error
    if given.ndim != 1 or (given.dtype.kind not in "iu" and len(given)):
        raise chunk_error("sizes", "a list of integers", sizes)
    return given if len(given) else np.zeros(0, np.int64)


def _find_sizes(data: Buffer) -> list[int]:
    """Return the sizes, found from record to record: the only step that numpy cannot do."""
    sizes: list[int] = []
    add = sizes.append
    read = _SIZE.unpack_from
    position = 0
    end = len(data)
    last = end - layout.RECORD_BYTES_MIN
    while position <= last:
        (size,) = read(data, position)
        if size < layout.RECORD_BYTES_MIN:
            break
        add(size)
        position += size
    if position != end:
        # The reader of single messages describes best what is wrong with the last record.
        record_size(data, position if position < end else position - sizes[-1])
    return sizes
