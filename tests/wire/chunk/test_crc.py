"""CRCs combined from parts equal zlib's CRC of the whole."""

from random import Random
from zlib import crc32

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_spark.wire.chunk.crc import combine_crcs, crcs_of_slices, crcs_of_strings


def crcs(texts):
    return np.array([crc32(text) for text in texts], np.uint32)


@given(st.lists(st.tuples(st.binary(max_size=40), st.binary(max_size=300)), max_size=8))
def test_crc_of_two_parts_is_combined_from_crcs_and_second_length(pairs):
    before, behind = [first for first, _ in pairs], [second for _, second in pairs]
    lengths = np.array([len(second) for second in behind], np.int64)
    found = combine_crcs(crcs(before), crcs(behind), lengths)
    assert found.tolist() == [crc32(first + second) for first, second in pairs]


@pytest.mark.parametrize(
    "lengths", [[0, 0], [1, 1], [100, 100], [0, 7], [4_194_304, 3], [65_535, 65_536]]
)
def test_crcs_of_parts_of_any_length_are_combined(lengths):
    before = crcs([b"head", b"other"])
    behind = [b"x" * length for length in lengths]
    found = combine_crcs(before, crcs(behind), np.array(lengths))
    assert found.tolist() == [crc32(b"head" + behind[0]), crc32(b"other" + behind[1])]


def of_pieces(texts, data=b"before"):
    """The CRCs of these pieces, with something around each."""
    starts = []
    for text in texts:
        starts.append(len(data))
        data += text + b"|"
    lengths = np.array([len(text) for text in texts], np.int64)
    return crcs_of_slices(
        np.frombuffer(data, np.uint8), np.array(starts, np.int64), lengths
    ).tolist()


@given(st.lists(st.binary(max_size=120), max_size=12))
def test_pieces_have_their_crcs_whatever_their_lengths(texts):
    assert of_pieces(texts) == [crc32(text) for text in texts]


@given(st.integers(1, 90), st.integers(0, 90), st.integers(0, 1 << 32))
def test_pieces_of_one_length_have_their_crcs_wherever_they_differ(width, places, seed):
    random = Random(seed)
    first = random.randbytes(width)
    texts = []
    for _ in range(50):
        text = bytearray(first)
        for place in random.choices(range(width), k=places):
            text[place] = random.randrange(256)
        texts.append(bytes(text))
    texts.insert(7, first + b"longer")
    assert of_pieces(texts) == [crc32(text) for text in texts]


def of_strings(texts):
    """The CRCs of these strings, which lie in one buffer with a byte around each."""
    data = b"|" + b"|".join(texts)
    lengths = np.array([len(text) for text in texts], np.int64)
    starts = 1 + np.cumsum(lengths + 1) - (lengths + 1)
    return crcs_of_strings(np.frombuffer(data, np.uint8), starts, lengths).tolist()


@given(st.lists(st.binary(max_size=60), max_size=12))
def test_strings_have_their_crcs_whatever_their_lengths(texts):
    assert of_strings(texts) == [crc32(text) for text in texts]


@pytest.mark.parametrize("count", [1, 31, 32, 33, 100])
@pytest.mark.parametrize("width", [1, 100])
@pytest.mark.parametrize("alike", ["all", "the first", "none", "but at both ends"])
def test_strings_of_one_length_have_their_crcs(count, width, alike):
    """Those that are alike are reckoned together, unless it turns out that later ones are not."""
    random = Random(count * width)
    form = random.randbytes(width)
    texts = []
    for number in range(count):
        text = bytearray(form)
        if alike == "none" or (alike == "the first" and number >= 40):
            text[:] = random.randbytes(width)
        elif alike == "but at both ends":
            text[0], text[-1] = number, number * 7 % 256
        texts.append(bytes(text))
    assert of_strings(texts) == [crc32(text) for text in texts]
