"""Compressed bodies, and decompression bombs."""

import tracemalloc
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.rocketmq import java_vectors

from rmq_spark.errors import BodyError
from rmq_spark.wire import isa_l
from rmq_spark.wire.codes import MessageSysFlag
from rmq_spark.wire.compression import compress_body, uncompress_body

COMPRESSED = MessageSysFlag.COMPRESSED
TYPES = [
    MessageSysFlag.COMPRESSION_ZLIB,
    MessageSysFlag.COMPRESSION_LZ4,
    MessageSysFlag.COMPRESSION_ZSTD,
]
BY_NAME = {"ZLIB": TYPES[0], "LZ4": TYPES[1], "ZSTD": TYPES[2]}


@java_vectors.each("compressed")
def test_bodies_compressed_by_java_are_inflated(vector):
    body = bytes.fromhex(vector["compressed"])
    plain = uncompress_body(body, COMPRESSED | BY_NAME[vector["type"]])
    assert plain.hex() == vector["plain"]


@java_vectors.each("compressed", where=lambda vector: vector["type"] == "ZLIB")
def test_zlib_streams_are_about_as_small_as_those_of_java(vector):
    plain = bytes.fromhex(vector["plain"])
    body = compress_body(plain, TYPES[0], vector["level"])
    assert zlib.decompress(body) == plain
    assert len(body) <= 1.1 * len(bytes.fromhex(vector["compressed"])) + 8


@given(st.binary(max_size=300), st.data())
def test_isa_l_computes_and_inflates_as_zlib_does(body, data):
    stream = bytearray(zlib.compress(body * data.draw(st.integers(1, 40)), 6))
    for at in data.draw(st.lists(st.integers(0, len(stream) - 1), max_size=3)):
        stream[at] ^= 1 << data.draw(st.integers(0, 7))
    bytes_max = data.draw(st.integers(1, 20_000))
    damaged = bytes(stream[: data.draw(st.integers(0, len(stream)))])
    assert inflated(isa_l.decompressobj, damaged, bytes_max) == inflated(
        zlib.decompressobj, damaged, bytes_max
    )
    assert isa_l.crc32(body) == zlib.crc32(body)
    assert isa_l.crc32(damaged, isa_l.crc32(body)) == zlib.crc32(damaged, zlib.crc32(body))


def inflated(decompressor, stream, bytes_max):
    """Return the whole body, or None if it is too long or damaged.

    The reason depends on how far ahead a library reads.
    """
    inflater = decompressor()
    try:
        body = inflater.decompress(stream, bytes_max)
    except isa_l.ZLIB_ERRORS:
        return None
    assert len(body) <= bytes_max
    return body if inflater.eof else None


@given(st.binary(max_size=300), st.sampled_from(TYPES), st.integers(1, 9))
def test_compressed_body_round_trip(body, compression, level):
    assert (
        uncompress_body(compress_body(body, compression, level), COMPRESSED | compression) == body
    )


def test_lz4_blocks_stand_alone_as_java_needs_them():
    flags = compress_body(bytes(200_000), TYPES[1])[4]
    assert flags & 0x20, "the bit of independent blocks"


def test_uncompressed_body_is_returned_unchanged():
    assert uncompress_body(b"plain", MessageSysFlag.COMPRESSION_LZ4) == b"plain"


def test_flags_without_a_type_mean_zlib_as_before_there_were_types():
    assert uncompress_body(zlib.compress(b"old"), COMPRESSED) == b"old"


@pytest.mark.parametrize("compression", TYPES)
def test_decompression_bomb_is_stopped_at_the_size_limit(compression):
    bomb = compress_body(bytes(50_000_000), compression)
    tracemalloc.start()
    try:
        with pytest.raises(BodyError, match="needed at most 100000 bytes inflated"):
            uncompress_body(bomb, COMPRESSED | compression, 100_000)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("compression", TYPES)
def test_body_may_inflate_to_exactly_the_limit(compression):
    body = compress_body(bytes(1000), compression)
    assert uncompress_body(body, COMPRESSED | compression, 1000) == bytes(1000)


@pytest.mark.parametrize("compression", TYPES)
@pytest.mark.parametrize(
    "damage", [lambda body: body[:-3], lambda _: b"", lambda _: b"no such stream"]
)
def test_damaged_compressed_stream_is_named(compression, damage):
    body = damage(compress_body(b"hello" * 100, compression))
    with pytest.raises(
        BodyError, match=r"compressed body at byte 0: needed one whole (ZLIB|LZ4|ZSTD) stream"
    ):
        uncompress_body(body, COMPRESSED | compression)


def test_unknown_compression_types_are_refused():
    with pytest.raises(BodyError, match="sysFlag: needed compression type 0 to 3, found 5"):
        uncompress_body(b"x", COMPRESSED | 0x500)
    with pytest.raises(BodyError, match="needed COMPRESSION_ZLIB, _LZ4 or _ZSTD"):
        compress_body(b"x", MessageSysFlag(0x500))


@pytest.mark.parametrize("level", [42, 1 << 40, -(1 << 40)])
@pytest.mark.parametrize("compression", [TYPES[0], TYPES[2]])
def test_unknown_compression_levels_are_refused(compression, level):
    with pytest.raises(
        BodyError, match=f"compression at level: needed one that COMPRESSION_Z.* found {level}"
    ):
        compress_body(b"x", compression, level)
