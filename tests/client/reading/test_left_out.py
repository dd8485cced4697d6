"""Which offsets of a span a read has left out."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from rmq_spark.client.reading.readable_chunks import missing_ranges


@given(st.sets(st.integers(3, 40)), st.integers(0, 3), st.integers(41, 50))
def test_offsets_and_missing_ranges_cover_the_span(offsets, start, end):
    ranges = missing_ranges(sorted(offsets), start, end)
    missing = [offset for first, last in ranges for offset in range(first, last)]
    assert sorted([*offsets, *missing]) == list(range(start, end))
    assert all(first < last for first, last in ranges)
    assert all(last < first for (_, last), (first, _) in itertools.pairwise(ranges))
