"""CRCs of many strings, and those combined from parts, equal zlib's CRC of the whole."""

from random import Random
from zlib import crc32

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_spark.wire.chunk.crc import combine_crcs, crcs_of_strings


@given(st.binary(max_size=40), st.binary(max_size=300))
def test_crc_of_two_parts_is_combined_from_crcs_and_second_length(first, second):
    assert combine_crcs(crc32(first), crc32(second), len(second)) == crc32(first + second)


@pytest.mark.parametrize("length", [0, 1, 7, 100, 65_535, 65_536, 4_194_304])
def test_crcs_of_parts_of_any_length_are_combined(length):
    second = b"x" * length
    assert combine_crcs(crc32(b"head"), crc32(second), length) == crc32(b"head" + second)
    assert combine_crcs(0, crc32(second), length) == crc32(second)


def of_strings(texts):
    """The CRCs of these strings, which lie in one buffer with a byte around each."""
    data = b"|" + b"|".join(texts)
    lengths = np.array([len(text) for text in texts], np.int64)
    starts = 1 + np.cumsum(lengths + 1) - (lengths + 1)
    return crcs_of_strings(np.frombuffer(data, np.uint8), starts, lengths).tolist()


@given(st.lists(st.binary(max_size=60), max_size=12))
def test_strings_have_their_crcs_whatever_their_lengths(texts):
    assert of_strings(texts) == [crc32(text) for text in texts]


@pytest.mark.parametrize("count", [1, 2, 511, 512, 513])
@pytest.mark.parametrize("width", [1, 100, 479, 480])
def test_strings_of_one_length_have_their_crcs(count, width):
    random = Random(count * width)
    texts = [random.randbytes(width) for _ in range(count)]
    assert of_strings(texts) == [crc32(text) for text in texts]
