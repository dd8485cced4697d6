"""Index hash: the hash of one message key in the index; `java_hash` hashes many.

    topic # key

A key is a UNIQ_KEY, or one word of KEYS.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from rmq_spark.wire.message.properties import KEY_SEPARATOR, java_string_hash

from . import lazy_numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

IndexHashes: TypeAlias = "npt.NDArray[np.int32]"

INDEX_KEY_SEPARATOR = "#"

_INT_END = 1 << 31


def index_hash(text: str) -> int:
    """Return the hash of a text in the index files, which is never negative."""
    value = abs(java_string_hash(text))
    return value if value < _INT_END else 0


def index_hashes(values: npt.NDArray[np.uint32]) -> IndexHashes:
    """Return the index hashes for the unsigned Java hashes of texts."""
    # like Java's, this abs() leaves the smallest number negative
    return np.maximum(np.abs(values.view(np.int32)), 0)


def hash_keys(topic: str, unique_key: str | None, keys: str | None) -> list[int]:
    """Return the hashes of a message's unique key, if it has one, and of each word of its keys."""
    prefix = topic + INDEX_KEY_SEPARATOR
    hashes = (
        [index_hash(prefix + word) for word in keys.split(KEY_SEPARATOR) if word] if keys else []
    )
    return hashes if unique_key is None else [index_hash(prefix + unique_key), *hashes]
