"""KeyedMessages: the fields of contiguous log records that the index needs.

A few records are read one by one, many as columns, which are searched once. So that one step of the
index takes little time, it gets only as many of these records at a time as have not too many keys
together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from rmq_spark.wire.framing import Buffer
from rmq_spark.wire.properties import KEYS, UNIQ_KEY

from ..bulk import bulk_tools
from ..records.fields import pattern_of, property_of, read_fields
from ..results import PhysicalOffset

if TYPE_CHECKING:
    from rmq_spark.wire.chunk import RecordChunk
    from rmq_spark.wire.chunk.buffer_slices import Positions

_PROPERTY_BYTES_MAX = 1 << 20
"""Bytes of properties that come to the index at a time, if of several messages:
some milliseconds."""
_LONG_PROPERTY_BYTES_MAX = 1 << 18
"""A smaller bound where more came at once: too many words are looked into once
for each run of them."""

_UNIQ_KEY, _KEYS = pattern_of(UNIQ_KEY), pattern_of(KEYS)


class KeyedMessage(NamedTuple):
    """The fields of a message that the index needs."""

    topic: str
    unique_key: str | None
    keys: str | None
    physical_offset: PhysicalOffset
    store_timestamp: int
    sys_flag: int


def keyed_messages(
    data: Buffer, sizes: Sequence[int], start: PhysicalOffset
) -> Iterator[KeyedMessage]:
    """Yield the index fields of each of a few contiguous records from a log offset on."""
    position = 0
    for size in sizes:
        topic, _, _, sys_flag, store_timestamp, properties = read_fields(data, position, size)
        yield KeyedMessage(
            topic.decode("utf-8", "replace"),
            _text(property_of(properties, _UNIQ_KEY)),
            _text(property_of(properties, _KEYS)),
            start + position,
            store_timestamp,
            sys_flag,
        )
        position += size


class KeyedChunk:
    """Many contiguous records of the log, of which the index processes some at a time."""

    def __init__(self, chunk: RecordChunk, start: PhysicalOffset) -> None:
        """Begin with the first, at this place in the log; the last are left out if it is long."""
        self._chunk = _with_few_properties(chunk)
        self._start = start
        self._row = 0
        self.start_offset = start
        """The place of the first record that was not taken yet."""
        self.end_offset = start + len(self._chunk.data)
        """The place behind the last record."""

    def next_columns(self, keys_max: int) -> dict[str, Any]:
        """Return the index fields of the next records, at least one, and move past them.

        Several have at most ``keys_max`` keys together.
        """
        first = self._row
        most = self._keys_before[first] + keys_max
        self._row = max(int(self._keys_before.searchsorted(most, "right")) - 1, first + 1)
        self.start_offset = self._start + int(self._chunk.ends[self._row - 1])
        return {name: column[first : self._row] for name, column in self._columns.items()}

    @cached_property
    def _columns(self) -> dict[str, Any]:
        return key_columns(self._chunk, self._start)

    @cached_property
    def _keys_before(self) -> Positions:
        return bulk_tools.keys_before(self._columns["unique_keys"], self._columns["keys"])


def key_columns(chunk: RecordChunk, start: PhysicalOffset) -> dict[str, Any]:
    """Return the index fields of many contiguous records from a log offset on."""
    return {
        "topics": bulk_tools.COLUMNS["topic"].build(chunk),
        "unique_keys": chunk.properties.values(UNIQ_KEY),
        "keys": bulk_tools.COLUMNS["keys"].build(chunk),
        "physical_offsets": chunk.starts + start,
        "store_timestamps": bulk_tools.COLUMNS["storeTimestamp"].build(chunk).view("int64"),
        "sys_flags": chunk.sys_flag,
    }


def _with_few_properties(chunk: RecordChunk) -> RecordChunk:
    """Cut many records down to the first of them, before their properties are read."""
    ends = chunk.properties_length.cumsum()
    if len(chunk) <= 1 or ends[-1] <= _PROPERTY_BYTES_MAX:
        return chunk
    count = max(int(ends.searchsorted(_LONG_PROPERTY_BYTES_MAX, "right")), 1)
    return bulk_tools.RecordChunk(chunk.data[: chunk.ends[count - 1]].data, chunk.sizes[:count])


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "replace")
