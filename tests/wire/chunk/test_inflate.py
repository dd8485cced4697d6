"""Compressed bodies are inflated in bounded slices."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_spark.errors import CodecMissing
from rmq_spark.wire import compression
from rmq_spark.wire.chunk.columns import plain_bodies
from rmq_spark.wire.chunk.decode import RecordChunk
from rmq_spark.wire.codes import MessageSysFlag
from rmq_spark.wire.compression import PLAIN_BYTES_MAX, compress_body
from rmq_spark.wire.message.record import StoredMessage, encode_record

ZLIB = MessageSysFlag.COMPRESSION_ZLIB


def record(body, compressed=None):
    """Return a record whose body is compressed in this way, or plain."""
    if compressed is None:
        return encode_record(StoredMessage("T", body))
    flag = MessageSysFlag.COMPRESSED | compressed
    return encode_record(StoredMessage("T", compress_body(body, compressed), sys_flag=flag))


def slices_of(*records, slice_bytes=1 << 20):
    return list(plain_bodies(RecordChunk(b"".join(records)), slice_bytes))


def test_uncompressed_bodies_are_one_slice():
    (only,) = slices_of(record(b"a"), record(b"bb" * 100), slice_bytes=1)
    assert (only.first, only.bodies.to_pylist(), only.problems) == (0, [b"a", b"bb" * 100], {})
    assert [len(each.bodies) for each in plain_bodies(RecordChunk(b""), 1)] == [0]


def test_inflated_slice_is_at_most_about_the_wanted_bytes():
    bomb = record(bytes(100_000), ZLIB)
    found = slices_of(*[bomb] * 50, slice_bytes=250_000)
    assert [len(each.bodies) for each in found] == [3] * 16 + [2]
    assert [each.first for each in found] == list(range(0, 50, 3))
    assert all(each.bodies.nbytes < 400_000 for each in found)


def test_inflated_slices_are_generated_lazily():
    slices = plain_bodies(RecordChunk(record(bytes(1000), ZLIB) * 10 + record(b"broken")), 1000)
    assert next(slices).bodies.to_pylist() == [bytes(1000)]


def test_body_that_cannot_be_inflated_is_null_with_a_reason():
    broken = encode_record(
        StoredMessage("T", b"no stream", sys_flag=MessageSysFlag.COMPRESSED | ZLIB)
    )
    too_long = record(bytes(PLAIN_BYTES_MAX + 1), ZLIB)
    (found,) = slices_of(record(b"a"), broken, record(b"b", ZLIB), too_long, slice_bytes=1 << 30)
    assert found.bodies.to_pylist() == [b"a", None, b"b", None]
    assert sorted(found.problems) == [1, 3]
    assert "one whole ZLIB stream" in str(found.problems[1])
    assert f"at most {PLAIN_BYTES_MAX} bytes inflated" in str(found.problems[3])


def test_missing_compression_module_raises_instead_of_marking_rows(monkeypatch):
    lz4 = record(b"a" * 100, MessageSysFlag.COMPRESSION_LZ4)
    monkeypatch.setattr(compression, "_optional_module", lambda _: None)
    with pytest.raises(
        CodecMissing, match=f"compression at {sys.executable}: needed pip install lz4"
    ):
        slices_of(lz4)


@given(
    st.lists(st.tuples(st.binary(max_size=40), st.sampled_from([None, ZLIB])), max_size=12),
    st.integers(1, 100),
)
def test_inflated_slices_contain_all_bodies_in_order(bodies, slice_bytes):
    found = slices_of(*(record(*each) for each in bodies), slice_bytes=slice_bytes)
    assert [body for each in found for body in each.bodies.to_pylist()] == [
        body for body, _ in bodies
    ]
    at = 0
    for each in found:
        assert each.first == at
        at += len(each.bodies)
