"""Writes that the index takes from memory, and those that it reads from the log."""

from functools import cache

import numpy as np
import pytest

from rocketpoll.broker.store.records.recent_writes import (
    ColumnRun,
    RecentRecord,
    RecentRun,
    UnindexedRuns,
)

SIZE = 10


@cache  # the same object each time, because arrays cannot be compared as a whole
def rows_at(start, rows):
    places = start + np.arange(rows) * SIZE
    sizes, lengths = np.full(rows, SIZE), np.zeros(rows, np.int64)
    return ColumnRun(("T", 0), 0, places, sizes, b"", lengths, 5)


@pytest.fixture
def batches():
    """Return runs of 200 messages, 50 after a gap, and 300 after another gap."""
    kept = UnindexedRuns()
    kept.add([rows_at(0, 100), rows_at(1_000, 100)])
    kept.add([rows_at(2_500, 50), rows_at(3_500, 300)])
    return kept


def test_adjacent_recent_batches_are_indexed_together(batches):
    assert batches.next_contiguous(0, 9_999) == [rows_at(0, 100), rows_at(1_000, 100)]
    assert batches.next_contiguous(1_000, 9_999) == [rows_at(3_500, 300)]


def test_small_unindexed_run_among_others_is_read_with_them(batches):
    assert batches.next_contiguous(2_000, 9_999) == [rows_at(3_500, 300)]
    assert batches.next_contiguous(6_500, 9_999) == ()


def test_few_unindexed_rows_at_the_end_are_returned(batches):
    assert batches.next_contiguous(2_000, 3_000) == [rows_at(2_500, 50)]


def test_unindexed_recent_batches_stay(batches):
    assert batches.next_contiguous(3_500, 6_499) == ()
    assert batches.next_contiguous(3_500, 6_500) == [rows_at(3_500, 300)]


def test_recent_batches_without_keys_are_forgotten(batches):
    batches.discard(batches.next_contiguous(0, 9_999))
    assert batches.next_contiguous(0, 9_999) == [rows_at(3_500, 300)]


def test_adjacent_recent_messages_and_batches_are_indexed_together():
    records = [RecentRecord(("T", 0), n, 1_000 + n * SIZE, SIZE, b"") for n in range(100)]
    singles = [RecentRun([each], 5, each.physical_offset + SIZE) for each in records]
    kept = UnindexedRuns()
    kept.add([rows_at(0, 100), *singles, rows_at(2_000, 100)])
    assert kept.next_contiguous(0, 3_000) == [rows_at(0, 100), *singles, rows_at(2_000, 100)]


def test_index_step_is_limited_to_about_a_thousand_messages():
    kept = UnindexedRuns()
    kept.add(rows_at(start, 100) for start in range(0, 40_000, 1_000))
    assert len(kept.next_contiguous(0, 40_000)) == 11


def test_contiguous_unindexed_runs_end_at_the_first_gap():
    kept = UnindexedRuns()
    kept.add([rows_at(0, 200), rows_at(2_000, 200)])
    assert kept.next_contiguous(0, 3_999) == [rows_at(0, 200)]
    assert kept.next_contiguous(0, 4_000) == [rows_at(0, 200), rows_at(2_000, 200)]


def test_partially_indexed_batch_is_not_returned_again():
    kept = UnindexedRuns()
    kept.add([rows_at(0, 200), rows_at(2_000, 200)])
    assert kept.next_contiguous(10, 9_999) == [rows_at(2_000, 200)]
