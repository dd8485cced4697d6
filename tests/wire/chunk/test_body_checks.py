"""Damage to bodies is found whatever their lengths are, and wherever it is."""

from random import Random
from zlib import crc32

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_spark.wire.chunk import body_checks
from rmq_spark.wire.chunk.body_checks import damaged_bodies
from rmq_spark.wire.chunk.decode import RecordChunk
from rmq_spark.wire.record import StoredMessage, encode_record

# Of one length, of nearly one, short and long ones, and of all: they are put together differently.
KINDS = {
    "equal": [1000],
    "equal and short": [7],
    "nearly equal": [900, 901, 1024, 1100],
    "short": [1, 7, 64, 127, 128, 129],
    "short, and some long": [1, 7, 63, 64, 65, 127, 128, 129, 1000],
    "long": [0, 300, 1000, 2000, 4000, 4096, 4097],
}
LENGTHS = [0, 1, 7, 63, 64, 65, 127, 128, 129, 1000, 4095, 4096, 4097, 10_000]


def chunk_of(lengths, seed=0):
    random = Random(seed)
    return bytearray(
        b"".join(encode_record(StoredMessage("T", random.randbytes(length))) for length in lengths)
    )


def found_in(data):
    return damaged_bodies(RecordChunk(data)).tolist()


def flip(data, rows):
    """Change a bit of each of these records' bodies."""
    chunk = RecordChunk(bytes(data))
    for number, row in enumerate(rows):
        data[int(chunk.body_at[row]) + number % int(chunk.body_length[row])] ^= 1 << number % 8


@pytest.mark.parametrize("count", [0, 1, 63, 255, 256, 257, 1000])
def test_bodies_that_are_intact_are_found_to_be(count):
    random = Random(count)
    assert found_in(chunk_of(random.choices(LENGTHS, k=count))) == []
    for lengths in KINDS.values():
        assert found_in(chunk_of(random.choices(lengths, k=count))) == []


@pytest.mark.parametrize("kind", KINDS)
def test_intact_bodies_are_not_summed_one_by_one(kind, monkeypatch):
    """The bodies over 4 KiB are; of the others, the first, and sums of many."""
    found_in(chunk_of([100] * 300))  # after which what is computed once is there
    summed = []
    monkeypatch.setattr(body_checks, "crc32", lambda data: summed.append(data) or crc32(data))
    lengths = Random(kind).choices(KINDS[kind], k=1000)
    assert found_in(chunk_of(lengths)) == []
    assert len(summed) < 20 + sum(length > 4096 for length in lengths)


@pytest.mark.parametrize("length", LENGTHS[1:])
def test_each_bit_of_a_body_counts(length):
    random = Random(length)
    clean = chunk_of([length, *random.choices(LENGTHS, k=400)])
    at = int(RecordChunk(bytes(clean)).body_at[0])
    for place in dict.fromkeys([0, length // 2, length - 1, *random.choices(range(length), k=8)]):
        data = bytearray(clean)
        data[at + place] ^= 1 << random.randrange(8)
        assert found_in(data) == [0]


@given(st.sampled_from(sorted(KINDS)), st.integers(1, 600), st.integers(0, 1 << 32), st.data())
def test_all_that_are_damaged_are_found_and_no_others(kind, count, seed, draw):
    lengths = Random(seed).choices(KINDS[kind], k=count)
    rows = draw.draw(st.sets(st.integers(0, count - 1), max_size=5))
    rows = sorted(row for row in rows if lengths[row])
    data = chunk_of(lengths, seed)
    flip(data, rows)
    assert found_in(data) == rows


def test_a_stored_crc_that_changes_is_found():
    data = chunk_of([100] * 500)
    chunk = RecordChunk(bytes(data))
    data[int(chunk.starts[300]) + 8] ^= 4  # bodyCRC
    assert found_in(data) == [300]
    assert np.array_equal(RecordChunk(bytes(data)).head["total_size"], chunk.head["total_size"])
