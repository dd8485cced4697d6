"""CRCs put together of those of parts are those that zlib finds for the whole."""

from zlib import crc32

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_spark.wire.chunk.crc import crcs_of_alike, joined


def crcs(texts):
    return np.array([crc32(text) for text in texts], np.uint32)


@given(st.lists(st.tuples(st.binary(max_size=40), st.binary(max_size=300)), max_size=8))
def test_the_crc_of_two_parts_needs_only_their_crcs_and_the_length_of_the_second(pairs):
    before, behind = [first for first, _ in pairs], [second for _, second in pairs]
    lengths = np.array([len(second) for second in behind], np.int64)
    found = joined(crcs(before), crcs(behind), lengths)
    assert found.tolist() == [crc32(first + second) for first, second in pairs]


@pytest.mark.parametrize("lengths", [[0, 0], [1, 1], [100, 100], [0, 7], [4_194_304, 3], [65_535, 65_536]])
def test_parts_of_any_length_can_stand_behind(lengths):
    before = crcs([b"head", b"other"])
    behind = [b"x" * length for length in lengths]
    found = joined(before, crcs(behind), np.array(lengths))
    assert found.tolist() == [crc32(b"head" + behind[0]), crc32(b"other" + behind[1])]


@given(st.integers(1, 120), st.integers(0, 6), st.data())
def test_strings_of_one_length_have_their_crcs_wherever_they_differ(width, count, data):
    strings = data.draw(st.lists(st.binary(min_size=width, max_size=width), min_size=count, max_size=count))
    rows = np.frombuffer(b"".join(strings), np.uint8).reshape(-1, width)
    assert crcs_of_alike(rows).tolist() == [crc32(each) for each in strings]
