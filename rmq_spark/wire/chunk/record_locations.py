"""Record locations: the response to PULL_PLACES, for readers that can open the commit log's files.

    i32  count of runs      records of a run lie back to back in the log
    each run:
        i64  place          the physical offset of its first record
        i32  records
    the records' sizes, as `sized_chunk` draws them
    the records themselves if there are no runs

If the records are scattered, the broker sends them instead, as for PULL_CHUNK: gathering them costs
it less than it would cost a reader of files.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from rmq_spark.errors import RecordError
from rmq_spark.wire.chunk.buffer_slices import Positions
from rmq_spark.wire.chunk.sized_chunk import decode_sized_chunk, encode_sizes
from rmq_spark.wire.remoting.framing import Buffer

RUN_BYTES_MIN: Final = 16_384
"""The fewest bytes of a run, on average, for which a reader opens and reads files."""

_COUNT = struct.Struct(">i")
_RUN = np.dtype([("place", ">i8"), ("records", ">i4")])


class LocatedRecords(NamedTuple):
    """The records of a pull, or their ``physical_offsets`` in the broker's commit log."""

    physical_offsets: Positions | None
    """The physical offset of each record; None if ``records`` has the records themselves."""
    sizes: npt.NDArray[np.int32]
    records: memoryview


def has_long_runs(physical_offsets: npt.ArrayLike, sizes: npt.ArrayLike) -> bool:
    """Return whether records form runs that are long enough to be read from files."""
    starts, lengths = np.asarray(physical_offsets, np.int64), np.asarray(sizes, np.int64)
    return int(lengths.sum()) >= (len(_run_starts(starts, lengths)) + 1) * RUN_BYTES_MIN


def encode_locations(physical_offsets: npt.ArrayLike, sizes: npt.ArrayLike) -> bytes:
    """Return the locations of records, and their sizes."""
    starts, lengths = np.asarray(physical_offsets, np.int64), np.asarray(sizes, np.int64)
    run_starts = np.concatenate(([0], _run_starts(starts, lengths)))
    runs = np.empty(len(run_starts), _RUN)
    runs["place"] = starts[run_starts]
    runs["records"] = np.diff(run_starts, append=len(starts))
    return _COUNT.pack(len(runs)) + runs.tobytes() + encode_sizes(lengths)


def _run_starts(starts: Positions, lengths: Positions) -> Positions:
    return np.flatnonzero(starts[1:] != starts[:-1] + lengths[:-1]) + 1


def encode_inline(sizes: npt.ArrayLike) -> bytes:
    """Return the part before the records, if the records themselves are sent."""
    return _COUNT.pack(0) + encode_sizes(np.asarray(sizes))


def decode_located(data: Buffer) -> LocatedRecords:
    """Return the records in a response, or their locations; raise RecordError if it is damaged."""
    view = memoryview(data)
    if len(view) < _COUNT.size:
        raise RecordError("placed records", at=0, needed="the number of runs", found=view)
    (count,) = _COUNT.unpack_from(view)
    if not 0 <= count <= len(view) // _RUN.itemsize:
        raise RecordError("placed records", at=0, needed="as many runs as it states", found=count)
    sizes_at = _COUNT.size + count * _RUN.itemsize
    size_list, records = decode_sized_chunk(view[sizes_at:])
    sizes = np.asarray(size_list, np.int32)
    if not count:
        return LocatedRecords(None, sizes, records)
    runs = np.frombuffer(view[_COUNT.size : sizes_at], _RUN)
    of_each = runs["records"].astype(np.int64)
    if len(records) or (of_each <= 0).any() or int(of_each.sum()) != len(sizes):
        raise RecordError(
            "placed records", at="runs", needed=f"{len(sizes)} records in all", found=of_each.sum()
        )
    starts = np.cumsum(sizes, dtype=np.int64) - sizes
    run_starts = np.cumsum(of_each) - of_each
    positions: Positions = starts + np.repeat(runs["place"] - starts[run_starts], of_each)
    return LocatedRecords(positions, sizes, records)
