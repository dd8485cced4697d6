"""KeyedMessages: what the index needs of records that lie back to back in the log.

A few are read one by one, many as columns. So that one step of the index takes little time, many
are cut down to the first that have not too many words of keys; which these are is told without
looking at all the others. The index itself is not known here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from rmq_spark.wire.framing import Buffer
from rmq_spark.wire.properties import KEYS, UNIQ_KEY
from rocketpoll.broker.store import chunks
from rocketpoll.broker.store.offsets import PhysicalOffset
from rocketpoll.broker.store.records.record_glance import glance, pattern_of, property_of

if TYPE_CHECKING:
    from rmq_spark.wire.chunk import RecordChunk

_WORDS_MAX = 8_192
"""Words of keys that come to the index at a time, if there are several: a microsecond each."""
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


def keyed(data: Buffer, sizes: Sequence[int], start: PhysicalOffset) -> Iterator[KeyedMessage]:
    """Yield what the index needs of each of a few records that lie back to back from a place on."""
    position = 0
    for size in sizes:
        topic, _, _, sys_flag, store_timestamp, properties = glance(data, position, size)
        yield KeyedMessage(
            topic.decode("utf-8", "replace"),
            _text(property_of(properties, _UNIQ_KEY)),
            _text(property_of(properties, _KEYS)),
            start + position,
            store_timestamp,
            sys_flag,
        )
        position += size


def first_key_columns(chunk: RecordChunk, start: PhysicalOffset) -> tuple[dict[str, Any], int]:
    """Return what the index takes at a time of many records, and how many of them that is."""
    chunk = _with_few_properties(chunk)
    columns = key_columns(chunk, start)
    count = max(chunks.rows_within(columns["keys"], _WORDS_MAX), 1)
    return {name: column[:count] for name, column in columns.items()}, min(count, len(chunk))


def key_columns(chunk: RecordChunk, start: PhysicalOffset) -> dict[str, Any]:
    """Return what the index needs of many records that lie back to back from a place in the log."""
    return {
        "topics": chunks.COLUMNS["topic"].build(chunk),
        "unique_keys": chunk.properties.values(UNIQ_KEY),
        "keys": chunks.COLUMNS["keys"].build(chunk),
        "physical_offsets": chunk.starts + start,
        "store_timestamps": chunks.COLUMNS["storeTimestamp"].build(chunk).view("int64"),
        "sys_flags": chunk.sys_flag,
    }


def _with_few_properties(chunk: RecordChunk) -> RecordChunk:
    """Cut many records down to the first of them, before their properties are looked into."""
    ends = chunk.properties_length.cumsum()
    if len(chunk) <= 1 or ends[-1] <= _PROPERTY_BYTES_MAX:
        return chunk
    count = max(int(ends.searchsorted(_LONG_PROPERTY_BYTES_MAX, "right")), 1)
    return chunks.RecordChunk(chunk.data[: chunk.ends[count - 1]].data, chunk.sizes[:count])


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "replace")
