"""Sized chunk: records with their sizes in front, as in APPEND_CHUNK and in PULL_CHUNK's response.

    i32  count
    i32  size of each record
         the records, back to back

The receiver knows where each record starts without walking through them. Consumers that process
messages one by one need neither numpy nor pyarrow for it.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rmq_spark.errors import RecordError
from rmq_spark.wire.remoting.framing import Buffer

if TYPE_CHECKING:
    import numpy.typing as npt

_COUNT = struct.Struct(">i")
_SIZE_BYTES = 4


def encode_sizes(sizes: Sequence[int] | npt.NDArray[Any]) -> bytes:
    """Return the part before the records: their count and their sizes."""
    import numpy as np  # noqa: PLC0415  # only for encoding

    return _COUNT.pack(len(sizes)) + np.asarray(sizes).astype(">i4").tobytes()


def decode_sized_chunk(data: Buffer) -> tuple[array[int], memoryview]:
    """Return the sizes and the records; `RecordChunk` checks that they fit each other."""
    view = memoryview(data)
    if len(view) < _COUNT.size:
        raise RecordError("sized chunk", at=0, needed="the number of its records", found=view)
    (count,) = _COUNT.unpack_from(view)
    records_at = _COUNT.size + count * _SIZE_BYTES
    if not 0 <= count <= len(view) // _SIZE_BYTES or records_at > len(view):
        raise RecordError("sized chunk", at=0, needed="as many sizes as it states", found=count)
    sizes = array("i", bytes(view[_COUNT.size : records_at]))
    if sys.byteorder == "little":
        sizes.byteswap()
    return sizes, view[records_at:]
