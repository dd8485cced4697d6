"""Plain bodies: decompresses the bodies of a chunk, a slice of rows at a time.

A compressed body may become a thousand times as long: so a slice ends as soon as it has so many
bytes, and a caller that processes slices one by one never holds more. A body that cannot be
decompressed is null, and its problem is returned with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmq_spark.errors import BodyError, CodecMissing
from rmq_spark.wire.chunk.buffer_slices import take_bytes
from rmq_spark.wire.chunk.decode import RecordChunk
from rmq_spark.wire.compression import PLAIN_BYTES_MAX, uncompress_body
from rmq_spark.wire.flags import MessageSysFlag

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

    Raises:
        CodecMissing: A module that some of the bodies need is not installed.
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
    lengths[inflated] = 0  # their compressed bytes are not taken along
    bodies = take_bytes(chunk.buffer, chunk.body_at[first:end], lengths)
    mask = np.zeros(end - first, bool)
    mask[inflated] = True
    bodies = pc.replace_with_mask(
        bodies, pa.array(mask), pa.array(list(plain.values()), pa.binary())
    )
    return BodySlice(first, bodies, problems)
