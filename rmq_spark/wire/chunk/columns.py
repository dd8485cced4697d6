"""Chunk columns: builds Arrow columns from stored messages.

`COLUMNS` has the name, the type and the builder of each; the names are the Spark source's. A column
holds, for all messages, the value that `StoredMessage` has for one.

A compressed body may become a thousand times as long. Therefore `plain_bodies` yields slices of
limited size, and a caller that processes them one by one never holds more than one. A body that
cannot be decompressed is null, and its problem is returned with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmq_spark.errors import BodyError, CodecMissing, Verbatim
from rmq_spark.wire.chunk.buffer_slices import (
    Positions,
    Structures,
    Widths,
    chunk_error,
    take_bytes,
    take_structures,
    to_arrow,
)
from rmq_spark.wire.chunk.decode import RecordChunk
from rmq_spark.wire.chunk.properties import MAP_TYPE
from rmq_spark.wire.codes import MessageSysFlag
from rmq_spark.wire.compression import PLAIN_BYTES_MAX, uncompress_body
from rmq_spark.wire.message import record_layout as layout
from rmq_spark.wire.message.hosts import decode_host
from rmq_spark.wire.message.message_id import encode_offset_message_id
from rmq_spark.wire.message.properties import KEYS, TAGS, UNIQ_KEY

_COMPRESSED = MessageSysFlag.COMPRESSED.value


class BodySlice(NamedTuple):
    """The bodies of the rows starting at ``first``; ``problems`` says by row why a body is null."""

    first: int
    bodies: pa.BinaryArray
    problems: dict[int, BodyError]


def plain_bodies(
    chunk: RecordChunk, slice_bytes: int, bytes_max: int = PLAIN_BYTES_MAX
) -> Iterator[BodySlice]:
    """Yield the decompressed bodies of a chunk, in slices of about ``slice_bytes`` bytes.

    A body that has more than ``bytes_max`` bytes when decompressed is null, with a problem.

    A slice has at least one row; a chunk without compressed bodies is one slice, whatever its size.
    """
    if not chunk.sys_flags_union & _COMPRESSED:
        yield BodySlice(0, chunk.stored_bodies, {})
        return
    compressed = np.flatnonzero(chunk.sys_flag & _COMPRESSED)
    first = held = 0
    plain: dict[int, bytes | None] = {}
    problems: dict[int, BodyError] = {}
    for row in compressed.tolist():
        start = int(chunk.body_at[row])
        body = chunk.data[start : start + int(chunk.body_length[row])].tobytes()
        try:
            plain[row] = bytes(uncompress_body(body, int(chunk.sys_flag[row]), bytes_max))
        except CodecMissing:
            raise
        except BodyError as error:
            plain[row] = None
            problems[row] = error
        held += len(plain[row] or b"")
        if held >= slice_bytes:
            yield _body_slice(chunk, first, row + 1, plain, problems)
            first, held, plain, problems = row + 1, 0, {}, {}
    if first < len(chunk):
        yield _body_slice(chunk, first, len(chunk), plain, problems)


def _body_slice(
    chunk: RecordChunk,
    first: int,
    end: int,
    plain: dict[int, bytes | None],
    problems: dict[int, BodyError],
) -> BodySlice:
    lengths = chunk.body_length[first:end].copy()
    inflated = np.fromiter(plain, np.int64, len(plain)) - first
    lengths[inflated] = 0  # do not keep their compressed bytes
    bodies = take_bytes(chunk.buffer, chunk.body_at[first:end], lengths)
    mask = np.zeros(end - first, bool)
    mask[inflated] = True
    bodies = pc.replace_with_mask(
        bodies, pa.array(mask), pa.array(list(plain.values()), pa.binary())
    )
    return BodySlice(first, bodies, problems)


CHUNK_PLAIN_BYTES_MAX = 1 << 30
"""The most bytes to which the bodies of one chunk may inflate: their column has 32-bit offsets."""

_HEX_PAIRS = np.array([f"{byte:02X}".encode() for byte in range(256)], "S2").view(np.uint16)


class ColumnSpec(NamedTuple):
    """The Arrow type of a column, and the function that builds it."""

    type: pa.DataType
    build: Callable[[RecordChunk], pa.Array]


def chunk_columns(chunk: RecordChunk, names: Iterable[str]) -> pa.RecordBatch:
    """Return a record batch with these columns, in this order; no others are built."""
    wanted = [(name, COLUMNS[name]) for name in names]
    schema = pa.schema([pa.field(name, column.type) for name, column in wanted])
    return pa.record_batch([column.build(chunk) for _, column in wanted], schema=schema)


def _head_column(field: str) -> Callable[[RecordChunk], pa.Array]:
    def build(chunk: RecordChunk) -> pa.Array:
        values = chunk.head[field]
        return to_arrow(values.astype(values.dtype.newbyteorder("=")))

    return build


def _body(chunk: RecordChunk) -> pa.Array:
    slices = plain_bodies(chunk, CHUNK_PLAIN_BYTES_MAX)
    whole = next(slices)
    for row, problem in whole.problems.items():
        needed = f"a compressed body that can be inflated (record {row})"
        raise chunk_error(int(chunk.starts[row]), needed, Verbatim(problem))
    row = len(whole.bodies)
    if row < len(chunk):
        needed = f"at most {CHUNK_PLAIN_BYTES_MAX} bytes of bodies inflated (record {row})"
        raise chunk_error(int(chunk.starts[row]), needed, Verbatim("more"))
    return whole.bodies


def _timestamps(values: Structures) -> pa.Array:
    return to_arrow(values.astype(np.int64)).view(TIMESTAMP)


def _hosts(buffer: pa.Buffer, starts: Positions, widths: Widths) -> pa.Array:
    """Return hosts as text; there are few different ones, and each is formatted once."""
    hosts = take_bytes(buffer, starts, widths).dictionary_encode()
    texts = [str(decode_host(host)) for host in hosts.dictionary.to_pylist()]
    return pa.array(texts, pa.string()).take(hosts.indices)


def _offset_message_id(chunk: RecordChunk) -> pa.Array:
    offsets = chunk.head["physical_offset"]
    if not isinstance(chunk.store_host_bytes, int):
        hosts = take_bytes(chunk.buffer, chunk.store_host_at, chunk.store_host_bytes).to_pylist()
        pairs = zip(hosts, offsets.tolist(), strict=True)
        ids = [encode_offset_message_id(decode_host(host), offset) for host, offset in pairs]
        return pa.array(ids, pa.string())
    host = take_structures(chunk.data, chunk.store_host_at, f"V{layout.HOST_V4_BYTES}")
    data = np.empty((len(chunk), 2), np.uint64)
    data[:, 0] = host.view(np.uint64)
    data[:, 1] = np.ascontiguousarray(offsets).view(np.uint64)
    digits = _HEX_PAIRS[data.view(np.uint8)]
    ends = np.arange(len(chunk) + 1, dtype=np.int32) * (2 * 16)
    return pa.Array.from_buffers(
        pa.string(), len(chunk), [None, pa.py_buffer(ends), pa.py_buffer(digits)]
    )


def _message_id(chunk: RecordChunk) -> pa.Array:
    unique = chunk.properties.values(UNIQ_KEY)
    return pc.coalesce(unique, _offset_message_id(chunk)) if unique.null_count else unique


TIMESTAMP = pa.timestamp("ms", tz="UTC")

COLUMNS: Mapping[str, ColumnSpec] = {
    "topic": ColumnSpec(pa.string(), lambda chunk: chunk.topics),
    "queueId": ColumnSpec(pa.int32(), _head_column("queue_id")),
    "queueOffset": ColumnSpec(pa.int64(), _head_column("queue_offset")),
    "keys": ColumnSpec(pa.string(), lambda chunk: chunk.properties.values(KEYS)),
    "tags": ColumnSpec(pa.string(), lambda chunk: chunk.properties.values(TAGS)),
    "body": ColumnSpec(pa.binary(), _body),
    "bornTimestamp": ColumnSpec(TIMESTAMP, lambda chunk: _timestamps(chunk.head["born_timestamp"])),
    "storeTimestamp": ColumnSpec(TIMESTAMP, lambda chunk: _timestamps(chunk.store_timestamp)),
    "msgId": ColumnSpec(pa.string(), _message_id),
    "offsetMsgId": ColumnSpec(pa.string(), _offset_message_id),
    "properties": ColumnSpec(MAP_TYPE, lambda chunk: chunk.properties.maps()),
    "flag": ColumnSpec(pa.int32(), _head_column("flag")),
    "sysFlag": ColumnSpec(pa.int32(), _head_column("sys_flag")),
    "bornHost": ColumnSpec(
        pa.string(), lambda chunk: _hosts(chunk.buffer, chunk.born_host_at, chunk.born_host_bytes)
    ),
    "storeHost": ColumnSpec(
        pa.string(), lambda chunk: _hosts(chunk.buffer, chunk.store_host_at, chunk.store_host_bytes)
    ),
    "reconsumeTimes": ColumnSpec(
        pa.int32(), lambda chunk: to_arrow(chunk.tail["reconsume_times"].astype(np.int32))
    ),
    "commitLogOffset": ColumnSpec(pa.int64(), _head_column("physical_offset")),
    "preparedTransactionOffset": ColumnSpec(
        pa.int64(),
        lambda chunk: to_arrow(chunk.tail["prepared_transaction_offset"].astype(np.int64)),
    ),
}

DEFAULT_COLUMNS = (
    "topic",
    "queueId",
    "queueOffset",
    "keys",
    "tags",
    "body",
    "bornTimestamp",
    "storeTimestamp",
)
