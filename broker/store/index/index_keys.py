"""Index keys: the hashes of the keys of log records, with the records' places and times.

    a few records       one by one                                 `hash_records`
    a chunk             as columns, which are searched once        `KeyedChunk`, `hash_columns`
    recent writes       from the memory of their writer            `hash_runs`

So that one step of the index takes little time, it gets only as many records of a chunk as have a
limited number of keys together.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache
from itertools import chain, groupby
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from rmq_spark.wire.codes import MessageSysFlag
from rmq_spark.wire.framing import Buffer
from rmq_spark.wire.properties import (
    KEYS,
    NAME_VALUE_SEPARATOR,
    PROPERTY_SEPARATOR,
    UNIQ_KEY,
    java_string_hash,
)

from ..bulk import bulk_tools
from ..bulk import lazy_numpy as np
from ..bulk.index_hash import INDEX_KEY_SEPARATOR, IndexHashes, hash_keys, index_hashes
from ..records.fields import pattern_of, property_of, read_fields
from ..records.recent_writes import FixedSizeRun, RecentRun
from ..results import PhysicalOffset

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

    from rmq_spark.wire.chunk import RecordChunk
    from rmq_spark.wire.chunk.buffer_slices import Positions

HashedKeys: TypeAlias = "tuple[IndexHashes, Positions, Positions]"
"""Hashes of keys in log order, and the positions and store times of their messages."""

_PROPERTY_BYTES_MAX = 1 << 20
"""Bytes of properties indexed at a time, unless a single message has more: some milliseconds."""
_LONG_PROPERTY_BYTES_MAX = 1 << 18
"""A smaller limit that applies if a step had more: too many words are examined once for each run of
them."""

_UNIQ_KEY, _KEYS = pattern_of(UNIQ_KEY), pattern_of(KEYS)
_TRANSACTION = MessageSysFlag.TRANSACTION_MASK.value
_ROLLBACK = MessageSysFlag.TRANSACTION_ROLLBACK.value


def hash_records(data: Buffer, sizes: Sequence[int], start: PhysicalOffset) -> HashedKeys:
    """Return the keys of a few contiguous records from a log offset on."""
    hashes: list[int] = []
    places: list[int] = []
    times: list[int] = []
    position = 0
    for size in sizes:
        topic, _, _, sys_flag, store_timestamp, properties = read_fields(data, position, size)
        if sys_flag & _TRANSACTION != _ROLLBACK:
            own = _hash_one(topic.decode("utf-8", "replace"), properties)
            hashes += own
            places += [start + position] * len(own)
            times += [store_timestamp] * len(own)
        position += size
    return np.array(hashes, np.int32), np.array(places, np.int64), np.array(times, np.int64)


def _hash_one(topic: str, properties: bytes) -> list[int]:
    texts = (_text(property_of(properties, name)) for name in (_UNIQ_KEY, _KEYS))
    return hash_keys(topic, *texts)


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "replace")


class KeyColumns(NamedTuple):
    """The fields of messages that the index needs, in log order."""

    topics: pa.StringArray
    unique_keys: pa.StringArray
    """The UNIQ_KEY of each message, or null."""
    keys: pa.StringArray
    """The KEYS of each message, words separated by spaces, or null."""
    physical_offsets: Positions
    store_timestamps: npt.NDArray[np.int64]
    sys_flags: npt.NDArray[np.int32]
    """The sysFlag of each message; rolled-back messages have no keys."""


def key_columns(chunk: RecordChunk, start: PhysicalOffset) -> KeyColumns:
    """Return the columns of many contiguous records from a log offset on."""
    times = bulk_tools.COLUMNS["storeTimestamp"].build(chunk).view("int64")
    return KeyColumns(
        bulk_tools.COLUMNS["topic"].build(chunk),
        chunk.properties.values(UNIQ_KEY),
        bulk_tools.COLUMNS["keys"].build(chunk),
        chunk.starts + start,
        times.to_numpy(),
        chunk.sys_flag,
    )


def hash_columns(columns: KeyColumns) -> HashedKeys:
    """Return the keys of messages, from their columns."""
    topics, unique_keys, keys, places, times, sys_flags = columns
    rows, hashes = bulk_tools.hash_index_keys(topics, unique_keys, keys)
    kept = np.flatnonzero(sys_flags[rows] & _TRANSACTION != _ROLLBACK)
    rows = rows[kept]
    return hashes[kept], places[rows], times[rows]


class KeyedChunk:
    """Many contiguous records, of which the index processes some at a time."""

    def __init__(self, chunk: RecordChunk, start: PhysicalOffset) -> None:
        """Start with the first record, at this log offset; of long chunks, only the first part."""
        self._chunk = _with_few_properties(chunk)
        self._start = start
        self._row = 0
        self.start_offset = start
        """The position of the first unprocessed record."""
        self.end_offset = start + len(self._chunk.data)
        """The position past the last record."""

    def next_keys(self, keys_max: int) -> HashedKeys:
        """Return the keys of the next records, at least one, and advance past them.

        Several records together have at most ``keys_max`` keys.
        """
        first = self._row
        most = self._keys_before[first] + keys_max
        self._row = max(int(self._keys_before.searchsorted(most, "right")) - 1, first + 1)
        self.start_offset = self._start + int(self._chunk.ends[self._row - 1])
        return hash_columns(KeyColumns._make(each[first : self._row] for each in self._columns))

    @cached_property
    def _columns(self) -> KeyColumns:
        return key_columns(self._chunk, self._start)

    @cached_property
    def _keys_before(self) -> Positions:
        return bulk_tools.keys_before(self._columns.unique_keys, self._columns.keys)


def _with_few_properties(chunk: RecordChunk) -> RecordChunk:
    """Cut many records down to the first ones, before their properties are read."""
    ends = chunk.properties_length.cumsum()
    if len(chunk) <= 1 or ends[-1] <= _PROPERTY_BYTES_MAX:
        return chunk
    count = max(int(ends.searchsorted(_LONG_PROPERTY_BYTES_MAX, "right")), 1)
    return bulk_tools.RecordChunk(chunk.data[: chunk.ends[count - 1]].data, chunk.sizes[:count])


# ---- Index keys of recent writes, computed in memory: by columns, unless they are few.

_SEPARATOR = PROPERTY_SEPARATOR.encode()
_UNIQ_KEY_NAME = f"{UNIQ_KEY}{NAME_VALUE_SEPARATOR}".encode()
_KEYS_NAME = f"{KEYS}{NAME_VALUE_SEPARATOR}".encode()
_SEPARATORS_END = 3
_NOT_ASCII = 0x80
_MODULUS = 1 << 32


_FEW = 16
"""Up to this number of messages, columns cost more than loops."""
_KEYS_MAX = 8_192
"""Keys of one step; messages with more are read from the log, some at a time."""


def hash_runs(runs: Sequence[RecentRun | FixedSizeRun]) -> HashedKeys | None:
    """Return the keys of recent writes, at least one, in log order.

    None if they have too many keys for one step, or the bulk tools are not loaded yet.
    """
    fixed = [each for each in runs if isinstance(each, FixedSizeRun)]
    found = _hash_fixed_size_runs(fixed) if len(fixed) == len(runs) else None
    return _hash_any_runs(runs) if found is None else found


def _hash_any_runs(runs: Sequence[RecentRun | FixedSizeRun]) -> HashedKeys | None:
    topics: list[str] = []
    texts: list[bytes] = []
    places: list[int] = []
    for run in runs:
        if isinstance(run, FixedSizeRun):
            topics += [run.queue[0]] * run.rows
            texts += run.properties()
            places += range(run.start_offset, run.end_offset, run.record_bytes)
        else:
            for queue, _, place, _, properties in run.records:
                topics.append(queue[0])
                texts.append(properties)
                places.append(place)
    # Each search takes a fraction of a microsecond, columns of properties several for a message.
    unique_keys = [property_of(text, _UNIQ_KEY) for text in texts]
    keys = [property_of(text, _KEYS) for text in texts]
    if sum([each.count(b" ") for each in keys if each]) + 2 * len(texts) > _KEYS_MAX:
        return None
    if len(texts) <= _FEW:
        of_each = [
            hash_keys(topic, _text(unique_key), _text(words))
            for topic, unique_key, words in zip(topics, unique_keys, keys, strict=True)
        ]
        rows = np.repeat(np.arange(len(texts)), [*map(len, of_each)])
        hashes = np.array([*chain.from_iterable(of_each)], np.int32)
    else:
        if not bulk_tools.are_loaded():
            return None
        rows, hashes = bulk_tools.hash_message_keys(topics, unique_keys, keys)
    times = np.repeat([run.store_timestamp for run in runs], [run.rows for run in runs])
    return hashes, np.array(places, np.int64)[rows], times[rows]


def _hash_fixed_size_runs(runs: Sequence[FixedSizeRun]) -> HashedKeys | None:
    """Return the keys of batches; None if a batch has keys that must be searched for."""
    found: list[HashedKeys] = []
    # Batches of a topic with properties of the same width are processed together.
    for (topic, _), some in groupby(runs, lambda each: (each.queue[0], each.properties_width)):
        alike = list(some)
        if any(
            each.ending.count(_UNIQ_KEY_NAME) or each.ending.count(_KEYS_NAME) for each in alike
        ):
            return None
        rows = [each.rows for each in alike]
        hashes = hash_fixed_size(
            topic, b"".join(each.message_properties for each in alike), sum(rows)
        )
        if hashes is None:
            return None
        places = [
            np.arange(each.start_offset, each.end_offset, each.record_bytes) for each in alike
        ]
        times = np.repeat([each.store_timestamp for each in alike], rows)
        keyed = slice(len(hashes))  # all or none
        found.append((hashes, np.concatenate(places)[keyed], times[keyed]))
    all_hashes, all_places, all_times = map(np.concatenate, zip(*found, strict=True))
    return all_hashes, all_places, all_times


def hash_fixed_size(topic: str, text: bytes, count: int) -> IndexHashes | None:
    """Return the hash of the key of each message of a topic, or no hashes if none has a key.

    ``text`` has their properties, back to back and all of one width. None if the keys are not the
    first property, are not unique keys only, or are not ASCII.
    """
    named = text.count(_UNIQ_KEY_NAME)
    if text.count(_KEYS_NAME):
        return None
    if not named:
        return np.zeros(0, np.int32)
    width = len(text) // count
    name_at = text.find(_UNIQ_KEY_NAME)
    begin, start = max(name_at - len(_SEPARATOR), 0), name_at + len(_UNIQ_KEY_NAME)
    end = text.find(_SEPARATOR, start, width)
    if end < 0:
        end = width
    if named != count or not start < end or (name_at and not text.startswith(_SEPARATOR, begin)):
        return None
    rows = np.frombuffer(text, np.uint8).reshape(count, width)
    keys, around = rows[:, start:end], (rows[:, begin:start], rows[:, end : end + 1])
    if (
        any((columns != columns[0]).any() for columns in around)
        or keys.min() < _SEPARATORS_END
        or keys.max() >= _NOT_ASCII
    ):
        return None
    powers, scale = _powers(end - start)
    prefix = java_string_hash(topic + INDEX_KEY_SEPARATOR) * scale % _MODULUS
    return index_hashes(keys.astype(np.uint32) @ powers + np.uint32(prefix))


@lru_cache(maxsize=16)
def _powers(width: int) -> tuple[npt.NDArray[np.uint32], int]:
    """Return the weight of each character in a text of this width, and of the text before it."""
    before, *powers = (pow(31, exponent, _MODULUS) for exponent in range(width, -1, -1))
    return np.array(powers, np.uint32), before
