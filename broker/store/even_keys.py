r"""EvenKeys: the index's keys of even batches that were just written, by columns and from memory.

    UNIQ_KEY\x01|7F0001..|\x02WAIT\x01true      a row for each message, ended or not by \x02
    UNIQ_KEY\x01|7F0001..|\x02WAIT\x01true
                |- key --|

    hash of "topic#key" = hash of "topic#" * 31^w + c0 * 31^(w-1) + .. + cw-1        modulo 2^32

To read them back from the log takes a third of what a batch costs. The messages of one producer
have their unique keys in the same columns, and mostly no others. That it is so is looked at, column
by column, and never assumed: what is not exactly so is for `keyed_messages` and `java_hash`, which
say the same of such rows in ten times the time.

No file is known here. numpy has to be loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING

from rmq_spark.wire.properties import KEYS, NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR, UNIQ_KEY
from rmq_spark.wire.tags import java_string_hash
from rocketpoll.broker.store import lazy_numpy as np
from rocketpoll.broker.store.fresh_records import FreshRows
from rocketpoll.broker.store.index_key import INDEX_KEY_SEPARATOR, IndexHashes, index_hashes

if TYPE_CHECKING:
    import numpy.typing as npt

    from rocketpoll.broker.store.index_service import Keys

_SEPARATOR = PROPERTY_SEPARATOR.encode()
_UNIQ_KEY = f"{UNIQ_KEY}{NAME_VALUE_SEPARATOR}".encode()
_KEYS = f"{KEYS}{NAME_VALUE_SEPARATOR}".encode()
_SEPARATORS_END = 3
_NOT_ASCII = 0x80
_MODULUS = 1 << 32


def keys_of_rows(batches: Sequence[FreshRows]) -> Keys | None:
    """Return the keys of batches, at least one, in the order of the log.

    None if any has keys that have to be looked for.
    """
    found: list[Keys] = []
    for (topic, _), some in groupby(batches, _shape_of):
        alike = list(some)
        if any(each.ending.count(_UNIQ_KEY) or each.ending.count(_KEYS) for each in alike):
            return None
        rows = [each.rows for each in alike]
        hashes = hash_even(topic, b"".join(each.own for each in alike), sum(rows))
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


def _shape_of(batch: FreshRows) -> tuple[str, int]:
    """Return what batches have in common that are looked at together."""
    return batch.queue[0], len(batch.own) // batch.rows


def hash_even(topic: str, text: bytes, count: int) -> IndexHashes | None:
    """Return the hash of the key of each of some messages of a topic, or none if none has a key.

    ``text`` has their properties, back to back and all of one width. None if they have keys in
    other places than the first, or other keys than the unique one, or others than ASCII.
    """
    named = text.count(_UNIQ_KEY)
    if text.count(_KEYS):
        return None
    if not named:
        return np.zeros(0, np.int32)
    width = len(text) // count
    name_at = text.find(_UNIQ_KEY)
    begin, start = max(name_at - len(_SEPARATOR), 0), name_at + len(_UNIQ_KEY)
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
    """Return what each of so many characters counts for, and what stands before them."""
    before, *powers = (pow(31, exponent, _MODULUS) for exponent in range(width, -1, -1))
    return np.array(powers, np.uint32), before
