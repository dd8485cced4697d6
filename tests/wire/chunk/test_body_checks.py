"""Body checksums detect damage at any position and for any length."""

from random import Random
from zlib import crc32

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_spark.wire.chunk import body_checks, crc
from rmq_spark.wire.chunk.body_checks import damaged_bodies
from rmq_spark.wire.chunk.decode import RecordChunk
from rmq_spark.wire.message.record import StoredMessage, encode_record

# Bodies of one length are summed in place, short ones of several lengths with zeros in front.
SUMMED = {
    "equal": [1000],
    "equal and short": [7],
    "equal and long": [5000],
    "nearly equal": [900, 901, 1000, 1024],
    "short": [1, 7, 64, 127, 128, 129],
    "all empty": [0],
    "some empty": [0, 0, 30],
}
KINDS = {
    **SUMMED,
    "short, and some long": [1, 7, 63, 64, 65, 127, 128, 129, 2000],
    "long": [0, 300, 1000, 2000, 4000, 4096, 4097],
}
LENGTHS = [0, 1, 7, 63, 64, 65, 127, 128, 129, 1000, 4095, 4096, 4097, 32_768, 32_769]


def chunk_of(lengths, seed=0):
    random = Random(seed)
    return bytearray(
        b"".join(encode_record(StoredMessage("T", random.randbytes(length))) for length in lengths)
    )


def found_in(data):
    return damaged_bodies(RecordChunk(data)).tolist()


def flip(data, rows):
    """Flip a bit in each of these records' bodies."""
    chunk = RecordChunk(bytes(data))
    for number, row in enumerate(rows):
        data[int(chunk.body_at[row]) + number % int(chunk.body_length[row])] ^= 1 << number % 8


@pytest.mark.parametrize("count", [0, 1, 63, 255, 256, 257, 1000])
def test_intact_bodies_pass_the_bulk_crc_check(count):
    random = Random(count)
    assert found_in(chunk_of(random.choices(LENGTHS, k=count))) == []
    for lengths in KINDS.values():
        assert found_in(chunk_of(random.choices(lengths, k=count))) == []


@pytest.mark.parametrize("kind", SUMMED)
def test_intact_bodies_are_not_summed_one_by_one(kind, monkeypatch):
    """At least 16 bodies are combined into a sum; only the remaining few are checked one by one."""
    found_in(chunk_of([100] * 300))  # fills the caches
    summed = []
    for module in (body_checks, crc):
        monkeypatch.setattr(module, "crc32", lambda data: summed.append(data) or crc32(data))
    lengths = Random(kind).choices(KINDS[kind], k=1000)
    assert found_in(chunk_of(lengths)) == []
    assert 0 < len(summed) < len(lengths) / 10


def test_damage_is_found_among_bodies_of_one_length_over_32_kib():
    data = chunk_of([32_769] * 40)
    flip(data, [7, 39])
    assert found_in(data) == [7, 39]


@pytest.mark.parametrize("length", LENGTHS[1:])
def test_each_bit_of_a_body_is_covered_by_its_crc(length):
    random = Random(length)
    clean = chunk_of([length, *random.choices(LENGTHS, k=400)])
    at = int(RecordChunk(bytes(clean)).body_at[0])
    for place in dict.fromkeys([0, length // 2, length - 1, *random.choices(range(length), k=8)]):
        data = bytearray(clean)
        data[at + place] ^= 1 << random.randrange(8)
        assert found_in(data) == [0]


@given(st.sampled_from(sorted(KINDS)), st.integers(1, 600), st.integers(0, 1 << 32), st.data())
def test_bulk_crc_check_finds_exactly_the_damaged_bodies(kind, count, seed, draw):
    lengths = Random(seed).choices(KINDS[kind], k=count)
    rows = draw.draw(st.sets(st.integers(0, count - 1), max_size=5))
    rows = sorted(row for row in rows if lengths[row])
    data = chunk_of(lengths, seed)
    flip(data, rows)
    assert found_in(data) == rows


@given(
    st.lists(
        st.one_of(st.integers(0, 300), st.integers(0, 3000), st.sampled_from(LENGTHS)), max_size=40
    ),
    st.integers(1, 8),
    st.data(),
)
def test_bulk_crc_check_equals_single_checks(lengths, times, draw):
    """Everything in a chunk may change, except its lengths."""
    lengths = lengths * times
    data = chunk_of(lengths, len(lengths))
    chunk = RecordChunk(bytes(data))
    places = [
        range(int(at), int(at + length))
        for at, length in zip(chunk.body_at, chunk.body_length, strict=True)
        if length
    ]
    if places:
        for place in draw.draw(st.lists(st.sampled_from(places), max_size=4)):
            data[draw.draw(st.sampled_from(place))] ^= draw.draw(st.integers(1, 255))
    after = RecordChunk(bytes(data))
    bodies = (
        bytes(data[at : at + length])
        for at, length in zip(after.body_at, after.body_length, strict=True)
    )
    stored = after.head["body_crc"].tolist()
    assert found_in(data) == [
        row for row, body in enumerate(bodies) if crc32(body) & 0x7FFFFFFF != stored[row]
    ]


def test_changed_stored_body_crc_is_found():
    data = chunk_of([100] * 500)
    chunk = RecordChunk(bytes(data))
    data[int(chunk.starts[300]) + 8] ^= 4  # bodyCRC
    assert found_in(data) == [300]
    assert np.array_equal(RecordChunk(bytes(data)).head["total_size"], chunk.head["total_size"])
