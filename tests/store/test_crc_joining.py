"""The CRC of two texts from those of each, against zlib's of both."""

from __future__ import annotations

from zlib import crc32

from hypothesis import given
from hypothesis import strategies as st

from rocketpoll.broker.store.crc_joining import crc_of_both


@given(st.binary(max_size=2_000), st.binary(max_size=2_000))
def test_it_is_that_of_one_behind_the_other(one, other):
    assert crc_of_both(crc32(one), crc32(other), len(other)) == crc32(one + other)


def test_it_is_so_for_chunks_of_many_megabytes():
    one, other = b"x" * 12_345_678, bytes(9_000_001)
    assert crc_of_both(crc32(one), crc32(other), len(other)) == crc32(one + other)
