"""Chunk encoding: columns to stored messages, or to a batch of sends, megabytes at a time.

`encode_record` and `message_batch` do it for one message. Every column is an Arrow array or a
sequence, or one value for all messages. Column `body` is always uncompressed: bodies are compressed
here if the message's ``sysFlag`` says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmq_spark.errors import BodyError, RecordError, Verbatim
from rmq_spark.wire.chunk.buffer_slices import (
    BUFFER_BYTES_MAX,
    Positions,
    Structures,
    chunk_error,
    dtype_before_body,
    lengths_of,
    offsets_of,
    struct_dtype,
)
from rmq_spark.wire.chunk.columns import COLUMNS
from rmq_spark.wire.chunk.crc import crcs_of_strings
from rmq_spark.wire.chunk.properties import encode_maps, encode_named
from rmq_spark.wire.chunk.sized_chunk import encode_sizes
from rmq_spark.wire.codes import MessageSysFlag
from rmq_spark.wire.compression import compress_body
from rmq_spark.wire.message import record_layout as layout
from rmq_spark.wire.message.hosts import parse_host
from rmq_spark.wire.message.message_batch import ENTRY_BYTES_MIN, HEAD
from rmq_spark.wire.message.properties import (
    KEYS,
    PROPERTIES_BYTES_MAX,
    TAGS,
    UNIQ_KEY,
    WAIT,
    encode_properties,
)
from rmq_spark.wire.message.record_layout import EMPTY_CHECKSUM

_HEAD = struct_dtype(layout.HEAD)
_STORE_TIMESTAMP = np.dtype(">i8")
_TAIL = struct_dtype(layout.TAIL)
_NO_HOST = "0.0.0.0:0"
_COMPRESSED = MessageSysFlag.COMPRESSED
_V6_EXTRA_BYTES = layout.HOST_V6_BYTES - layout.HOST_V4_BYTES
_V6_BITS = MessageSysFlag.BORN_HOST_V6.value | MessageSysFlag.STORE_HOST_V6.value


class EncodedChunk(NamedTuple):
    """Records back to back, and the size of each."""

    data: pa.Buffer
    sizes: npt.NDArray[np.int32]


def encode_chunk(columns: Mapping[str, Any], *, has_checksums: bool = False) -> EncodedChunk:
    """Encode records from columns: at least ``body`` and ``topic``; others are zero or empty.

    With ``has_checksums`` each record ends with an empty checksum, for the broker to fill in.
    """
    parts, sizes = _record_parts(columns, has_checksums=has_checksums)
    data = concatenate_rows(parts, len(sizes), int(sizes.sum()))
    return EncodedChunk(data, sizes.astype(np.int32))


def encode_sized_chunk(columns: Mapping[str, Any]) -> pa.Buffer:
    """Encode records as `encode_chunk` does, with empty checksums and their sizes in front."""
    parts, sizes = _record_parts(columns, has_checksums=True)
    return concatenate_rows(parts, len(sizes), int(sizes.sum()), encode_sizes(sizes))


def _record_parts(
    columns: Mapping[str, Any], *, has_checksums: bool
) -> tuple[Sequence[Any], Positions]:
    """Return the parts of each record, one after the other, and the sizes of the records."""
    given = InputColumns(columns)
    rows = given.rows
    bodies = _stored_bodies(given)
    body_lengths = lengths_of(bodies)
    topics, topic_lengths, is_v2 = _topics(given)
    properties = property_parts(given)
    if has_checksums:
        properties.append(pa.scalar(EMPTY_CHECKSUM, pa.binary()))
    properties_lengths = properties_lengths_of(properties, rows)
    born_hosts, born_is_v6 = _hosts(given, "bornHost")
    store_hosts, store_is_v6 = _hosts(given, "storeHost")
    _check_v6_bits(given, born_is_v6, store_is_v6)
    sizes: Positions = (
        layout.RECORD_BYTES_MIN
        + _V6_EXTRA_BYTES * (born_is_v6.astype(np.int64) + store_is_v6)
        + is_v2 * (layout.TOPIC_LENGTH_V2_BYTES - layout.TOPIC_LENGTH_V1_BYTES)
        + (body_lengths + topic_lengths + properties_lengths)
    )
    total = int(sizes.sum())
    if total > BUFFER_BYTES_MAX:
        raise chunk_error("its end", f"at most {BUFFER_BYTES_MAX} bytes", total)

    fields = _fields_before_body(rows, born_hosts, store_hosts)
    head, store_timestamps, tail, before_body = fields
    head["total_size"] = sizes
    head["magic"] = np.where(is_v2, layout.MAGIC_V2, layout.MAGIC_V1)
    head["body_crc"] = body_crcs(bodies)
    head["queue_id"] = given.numbers("queueId")
    head["flag"] = given.numbers("flag")
    head["queue_offset"] = given.numbers("queueOffset")
    head["physical_offset"] = given.numbers("commitLogOffset")
    head["sys_flag"] = given.numbers("sysFlag")
    head["born_timestamp"] = given.numbers("bornTimestamp")
    store_timestamps[:] = given.numbers("storeTimestamp")
    tail["reconsume_times"] = given.numbers("reconsumeTimes")
    tail["prepared_transaction_offset"] = given.numbers("preparedTransactionOffset")
    tail["body_length"] = body_lengths
    before_properties = topics, to_binary(properties_lengths.astype(">i2"))
    return (*before_body, bodies, *before_properties, *properties), sizes


def _fields_before_body(
    rows: int, born_hosts: Any, store_hosts: Any
) -> tuple[Structures, Structures, Structures, Sequence[Any]]:
    """Return head, store timestamp and tail of each record, to be filled in, and all parts."""
    hosts = born_hosts, store_hosts
    if all(isinstance(each, pa.Scalar) for each in hosts):  # one part for all records
        encoded = [each.as_py() for each in hosts]
        fields = np.zeros(rows, dtype_before_body(*map(len, encoded)))
        for name, host in zip(("born_host", "store_host"), encoded, strict=True):
            fields[name] = np.frombuffer(host, f"V{len(host)}")
        return fields["head"], fields["store_timestamp"], fields["tail"], (to_binary(fields),)
    head, times, tail = (np.zeros(rows, each) for each in (_HEAD, _STORE_TIMESTAMP, _TAIL))
    parts = to_binary(head), born_hosts, to_binary(times), store_hosts, to_binary(tail)
    return head, times, tail, parts


def _stored_bodies(input_columns: InputColumns) -> pa.BinaryArray:
    bodies = input_columns.array("body")
    sys_flags = np.asarray(input_columns.numbers("sysFlag"), np.int32)
    if not (sys_flags & _COMPRESSED.value).any():
        return bodies
    sys_flags = np.broadcast_to(sys_flags, input_columns.rows)
    compressed = np.flatnonzero(sys_flags & _COMPRESSED.value)
    kinds = sys_flags[compressed] & MessageSysFlag.COMPRESSION_MASK.value
    stored = [
        _compressed_body(row, bodies[row].as_py(), kind)
        for row, kind in zip(compressed.tolist(), kinds.tolist(), strict=True)
    ]
    mask = np.zeros(input_columns.rows, bool)
    mask[compressed] = True
    return pc.replace_with_mask(bodies, pa.array(mask), pa.array(stored, pa.binary()))


def _compressed_body(row: int, body: bytes, kind: int) -> bytes:
    try:
        # Producers before 4.9.4 set no type, and compressed by ZLIB.
        return compress_body(body, MessageSysFlag(kind) or MessageSysFlag.COMPRESSION_ZLIB)
    except BodyError as error:
        raise chunk_error(
            f"sysFlag {row}", "a body that can be compressed", Verbatim(error)
        ) from error


def body_crcs(bodies: pa.BinaryArray) -> npt.NDArray[np.int64]:
    """Return the CRCs of bodies, as records have them."""
    offsets = offsets_of(bodies)
    first, last = int(offsets[0]), int(offsets[-1])
    data = bodies.buffers()[2].slice(first, last - first) if last > first else b""
    lengths = lengths_of(bodies)
    starts = (offsets[:-1] - first).astype(np.int64)
    crcs = crcs_of_strings(np.frombuffer(data, np.uint8), starts, lengths).astype(np.int64)
    return crcs & layout.BODY_CRC_MASK


def _topics(input_columns: InputColumns) -> tuple[Any, Any, Any]:
    """Return topics with their length in front, their lengths, and which need the second magic."""
    topics = input_columns.one_value("topic")
    if topics is None:
        topics = input_columns.array("topic").dictionary_encode()
    is_one = isinstance(topics, pa.Scalar)
    distinct = [topics.as_py()] if is_one else topics.dictionary.to_pylist()
    encoded = [topic.encode() for topic in distinct]
    lengths = np.array([len(topic) for topic in encoded], np.int64)
    if lengths.max(initial=0) > layout.TOPIC_BYTES_MAX_V2:
        raise chunk_error(
            "topic", f"at most {layout.TOPIC_BYTES_MAX_V2} bytes", encoded[int(lengths.argmax())]
        )
    is_v2 = lengths > layout.TOPIC_BYTES_MAX_V1
    sized = [
        len(topic).to_bytes(
            layout.TOPIC_LENGTH_V2_BYTES if wide else layout.TOPIC_LENGTH_V1_BYTES, "big"
        )
        + topic
        for topic, wide in zip(encoded, is_v2.tolist(), strict=True)
    ]
    if is_one or len(sized) == 1:
        return pa.scalar(sized[0], pa.binary()), lengths[0], is_v2
    of_row = topics.indices.to_numpy()
    return pa.array(sized, pa.binary()).take(topics.indices), lengths[of_row], is_v2[of_row]


def _hosts(input_columns: InputColumns, name: str) -> tuple[Any, npt.NDArray[np.bool_]]:
    value = _NO_HOST if input_columns.get(name) is None else input_columns.get(name)
    texts = None if isinstance(value, str) else input_columns.array(name).dictionary_encode()
    distinct = [value] if texts is None else texts.dictionary.to_pylist()
    hosts = [parse_host(text) for text in distinct]
    encoded = [host.encode() for host in hosts]
    is_v6 = np.array([host.is_v6 for host in hosts], bool)
    if texts is None or len(hosts) == 1:
        return pa.scalar(encoded[0], pa.binary()), is_v6
    return pa.array(encoded, pa.binary()).take(texts.indices), is_v6[texts.indices.to_numpy()]


def _check_v6_bits(
    input_columns: InputColumns,
    born_is_v6: npt.NDArray[np.bool_],
    store_is_v6: npt.NDArray[np.bool_],
) -> None:
    """Refuse flags that contradict the hosts, which would make the record unreadable."""
    needed = (
        born_is_v6 * MessageSysFlag.BORN_HOST_V6.value
        | store_is_v6 * MessageSysFlag.STORE_HOST_V6.value
    )
    found = np.asarray(input_columns.numbers("sysFlag"))
    is_wrong = (found & _V6_BITS) != needed
    if input_columns.rows and is_wrong.any():
        row = int(np.argmax(is_wrong))
        found, needed = (np.broadcast_to(each, input_columns.rows) for each in (found, needed))
        raise chunk_error(
            f"sysFlag {row}",
            f"the IPv6 bits of the hosts, {int(needed[row]):#x}",
            hex(int(found[row])),
        )


# ---- Batches of sends.

_BATCH_HEAD = struct_dtype(HEAD)
_WAIT_PROPERTY = encode_properties({WAIT: "true"}).encode()


def encode_batch_columns(columns: Mapping[str, Any], unique_ids: Sequence[str]) -> pa.Buffer:
    """Encode the body of SEND_BATCH_MESSAGE from ``body`` and optional columns such as ``tags``.

    Like messages of RocketMQ's own producers, each gets an id (UNIQ_KEY), and the property WAIT,
    with which a broker with SYNC_FLUSH answers only when the message is on disk.
    """
    given = InputColumns(columns)
    bodies = given.array("body")
    body_lengths = lengths_of(bodies)
    ids = encode_named(UNIQ_KEY, pa.array(unique_ids, pa.string()))
    properties = [*property_parts(given), ids, pa.scalar(_WAIT_PROPERTY, pa.binary())]
    properties_lengths = properties_lengths_of(properties, given.rows)
    sizes = ENTRY_BYTES_MIN + body_lengths + properties_lengths
    total = int(sizes.sum())
    if total > BUFFER_BYTES_MAX:
        raise RecordError(
            "batch", at="its end", needed=f"at most {BUFFER_BYTES_MAX} bytes", found=total
        )
    head = np.zeros(given.rows, _BATCH_HEAD)
    head["size"] = sizes
    head["flag"] = given.numbers("flag")
    head["body_length"] = body_lengths
    parts = (to_binary(head), bodies, to_binary(properties_lengths.astype(">i2")), *properties)
    return concatenate_rows(parts, given.rows, total)


# ---- The columns that a caller passes, and the parts that records and batches share.

ENCODED_PROPERTIES = "encodedProperties"
"""A column for encoding only: properties as text, as in records, written after all others.

The caller ensures that each text ends with a separator and has no property with its own column.
"""

_TYPES = {name: column.type for name, column in COLUMNS.items()}
_TYPES = {**_TYPES, ENCODED_PROPERTIES: pa.binary()}
_ACCEPTED_COLUMNS = frozenset(_TYPES) - {"msgId", "offsetMsgId"}
_SEQUENCE_TYPES = (pa.Array, pa.ChunkedArray, np.ndarray, list, tuple)


class InputColumns:
    """The columns that a caller passed, checked; each becomes an array on first use."""

    def __init__(self, columns: Mapping[str, Any]) -> None:
        unknown = sorted(set(columns) - _ACCEPTED_COLUMNS)
        if unknown:
            raise chunk_error("columns", f"only {', '.join(sorted(_ACCEPTED_COLUMNS))}", unknown)
        self._columns = columns
        self.rows = _row_count(columns.get("body"))

    def get(self, name: str) -> Any:
        """Return a column as it was passed: an array, one value, or None."""
        return self._columns.get(name)

    def array(self, name: str) -> pa.Array:
        """Return the column as an array of its type, with a value in each row."""
        array = self.optional(name)
        if array is None or array.null_count:
            at = f"column {name}" if array is None else f"{name} {pc.index(array.is_null(), True)}"
            raise chunk_error(at, "a value for each message", None)
        return array

    def optional(self, name: str) -> pa.Array | None:
        """Return the column as an array, possibly with nulls; None if it was not passed."""
        values = self._columns.get(name)
        kind = _TYPES[name]
        if values is None:
            return None
        with _conversion(name):
            array = _as_array(values, kind, self.rows)
        if len(array) != self.rows:
            raise chunk_error(f"column {name}", f"{self.rows} values", len(array))
        return array

    def one_value(self, name: str) -> pa.Scalar | None:
        """Return the one value that was passed for all messages, in the column's type; or None."""
        value = self._columns.get(name)
        if value is None or isinstance(value, _SEQUENCE_TYPES):
            return None
        with _conversion(name):
            found = pa.scalar(value, _TYPES[name])
        if not found.is_valid:
            raise chunk_error(f"{name} 0", "a value for each message", None)
        return found

    def numbers(self, name: str) -> Any:
        """Return the column as a numpy array, one number for all messages, or 0 if not passed."""
        if self._columns.get(name) is None:
            return 0
        one = self.one_value(name)
        if one is not None:
            return one.value if pa.types.is_timestamp(one.type) else one.as_py()
        array = self.array(name)
        return (
            array.view(pa.int64()).to_numpy()
            if pa.types.is_timestamp(array.type)
            else array.to_numpy()
        )


@contextmanager
def _conversion(name: str) -> Iterator[None]:
    """Raise RecordError if the values of a column do not have its type."""
    try:
        yield
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        needed = f"values of type {_TYPES[name]}"
        raise chunk_error(f"column {name}", needed, Verbatim(error)) from error


def _row_count(bodies: Any) -> int:
    if not isinstance(bodies, _SEQUENCE_TYPES) or (
        isinstance(bodies, np.ndarray) and bodies.ndim != 1
    ):
        raise chunk_error("column body", "one body for each message", bodies)
    return len(bodies)


def _as_array(values: Any, kind: pa.DataType, rows: int) -> pa.Array:
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if isinstance(values, pa.Array):
        return values.cast(kind)
    if isinstance(values, _SEQUENCE_TYPES):
        return pa.array(values, kind)
    return pa.repeat(pa.scalar(values, kind), rows)


def property_parts(input_columns: InputColumns) -> list[Any]:
    """Return KEYS, TAGS and the rest, in this order: for each row, or one value for all."""
    parts = []
    for column, name in (("keys", KEYS), ("tags", TAGS)):
        values = input_columns.optional(column)
        if values is not None:
            parts.append(encode_named(name, values))
    maps = input_columns.optional("properties")
    if maps is not None:
        reserved = tuple(
            name
            for column, name in (("keys", KEYS), ("tags", TAGS))
            if input_columns.get(column) is not None
        )
        parts.append(encode_maps(maps, reserved=reserved))
    if input_columns.get(ENCODED_PROPERTIES) is not None:
        parts.append(input_columns.array(ENCODED_PROPERTIES))
    return parts


def properties_lengths_of(parts: Sequence[Any], rows: int) -> Positions:
    """Return the length of each row's properties, given their parts."""
    lengths = np.zeros(rows, np.int64)
    for part in parts:
        lengths += len(part.as_py()) if isinstance(part, pa.Scalar) else lengths_of(part)
    if rows and lengths.max() > PROPERTIES_BYTES_MAX:
        row = int(lengths.argmax())
        raise chunk_error(
            f"properties {row}",
            f"at most {PROPERTIES_BYTES_MAX} bytes",
            f"{int(lengths[row])} bytes",
        )
    return lengths


def to_binary(structures: npt.NDArray[Any]) -> pa.BinaryArray:
    """Return structures of one width as binary values over the same memory."""
    count = len(structures)
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(structures.dtype.itemsize)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(structures)]
    return pa.Array.from_buffers(pa.binary(), count, buffers)


def concatenate_rows(
    parts: Sequence[Any], rows: int, total: int, beginning: bytes = b""
) -> pa.Buffer:
    """Return a buffer with a beginning and all rows, each joined from its parts.

    The rows have ``total`` bytes in all.
    """
    if not rows:
        return pa.py_buffer(beginning)
    if beginning:  # as a part of the first row, so that no byte is copied twice
        offsets = np.full(rows + 1, len(beginning), np.int32)
        offsets[0] = 0
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(beginning)]
        parts = (pa.Array.from_buffers(pa.binary(), rows, buffers), *parts)
    return (
        pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.binary()))
        .buffers()[2]
        .slice(0, len(beginning) + total)
    )
