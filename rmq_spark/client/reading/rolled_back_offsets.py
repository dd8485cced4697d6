"""Rolled-back offsets: tells gaps that a failed batch left in a queue from lost messages.

If our broker cannot commit a batch, it rolls it back. If others sent to its queues meanwhile,
offsets remain that no message has. The queue's entries say so, even where a RocketMQ broker serves
them now. They are fetched only when a reader meets such a gap.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from rmq_spark.client.api.broker_api import BrokerApi
from rmq_spark.client.errors import BrokerRefused
from rmq_spark.wire.blank_entries import BLANK_SIZE, ROLLED_BACK
from rmq_spark.wire.message_queue import MessageQueue

# ---- Offsets that an answer leaves out, although nobody has asked for fewer.


def missing_ranges(offsets: Iterable[int], start: int, end: int) -> list[tuple[int, int]]:
    """Return the ranges between two offsets, end exclusive, that contain none of these."""
    found = []
    at = start
    for offset in (*offsets, end):
        if offset > at:
            found.append((at, offset))
        at = offset + 1
    return found


_ENTRIES_MAX: Final = 256
"""As many as a broker of ours lists in an answer."""


def without_rolled_back(
    api: BrokerApi, address: str, queue: MessageQueue, ranges: Iterable[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Return ranges of offsets without the rolled-back ones.

    The check stops after the first lost offset, because a compacted topic has thousands of gaps.
    """
    lost: list[tuple[int, int]] = []
    for start, end in ranges:
        told = () if lost else _query_rollbacks(api, address, queue, start, end)
        taken_back = (offset for offset, is_taken_back in told if is_taken_back)
        lost += missing_ranges(taken_back, start, end)
    return lost


def first_not_rolled_back(
    api: BrokerApi, address: str, queue: MessageQueue, start: int, end: int
) -> int:
    """Return the first offset between two that was not rolled back; ``end`` if all were."""
    at = start
    for offset, is_taken_back in _query_rollbacks(api, address, queue, start, end):
        if not is_taken_back:
            return offset
        at = offset + 1
    return at


def _query_rollbacks(
    api: BrokerApi, address: str, queue: MessageQueue, start: int, end: int
) -> Iterator[tuple[int, bool]]:
    """Yield offsets, and whether they were taken back, as far as the broker tells."""
    while start < end:
        try:
            found = api.admin.queue_entries(address, queue, start, min(end - start, _ENTRIES_MAX))
        except BrokerRefused:  # it has no entries, or does not tell: nothing speaks for these
            return
        marks = [
            entry.physic_size == BLANK_SIZE and entry.tags_code == ROLLED_BACK
            for entry in found.queue_data
        ]
        if not marks or (start < found.min_queue_index and not marks[0]):  # they begin elsewhere
            return
        yield from enumerate(marks[: end - start], start)
        start += len(marks)
