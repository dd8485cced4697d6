"""Chunk encoding: columns to stored messages, or to a batch of sends, megabytes at a time.

`encode_record` and `message_batch` do it for one message. Every column is an Arrow array or a
sequence, or one value for all messages. Column `body` is always uncompressed: bodies are compressed
here if the message's ``sysFlag`` says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmq_spark.errors import BodyError, RecordError, Verbatim
from rmq_spark.wire import record_layout as layout
from rmq_spark.wire.chunk.buffer_slices import (
    BUFFER_BYTES_MAX,
    chunk_error,
    lengths_of,
    offsets_of,
    struct_dtype,
)
from rmq_spark.wire.chunk.columns import COLUMNS
from rmq_spark.wire.chunk.crc import crcs_of_strings
from rmq_spark.wire.chunk.properties import encode_maps, encode_named
from rmq_spark.wire.codes import MessageSysFlag
from rmq_spark.wire.compression import compress_body
from rmq_spark.wire.hosts import parse_host
from rmq_spark.wire.message_batch import ENTRY_BYTES_MIN, HEAD
from rmq_spark.wire.properties import (
    KEYS,
    PROPERTIES_BYTES_MAX,
    TAGS,
    UNIQ_KEY,
    WAIT,
    encode_properties,
)
from rmq_spark.wire.record_layout import EMPTY_CHECKSUM

_HEAD = struct_dtype(layout.HEAD)
_STORE_TIMESTAMP = struct_dtype(layout.STORE_TIMESTAMP)
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
    given = InputColumns(columns)
    bodies = _stored_bodies(given)
    body_lengths = lengths_of(bodies)
    topics, topic_lengths, is_v2 = _topics(given)
    checksum = (pa.scalar(EMPTY_CHECKSUM, pa.binary()),) if has_checksums else ()
    properties = property_strings(given, *checksum)
    properties_lengths = value_lengths(properties, given.rows)
    born_hosts, born_is_v6 = _hosts(given, "bornHost")
    store_hosts, store_is_v6 = _hosts(given, "storeHost")
    _check_v6_bits(given, born_is_v6, store_is_v6)
    sizes = (
        layout.RECORD_BYTES_MIN
        + _V6_EXTRA_BYTES * (born_is_v6.astype(np.int64) + store_is_v6)
        + is_v2 * (layout.TOPIC_LENGTH_V2_BYTES - layout.TOPIC_LENGTH_V1_BYTES)
        + (body_lengths + topic_lengths + properties_lengths)
    )
    total = int(sizes.sum())
    if total > BUFFER_BYTES_MAX:
        raise chunk_error("its end", f"at most {BUFFER_BYTES_MAX} bytes", total)

    head = np.zeros(given.rows, _HEAD)
    head["total_size"] = sizes
    head["magic"] = np.where(is_v2, layout.MAGIC_V2, layout.MAGIC_V1)
    head["body_crc"] = body_crcs(bodies)
    head["queue_id"] = given.numbers("queueId")
    head["flag"] = given.numbers("flag")
    head["queue_offset"] = given.numbers("queueOffset")
    head["physical_offset"] = given.numbers("commitLogOffset")
    head["sys_flag"] = given.numbers("sysFlag")
    head["born_timestamp"] = given.numbers("bornTimestamp")
    store_timestamps = np.zeros(given.rows, _STORE_TIMESTAMP)
    store_timestamps["store_timestamp"] = given.numbers("storeTimestamp")
    tail = np.zeros(given.rows, _TAIL)
    tail["reconsume_times"] = given.numbers("reconsumeTimes")
    tail["prepared_transaction_offset"] = given.numbers("preparedTransactionOffset")
    tail["body_length"] = body_lengths

    parts = (
        to_binary(head),
        born_hosts,
        to_binary(store_timestamps),
        store_hosts,
        to_binary(tail),
        bodies,
        topics,
        to_binary(properties_lengths.astype(">i2")),
        properties,
    )
    return EncodedChunk(concatenate_rows(parts, given.rows, total), sizes.astype(np.int32))


def _stored_bodies(input_columns: InputColumns) -> pa.BinaryArray:
    bodies = input_columns.array("body")
    sys_flags = np.broadcast_to(
        np.asarray(input_columns.numbers("sysFlag"), np.int32), input_columns.rows
    )
    compressed = np.flatnonzero(sys_flags & _COMPRESSED.value)
    if not len(compressed):
        return bodies
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
        # Flags from before there were types mean ZLIB.
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
    """Return length and topic, the topic's length, and whether it needs the second magic."""
    topics = input_columns.array("topic").dictionary_encode()
    encoded = [topic.encode() for topic in topics.dictionary.to_pylist()]
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
    if len(sized) == 1:
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
        return pa.scalar(encoded[0], pa.binary()), np.broadcast_to(is_v6, input_columns.rows)
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
    found = np.broadcast_to(input_columns.numbers("sysFlag"), input_columns.rows)
    wrong = np.flatnonzero((found & _V6_BITS) != needed)
    if len(wrong):
        row = int(wrong[0])
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

    Every message gets an id (UNIQ_KEY), and the property WAIT, by which its sender waits until it
    is stored, as messages of RocketMQ's own producers do.
    """
    given = InputColumns(columns)
    bodies = given.array("body")
    body_lengths = lengths_of(bodies)
    ids = encode_named(UNIQ_KEY, pa.array(unique_ids, pa.string()))
    properties = property_strings(given, ids, pa.scalar(_WAIT_PROPERTY, pa.binary()))
    properties_lengths = value_lengths(properties, given.rows)
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
    parts = (to_binary(head), bodies, to_binary(properties_lengths.astype(">i2")), properties)
    return concatenate_rows(parts, given.rows, total)


# ---- The columns that a caller passes, and the parts that records and batches share.

_ACCEPTED_COLUMNS = frozenset(COLUMNS) - {"msgId", "offsetMsgId"}
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
        kind = COLUMNS[name].type
        if values is None:
            return None
        try:
            array = _as_array(values, kind, self.rows)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise chunk_error(
                f"column {name}", f"values of type {kind}", Verbatim(error)
            ) from error
        if len(array) != self.rows:
            raise chunk_error(f"column {name}", f"{self.rows} values", len(array))
        return array

    def numbers(self, name: str) -> Any:
        """Return the column as numpy numbers, or 0 if it was not passed."""
        if self._columns.get(name) is None:
            return 0
        array = self.array(name)
        return (
            array.view(pa.int64()).to_numpy()
            if pa.types.is_timestamp(array.type)
            else array.to_numpy()
        )


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


def property_strings(input_columns: InputColumns, *more: Any) -> Any:
    """Join KEYS, TAGS, the rest and additions, in this order; one value if all are equal."""
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
    nothing = pa.scalar(b"", pa.binary())
    parts += more or (nothing,)
    if len(parts) == 1:
        return parts[0]
    properties = pc.binary_join_element_wise(*parts, nothing)
    lengths = lengths_of(properties)
    if input_columns.rows and lengths.max() > PROPERTIES_BYTES_MAX:
        row = int(lengths.argmax())
        raise chunk_error(
            f"properties {row}",
            f"at most {PROPERTIES_BYTES_MAX} bytes",
            f"{int(lengths[row])} bytes",
        )
    return properties


def value_lengths(values: Any, rows: int) -> npt.NDArray[np.int64]:
    """Return the length of each row's value, or of the one value of all rows."""
    if isinstance(values, pa.Scalar):
        return np.full(rows, len(values.as_py()), np.int64)
    return lengths_of(values)


def to_binary(structures: npt.NDArray[Any]) -> pa.BinaryArray:
    """Return structures of one width as binary values of the same bytes."""
    width = structures.dtype.itemsize
    values = pa.Array.from_buffers(
        pa.binary(width), len(structures), [None, pa.py_buffer(structures)]
    )
    return values.cast(pa.binary())


def concatenate_rows(parts: Sequence[Any], rows: int, total: int) -> pa.Buffer:
    """Join the parts of each row, and all rows, to one buffer of ``total`` bytes."""
    if not rows:
        return pa.py_buffer(b"")
    return (
        pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.binary()))
        .buffers()[2]
        .slice(0, total)
    )
