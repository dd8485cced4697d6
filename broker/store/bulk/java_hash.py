"""Java hash: ``String.hashCode`` of many texts at once, and index hashes made from it.

The hash of a text is a polynomial in 31 over its UTF-16 code units, modulo 2^32. Because 31 is odd,
division by it is possible as well: weigh each byte of a buffer by a falling power of 31 and sum up
from the left; then the hash of any piece is the difference of two sums times one power. This holds
for ASCII, where a byte is a code unit; the few other pieces go through `java_string_hash`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmq_spark.wire.chunk.buffer_slices import Bytes, Positions, offsets_of
from rmq_spark.wire.message.properties import java_string_hash

from .index_hash import INDEX_KEY_SEPARATOR, IndexHashes, index_hashes

Words: TypeAlias = npt.NDArray[np.uint32]

_BASE = 31
_MODULUS = 1 << 32
_BASE_INVERSE = pow(_BASE, -1, _MODULUS)
_POWERS_BITS_MIN = 16
_SPACE = ord(" ")  # `MessageConst.KEY_SEPARATOR`
_NOT_ASCII = 0x80


class Hashes(NamedTuple):
    """Hashes of texts, each with 31 to the power of its length, so that prefixes can be added."""

    values: Words
    scales: Words

    def with_prefixes(self, values: Words) -> Words:
        """Return the hashes of prefix + text; ``values`` are the hashes of the prefixes."""
        return values * self.scales + self.values


def keys_before(unique_keys: pa.StringArray, keys: pa.StringArray) -> Positions:
    """Return the maximum number of keys before each row; the last number is that of all rows."""
    before = np.zeros(len(keys) + 1, np.int64)
    if keys.null_count == unique_keys.null_count == len(keys):
        return before
    words = pc.add(pc.count_substring(keys, pattern=" "), 1).fill_null(0)
    np.cumsum(words.to_numpy(zero_copy_only=False) + _valid_rows(unique_keys), out=before[1:])
    return before


def hash_index_keys(
    topics: pa.StringArray | str, unique_keys: pa.StringArray, keys: pa.StringArray
) -> tuple[Positions, IndexHashes]:
    """Return index hashes of ``topic#key`` for each row's unique key, then each word of its keys.

    ``topics`` has a topic for each row, or is the topic of all. The result is the row of each hash,
    in order, and the hashes.
    """
    if keys.null_count == unique_keys.null_count == len(keys):
        return np.zeros(0, np.int64), np.zeros(0, np.int32)
    if isinstance(topics, str):
        topics = pa.array([topics], pa.string())
    prefixes = hash_texts(topics).values * _BASE + ord(INDEX_KEY_SEPARATOR)
    rows, hashes = hash_words(keys)
    if unique_keys.null_count < len(unique_keys):
        unique_rows = np.flatnonzero(_valid_rows(unique_keys))
        unique = Hashes(*(part[unique_rows] for part in hash_texts(unique_keys)))
        rows = np.concatenate((unique_rows, rows))
        in_order = np.argsort(rows, kind="stable")
        rows = rows[in_order]
        hashes = Hashes(
            *(np.concatenate(parts)[in_order] for parts in zip(unique, hashes, strict=True))
        )
    of_rows = prefixes if len(prefixes) == 1 else prefixes[rows]
    return rows, index_hashes(hashes.with_prefixes(of_rows))


def hash_texts(texts: pa.StringArray) -> Hashes:
    """Return the hashes of the texts; the hash of a null is undefined."""
    text, offsets = _text_of(texts)
    return hash_pieces(text, offsets[:-1], offsets[1:])


def hash_slices(text: Bytes, starts: Positions, ends: Positions) -> Hashes:
    """Return the hashes of pieces that are a small part of a UTF-8 text.

    If they are most of the text, `hash_pieces` is faster.
    """
    lengths = ends - starts
    new_ends = np.cumsum(lengths)
    new_starts = new_ends - lengths
    positions = np.arange(lengths.sum()) + np.repeat(starts - new_starts, lengths)
    return hash_pieces(text[positions], new_starts, new_ends)


def hash_words(texts: pa.StringArray) -> tuple[Positions, Hashes]:
    """Return the rows of the words between spaces, in order, and the hashes of the words."""
    if texts.null_count == len(texts):
        return np.zeros(0, np.int64), Hashes(np.zeros(0, np.uint32), np.zeros(0, np.uint32))
    text, offsets = _text_of(texts)
    is_word = text != _SPACE
    if is_word.all():
        rows = np.flatnonzero(offsets[1:] > offsets[:-1])
        starts, ends = offsets[:-1][rows], offsets[1:][rows]
    else:
        starts, ends = _word_bounds(is_word, offsets)
        rows = np.searchsorted(offsets, starts, "right") - 1
    if texts.null_count:
        kept = _valid_rows(texts)[rows]
        rows, starts, ends = rows[kept], starts[kept], ends[kept]
    return rows, hash_pieces(text, starts, ends)


def hash_pieces(text: Bytes, starts: Positions, ends: Positions) -> Hashes:
    """Return the hashes of pieces of one UTF-8 text."""
    powers, inverse_powers = _powers(max(len(text).bit_length(), _POWERS_BITS_MIN))
    sums = np.zeros(len(text) + 1, np.uint32)
    np.cumsum(text * inverse_powers[: len(text)], dtype=np.uint32, out=sums[1:])
    # an empty piece at the very start gets the last power, but its sum is 0
    values = (sums[ends] - sums[starts]) * powers[ends - 1]
    hashes = Hashes(values, powers[ends - starts])
    if len(text) and text.max() >= _NOT_ASCII:
        _hash_one_by_one(text, starts, ends, hashes)
    return hashes


def _hash_one_by_one(text: Bytes, starts: Positions, ends: Positions, hashes: Hashes) -> None:
    """Correct the hashes of the pieces that are not ASCII."""
    foreign_bytes = np.concatenate(([0], np.cumsum(text >= _NOT_ASCII)))
    for row in np.flatnonzero(foreign_bytes[ends] > foreign_bytes[starts]).tolist():
        piece = text[starts[row] : ends[row]].tobytes().decode("utf-8", "replace")
        hashes.values[row] = java_string_hash(piece) % _MODULUS
        hashes.scales[row] = pow(_BASE, len(piece.encode("utf-16-le")) // 2, _MODULUS)


def _word_bounds(is_word: npt.NDArray[np.bool_], offsets: Positions) -> tuple[Positions, Positions]:
    """Return the starts and ends of words, which are bounded by spaces or the ends of texts."""
    begins, finishes = is_word.copy(), is_word.copy()
    begins[1:] &= ~is_word[:-1]
    finishes[:-1] &= ~is_word[1:]
    first_bytes = offsets[:-1][offsets[:-1] < offsets[1:]]
    last_bytes = offsets[1:][offsets[:-1] < offsets[1:]] - 1
    begins[first_bytes] = is_word[first_bytes]
    finishes[last_bytes] = is_word[last_bytes]
    return np.flatnonzero(begins), np.flatnonzero(finishes) + 1


def _valid_rows(texts: pa.StringArray) -> npt.NDArray[np.bool_]:
    valid: npt.NDArray[np.bool_] = texts.is_valid().to_numpy(zero_copy_only=False)
    return valid


def _text_of(texts: pa.StringArray) -> tuple[Bytes, Positions]:
    """Return the bytes of all texts, and the bounds of each text in them."""
    if not len(texts):
        return np.zeros(0, np.uint8), np.zeros(1, np.int64)
    offsets = offsets_of(texts).astype(np.int64)
    data = texts.buffers()[2]
    text = np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    return text[offsets[0] : offsets[-1]], offsets - offsets[0]


@lru_cache(maxsize=4)
def _powers(bits: int) -> tuple[Words, Words]:
    """Return the first 2^bits powers of 31, and of its inverse."""
    bases = np.full((2, 1 << bits), [[_BASE], [_BASE_INVERSE]], np.uint32)
    bases[:, 0] = 1
    powers, inverse_powers = np.cumprod(bases, axis=1, dtype=np.uint32)
    powers.flags.writeable = inverse_powers.flags.writeable = False
    return powers, inverse_powers
