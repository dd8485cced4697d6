"""Chunks of records that are given by their positions in the log."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_spark.errors import RecordError
from rmq_spark.wire.chunk.record_locations import (
    RUN_BYTES_MIN,
    decode_located,
    encode_inline,
    encode_locations,
    has_long_runs,
)

sizes_and_gaps = st.lists(
    st.tuples(st.integers(RUN_BYTES_MIN, 1 << 20), st.sampled_from([0, 0, 0, 1, 5_000_000_000])),
    min_size=1,
    max_size=30,
)


@given(sizes_and_gaps, st.integers(0, 1 << 50))
def test_placed_chunk_positions_and_sizes_round_trip(pairs, place):
    places, sizes = [], []
    for size, gap in pairs:
        places.append(place)
        sizes.append(size)
        place += size + gap
    told = encode_locations(places, sizes)
    found = decode_located(told)
    assert found.physical_offsets.tolist() == places
    assert found.sizes.tolist() == sizes
    assert not found.records
    runs = 1 + sum(gap > 0 for _, gap in pairs[:-1])
    assert len(told) == 4 + 12 * runs + 4 + 4 * len(sizes)


def test_scattered_records_are_not_contiguous():
    small = [200] * 100
    together = np.cumsum(small) - 200
    assert has_long_runs(together, small)
    assert not has_long_runs(together * 2, small)
    assert not has_long_runs(together[:2], small[:2]), "files are not opened for a few bytes"


@given(st.lists(st.integers(0, (1 << 31) - 1), max_size=50), st.binary(max_size=50))
def test_placed_chunk_may_contain_the_records_themselves(sizes, records):
    found = decode_located(encode_inline(sizes) + records)
    assert found.physical_offsets is None
    assert found.sizes.tolist() == sizes
    assert bytes(found.records) == records


WHOLE = encode_locations([0, 100_000], [50_000, 50_000])
DAMAGED = {
    "nothing": b"",
    "half a count": b"\0\0",
    "more runs than there is": b"\0\0\0\7" + WHOLE[4:],
    "fewer than none": b"\xff\xff\xff\xff" + WHOLE[4:],
    "no sizes": WHOLE[:28],
    "a size less": WHOLE[:28] + b"\0\0\0\1" + WHOLE[32:36],
    "records behind": WHOLE + b"x",
    "a run of none": WHOLE[:12] + b"\0\0\0\0" + WHOLE[16:24] + b"\0\0\0\2" + WHOLE[28:],
    "a run of fewer": WHOLE[:12] + b"\xff\xff\xff\xff" + WHOLE[16:24] + b"\0\0\0\3" + WHOLE[28:],
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_inconsistent_located_records_are_refused(kind):
    with pytest.raises(RecordError):
        decode_located(DAMAGED[kind])
