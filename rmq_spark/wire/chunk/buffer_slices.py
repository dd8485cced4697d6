"""Buffer slices: picks many scattered slices out of one buffer at the speed of memory.

The way depends on the slices:

- Slices of one width at equal distances, as in records of one size, are a strided array, which is
  copied.
- For other slices of one width, the buffer is viewed as overlapping structures, one starting at
  every byte, and indexed. This takes 1.5 times as long.
- Slices of different widths become an Arrow array of views into the buffer, which Arrow casts to an
  array with contiguous bytes.
- If some of these are shorter than 13 bytes, Arrow would store them in the views. So the buffer is
  viewed as an array whose elements are alternately a slice and the gap after it, and every second
  element is taken. Arrow underestimates the size of the result by half, and copies the bytes twice.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_spark.errors import RecordError
from rmq_spark.wire.message import record_layout as layout

Positions: TypeAlias = npt.NDArray[np.int64]
Bytes: TypeAlias = npt.NDArray[np.uint8]
Structures: TypeAlias = npt.NDArray[Any]

Widths: TypeAlias = "int | Positions"
"""The width of all slices, or one for each."""

BUFFER_BYTES_MAX = (1 << 31) - 1
"""The most bytes of a binary array: its offsets have 32 bits."""

_MALLOC_THRESHOLD_BYTES = 16 << 20
# Decoding a chunk makes and drops some thirty arrays of a few hundred kilobytes. glibc would return
# their memory to the kernel each time, and page faults would take as long as the work. But it keeps
# blocks that are smaller than the largest one freed so far: here a large block is allocated and
# freed, which costs nothing because nobody touches it.
np.empty(_MALLOC_THRESHOLD_BYTES, np.uint8)

_VIEW = np.dtype([("length", "i4"), ("first_bytes", "V4"), ("buffer", "i4"), ("start", "i4")])
"""The type of an element of a `pa.binary_view` array; its first bytes serve comparisons only."""

_VIEW_BYTES_MIN = 13
"""The length from which Arrow does not store a slice in its view."""

_CAN_MAKE_VIEWS = int(pa.__version__.split(".")[0]) >= 19  # older from_buffers cannot

_PACKED_BYTES_MIN, _PACKED_BYTES_MAX = 24, 192
"""The least and the most bytes to pack per slice; longer slices are not worth packing."""

_EVEN_ROWS_MIN = 64
"""The fewest slices for which a check for equal distances pays."""

_DTYPES = {"i": ">i4", "q": ">i8"}


def chunk_error(at: int | str, needed: str, found: object) -> RecordError:
    """Return the error for columns or records of a chunk."""
    return RecordError("chunk", at=at, needed=needed, found=found)


def struct_dtype(layout: tuple[tuple[str, str], ...]) -> np.dtype[Any]:
    """Return the numpy type of a part of `record_layout`."""
    return np.dtype([(name, _DTYPES[kind]) for name, kind in layout])


@lru_cache(maxsize=4)
def dtype_before_body(born_host_bytes: int, store_host_bytes: int) -> np.dtype[Any]:
    """Return the numpy type of a record's fields before its body, with hosts of these widths."""
    return np.dtype(
        [
            ("head", struct_dtype(layout.HEAD)),
            ("born_host", f"V{born_host_bytes}"),
            ("store_timestamp", _DTYPES["q"]),
            ("store_host", f"V{store_host_bytes}"),
            ("tail", struct_dtype(layout.TAIL)),
        ]
    )


def take_structures(data: Bytes, starts: Positions, dtype: np.dtype[Any] | str) -> Structures:
    """Return the structures that start at these bytes; all must end within the data."""
    as_type = np.dtype(dtype)
    width = as_type.itemsize
    distance = _common_distance(starts)
    if distance is not None:
        taken = _strided(data, int(starts[0]), len(starts), width, distance).copy()
    else:
        # Plain [] picks from the strided view; take() would first copy it, width times the data.
        overlapping = np.ndarray((max(len(data) - width + 1, 0),), f"V{width}", data, strides=(1,))
        taken = overlapping[starts]
    structures: Structures = taken.view(as_type)
    return structures


def _common_distance(starts: Positions) -> int | None:
    """Return the distance from each slice to the next if all are equal, else None."""
    if len(starts) < _EVEN_ROWS_MIN:
        return None
    distance = int(starts[1]) - int(starts[0])
    # The first and the last slice rule out most unequal distances.
    if distance <= 0 or int(starts[-1]) - int(starts[0]) != distance * (len(starts) - 1):
        return None
    return distance if bool((starts[1:] - starts[:-1] == distance).all()) else None


def _strided(data: Bytes, start: int, count: int, width: int, distance: int) -> Structures:
    strided: Structures = np.ndarray((count,), f"V{width}", data, start, (distance,))
    return strided


def pack_slices(data: Bytes, starts: Positions, lengths: Positions) -> tuple[Bytes, Positions]:
    """Copy short slices close together, for repeated access; return the bytes and all starts.

    The slices must be in order. If one is long, none is copied.
    """
    longest = int(lengths.max(initial=0))
    width = max(-(-longest // 8) * 8, _PACKED_BYTES_MIN)
    if not len(starts) or width > min(_PACKED_BYTES_MAX, len(data)):
        return data, starts
    last = len(data) - width
    whole = int(np.searchsorted(starts, last, "right"))
    distance = _common_distance(starts[:whole])
    if distance is None:
        within = np.minimum(starts, last) if whole < len(starts) else starts
        pieces = take_structures(data, within, f"V{width}").view(np.uint8)
    else:
        pieces = np.empty(len(starts) * width, np.uint8)
        pieces.view(f"V{width}")[:whole] = _strided(data, int(starts[0]), whole, width, distance)
    new_starts = np.arange(0, len(pieces), width)
    for row in range(whole, len(starts)):
        length, start = int(lengths[row]), int(starts[row])
        pieces[row * width : row * width + length] = data[start : start + length]
    return pieces, new_starts


def take_bytes(buffer: pa.Buffer, starts: Positions, lengths: Widths) -> pa.BinaryArray:
    """Return the slices in one new buffer; they must be in order and not overlap."""
    count = len(starts)
    shortest = longest = lengths if isinstance(lengths, int) else 0
    if not isinstance(lengths, int):
        shortest = int(lengths.min(initial=BUFFER_BYTES_MAX))
        longest = int(lengths.max(initial=0))
    if count and shortest == longest > 0:
        pieces = take_structures(np.frombuffer(buffer, np.uint8), starts, f"V{longest}")
        offsets = np.arange(count + 1, dtype=np.int32) * np.int32(longest)
        return pa.Array.from_buffers(
            pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(pieces)]
        )
    if count and _CAN_MAKE_VIEWS and shortest >= _VIEW_BYTES_MIN:
        views = np.zeros(count, _VIEW)
        views["length"], views["start"] = lengths, starts
        viewed = pa.Array.from_buffers(pa.binary_view(), count, [None, pa.py_buffer(views), buffer])
        return viewed.cast(pa.binary())
    offsets = np.empty(2 * count + 1, np.int32)
    offsets[0:-1:2] = starts
    offsets[1::2] = starts + lengths
    offsets[-1] = offsets[-2] if count else 0
    pieces_and_gaps = pa.Array.from_buffers(
        pa.binary(), 2 * count, [None, pa.py_buffer(offsets), buffer]
    )
    return pieces_and_gaps.take(to_arrow(np.arange(0, 2 * count, 2)))


def to_arrow(values: npt.NDArray[Any]) -> pa.Array:
    """Return contiguous numbers as an Arrow array over the same memory.

    `pa.array` would first load pandas, if that is installed: a third of a second in each process
    that reads.
    """
    kind = pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def offsets_of(array: pa.Array) -> npt.NDArray[np.int32]:
    """Return the starts of the elements of a binary, text, list or map array, and the last end."""
    offsets = np.frombuffer(array.buffers()[1], np.int32)
    return offsets[array.offset : array.offset + len(array) + 1]


def lengths_of(array: pa.Array) -> npt.NDArray[np.int64]:
    """Return the lengths of the elements of an array that has `offsets_of`, with int64 for sums."""
    offsets = offsets_of(array)
    return np.subtract(offsets[1:], offsets[:-1], dtype=np.int64)


def as_text(array: pa.BinaryArray) -> pa.StringArray:
    """Return the bytes as text; bytes that are not UTF-8 are replaced, as in all of the wire."""
    try:
        return array.cast(pa.string())
    except pa.ArrowInvalid:
        texts = (
            None if item is None else item.decode("utf-8", "replace") for item in array.to_pylist()
        )
        return pa.array(list(texts), pa.string())
