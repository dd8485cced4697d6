"""Checks of the records that a pull reads: each must be that of its entry, and of the queue.

Few are compared one by one, many by columns. This module must not know where they are read from.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rmq_spark.errors import RecordError
from rmq_spark.wire.framing import Buffer
from rocketpoll.broker.store import chunks
from rocketpoll.broker.store import lazy_numpy as np
from rocketpoll.broker.store.entry_check import WrongEntry, first_wrong, first_wrong_of_few
from rocketpoll.broker.store.picking import Numbers
from rocketpoll.broker.store.records.record_owner import RecordOwner

if TYPE_CHECKING:
    import numpy.typing as npt


def lie_in(numbers: Numbers, least: int, behind: int) -> bool:
    """Return whether all numbers are at least one and below another."""
    if isinstance(numbers, list):
        return least <= min(numbers) and max(numbers) < behind
    return bool(least <= numbers.min() and numbers.max() < behind)


def first_wrong_of(
    records: Sequence[Buffer], places: Numbers, sizes: Numbers, queue_offsets: range
) -> int | None:
    """Return the number of the first record that is not that of its entry, or None."""
    if isinstance(places, list) and isinstance(sizes, list):
        return first_wrong_of_few(records, places, sizes, queue_offsets)
    return first_wrong(
        records, np.asarray(places, np.int64), np.asarray(sizes, np.int64), queue_offsets
    )


def check_each(
    records: Sequence[Buffer],
    places: Numbers,
    sizes: Numbers,
    queue_offsets: range,
    owner: RecordOwner,
) -> None:
    """Compare each record with its entry, and with the queue that it must be of.

    Raises:
        WrongEntry: One of them is another.
    """
    foreign = first_wrong_of(records, places, sizes, queue_offsets)
    if foreign is None and isinstance(sizes, list):
        foreign = owner.first_foreign_of_few(records, sizes)
    elif foreign is None:
        foreign = owner.first_foreign(records, np.asarray(sizes, np.int64))
    if foreign is not None:
        raise WrongEntry(int(places[foreign]), foreign)


def first_unreadable(data: bytes, sizes: npt.NDArray[np.int64]) -> int:
    """Return the number of a chunk's first record that cannot be read at a right entry."""
    ends = np.cumsum(sizes)

    def fails(number: int) -> bool:
        try:
            chunks.RecordChunk(data[: ends[number]], sizes[: number + 1])
        except RecordError:
            return True
        return False

    return bisect_left(range(len(sizes) - 1), 1, key=fails)
