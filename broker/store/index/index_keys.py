"""Index keys: the hashes of the keys of log records, with the records' places and times.

    a few records       one by one                                 `hash_records`
    a chunk             as columns, which are searched once        `KeyedChunk`, `hash_columns`
    recent writes       from the memory of their writer            `hash_runs`

The index takes a limited number of keys of a chunk in each step, so that a step takes little time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, cast

from rmq_spark.wire.codes import MessageSysFlag
from rmq_spark.wire.message.properties import (
    KEY_SEPARATOR,
    KEYS,
    NAME_VALUE_SEPARATOR,
    PROPERTY_SEPARATOR,
    UNIQ_KEY,
    java_string_hash,
)
from rmq_spark.wire.remoting.framing import Buffer

from ..bulk import bulk_tools
from ..bulk import lazy_numpy as np
from ..bulk.index_hash import (
    INDEX_KEY_SEPARATOR,
    IndexHashes,
    hash_keys,
    index_hashes,
)
from ..records.fields import PropertySearch, pattern_of, property_of, read_fields
from ..records.recent_writes import ColumnRun, RecentRun
from ..results import PhysicalOffset

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

    from rmq_spark.wire.chunk import RecordChunk
    from rmq_spark.wire.chunk.buffer_slices import Positions

HashedKeys: TypeAlias = "tuple[IndexHashes, Positions, Positions]"
"""Hashes of keys in log order, and the positions and store times of their messages."""

_PROPERTY_BYTES_MAX = 1 << 20
"""Bytes of properties indexed at a time, in some milliseconds; one message may have more."""
_LONG_PROPERTY_BYTES_MAX = 1 << 18
"""A chunk with more bytes than the maximum is cut to this size, because words that do not fit into
a step are examined again in the next one."""

_UNIQ_KEY, _KEYS = pattern_of(UNIQ_KEY), pattern_of(KEYS)
_TRANSACTION = MessageSysFlag.TRANSACTION_MASK.value
_ROLLBACK = MessageSysFlag.TRANSACTION_ROLLBACK.value

_Message: TypeAlias = "tuple[str, PhysicalOffset, int, bytes]"
"""The topic, the place, the store time and the properties of a message."""


def hash_records(data: Buffer, sizes: Sequence[int], start: PhysicalOffset) -> HashedKeys:
    """Return the keys of a few contiguous records from a log offset on."""
    messages: list[_Message] = []
    position = 0
    for size in sizes:
        topic, _, _, sys_flag, store_timestamp, properties = read_fields(data, position, size)
        if sys_flag & _TRANSACTION != _ROLLBACK:
            name = topic.decode("utf-8", "replace")
            messages.append((name, start + position, store_timestamp, properties))
        position += size
    return _hash_each(messages)


def _hash_each(messages: Iterable[_Message]) -> HashedKeys:
    hashes: list[int] = []
    positions: list[int] = []
    times: list[int] = []
    for topic, position, store_timestamp, properties in messages:
        own = _hash_one(topic, properties)
        hashes += own
        positions += [position] * len(own)
        times += [store_timestamp] * len(own)
    return np.array(hashes, np.int32), np.array(positions, np.int64), np.array(times, np.int64)


def _hash_one(topic: str, properties: bytes) -> list[int]:
    texts = (_text(property_of(properties, name)) for name in (_UNIQ_KEY, _KEYS))
    return hash_keys(topic, *texts)


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "replace")


class KeyColumns(NamedTuple):
    """The fields of messages that the index needs, in log order."""

    topics: pa.StringArray | str
    """The topic of each message, or of all."""
    unique_keys: pa.StringArray
    """The UNIQ_KEY of each message, or null."""
    keys: pa.StringArray
    """The KEYS of each message, words separated by spaces, or null."""
    physical_offsets: Positions
    store_timestamps: npt.NDArray[np.int64]
    sys_flags: npt.NDArray[np.int32]
    """The sysFlag of each message; rolled-back messages have no keys."""

    def rows(self, first: int, end: int) -> KeyColumns:
        """Return the columns of some of the messages."""
        topics, *others = self
        some = topics if isinstance(topics, str) else topics[first:end]
        return KeyColumns(some, *(each[first:end] for each in others))


def key_columns(chunk: RecordChunk, start: PhysicalOffset, topic: str | None = None) -> KeyColumns:
    """Return the columns of many contiguous records from a log offset on."""
    times = bulk_tools.COLUMNS["storeTimestamp"].build(chunk).view("int64")
    return KeyColumns(
        topic or bulk_tools.COLUMNS["topic"].build(chunk),
        chunk.properties.values(UNIQ_KEY),
        bulk_tools.COLUMNS["keys"].build(chunk),
        chunk.starts + start,
        times.to_numpy(),
        chunk.sys_flag,
    )


def hash_columns(columns: KeyColumns) -> HashedKeys:
    """Return the keys of messages, from their columns."""
    topics, unique_keys, keys, positions, times, sys_flags = columns
    rows, hashes = bulk_tools.hash_index_keys(topics, unique_keys, keys)
    kept = np.flatnonzero(sys_flags[rows] & _TRANSACTION != _ROLLBACK)
    rows = rows[kept]
    return hashes[kept], positions[rows], times[rows]


class KeyedChunk:
    """Many contiguous records, which the index processes in steps."""

    def __init__(self, chunk: RecordChunk, start: PhysicalOffset, topic: str | None = None) -> None:
        """Start with the first record, at log offset ``start``.

        Of a chunk with long properties, only the first records are used. ``topic`` is the topic of
        all records, if it is known.
        """
        self._chunk = _with_few_properties(chunk)
        self._start = start
        self._topic = topic
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
        return hash_columns(self._columns.rows(first, self._row))

    @cached_property
    def _columns(self) -> KeyColumns:
        return key_columns(self._chunk, self._start, self._topic)

    @cached_property
    def _keys_before(self) -> Positions:
        return bulk_tools.keys_before(self._columns.unique_keys, self._columns.keys)


def _with_few_properties(chunk: RecordChunk) -> RecordChunk:
    """Cut a chunk with long properties to its first records, before the properties are read."""
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

_FEW_MAX = 16
"""Up to this number of messages, loops cost less than columns."""

_KEYS_MAX = 8_192
"""Keys of one step; if recent writes have more, the log is read instead, some keys at a time."""


def hash_runs(runs: Sequence[RecentRun | ColumnRun]) -> HashedKeys | None:
    """Return the keys of one or more recent writes in log order, or None to read them from the log.

    None means that they are too many for one step, or that the bulk tools are not loaded yet.
    """
    if all(isinstance(run, ColumnRun) for run in runs):
        found = _hash_uniform_runs(cast("Sequence[ColumnRun]", runs))
        if found is not None:
            return found
    elif sum([run.rows for run in runs]) <= _FEW_MAX and all(
        isinstance(run, RecentRun) for run in runs
    ):
        return _hash_few(cast("Sequence[RecentRun]", runs))
    texts: list[bytes] = []
    lengths: list[npt.ArrayLike] = []
    positions: list[npt.ArrayLike] = []
    prefixes: list[npt.ArrayLike] = []
    for is_columns, some in groupby(runs, lambda each: isinstance(each, ColumnRun)):
        if is_columns:
            for run in cast("Iterable[ColumnRun]", some):
                texts.append(run.properties)
                lengths.append(np.full(run.rows, run.properties_lengths))
                positions.append(run.positions)
                prefixes.append([_prefix_hash(run.queue[0])] * run.rows)
        else:
            records = [each for run in cast("Iterable[RecentRun]", some) for each in run.records]
            own = [each[4] for each in records]  # access by name takes twice as long
            texts += own
            lengths.append([*map(len, own)])
            positions.append([each[2] for each in records])
            prefixes.append([_prefix_hash(each[0][0]) for each in records])
    if sum(map(len, texts)) > _PROPERTY_BYTES_MAX or not bulk_tools.are_loaded():
        return None
    columns = PropertySearch(texts, np.concatenate(lengths))
    unique_rows, *unique_bounds = columns.find(_UNIQ_KEY)
    words = _words_of(columns, *columns.find(_KEYS))
    rows = np.concatenate((unique_rows, words[0]))
    if len(rows) > _KEYS_MAX:
        return None
    starts, stops = map(np.concatenate, zip(unique_bounds, words[1:], strict=True))
    of_keys = bulk_tools.hash_slices(columns.data, starts, stops)
    hashes = index_hashes(of_keys.with_prefixes(np.concatenate(prefixes).astype(np.uint32)[rows]))
    in_order = np.argsort(rows, kind="stable")
    rows = rows[in_order]
    times = np.repeat([run.store_timestamp for run in runs], [run.rows for run in runs])
    return hashes[in_order], np.concatenate(positions)[rows], times[rows]


def _hash_uniform_runs(runs: Sequence[ColumnRun]) -> HashedKeys | None:
    """Return the keys of batches if the properties of all messages have one width, else None.

    Java clients send such batches. This takes a third of the time of a search in the properties.
    """
    if not all(isinstance(run.properties_lengths, int) for run in runs):
        return None
    found: list[HashedKeys] = []
    for (topic, _), same_layout in groupby(
        runs, lambda run: (run.queue[0], run.properties_lengths)
    ):
        some = [*same_layout]
        rows = [run.rows for run in some]
        hashes = hash_fixed_size(topic, b"".join([run.properties for run in some]), sum(rows))
        if hashes is None:
            return None
        if len(hashes):  # all messages have a key
            times = np.repeat([run.store_timestamp for run in some], rows)
            found.append((hashes, np.concatenate([run.positions for run in some]), times))
    if not found:
        return np.zeros(0, np.int32), np.zeros(0, np.int64), np.zeros(0, np.int64)
    all_hashes, all_places, all_times = map(np.concatenate, zip(*found, strict=True))
    return all_hashes, all_places, all_times


def hash_fixed_size(topic: str, text: bytes, count: int) -> IndexHashes | None:
    """Return the hash of the key of each message of a topic, or no hashes if none has a key.

    ``text`` has the properties of all messages, back to back and of one width. Return None if a
    message has KEYS, or if the unique keys are not at the same place in all, or are not ASCII.
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
    """Return the weights of the characters of a text of this width, and of the text before it."""
    before, *powers = (pow(31, exponent, _MODULUS) for exponent in range(width, -1, -1))
    return np.array(powers, np.uint32), before


def _hash_few(runs: Sequence[RecentRun]) -> HashedKeys | None:
    keys = _hash_each(
        (queue[0], position, run.store_timestamp, properties)
        for run in runs
        for queue, _, position, _, properties in run.records
    )
    return keys if len(keys[0]) <= _KEYS_MAX else None


def _words_of(
    columns: PropertySearch, rows: Positions, starts: Positions, stops: Positions
) -> tuple[Positions, Positions, Positions]:
    """Split values at spaces; return rows and bounds of words, as `PropertySearch.find` does."""
    spaces = np.flatnonzero(columns.data == ord(KEY_SEPARATOR))
    before = starts.searchsorted(spaces, "right") - 1
    within = np.flatnonzero(before >= 0)
    within = within[spaces[within] < stops[before[within]]]
    if not len(within):
        return rows, starts, stops
    spaces, rows = spaces[within], np.concatenate((rows, rows[before[within]]))
    starts, stops = np.concatenate((starts, spaces + 1)), np.concatenate((spaces, stops))
    starts.sort()
    stops.sort()
    rows.sort()
    is_word = starts < stops
    return rows[is_word], starts[is_word], stops[is_word]


@lru_cache(maxsize=1024)
def _prefix_hash(topic: str) -> int:
    """Return the unsigned Java hash of a topic and the separator that precedes each key."""
    return java_string_hash(topic + INDEX_KEY_SEPARATOR) % _MODULUS
