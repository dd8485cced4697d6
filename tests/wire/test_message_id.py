"""Message ids in both of Java's forms."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.messages.wire_strategies import addresses, hosts, int64
from support.rocketmq import java_vectors

from rmq_spark.errors import RecordError
from rmq_spark.wire.message.hosts import Host
from rmq_spark.wire.message.message_id import (
    UniqueId,
    decode_offset_message_id,
    decode_unique_id,
    encode_offset_message_id,
    is_unique_id,
)


@java_vectors.each("ids", where=lambda vector: vector["kind"] == "offset")
def test_java_offset_message_ids_are_decoded(vector):
    host, offset = decode_offset_message_id(vector["id"])
    assert (host.address.hex(), host.port, offset) == (
        vector["ipBytes"],
        vector["port"],
        vector["offset"],
    )
    assert encode_offset_message_id(host, offset) == vector["id"]


@java_vectors.each("ids", where=lambda vector: vector["kind"] == "unique")
def test_java_unique_ids_are_decoded(vector):
    unique = decode_unique_id(vector["id"])
    assert unique.address.hex() == vector["ipBytes"]
    assert unique.process_id == vector["pid"] & 0xFFFF
    assert unique.loader_hash == vector["loaderHash"] & 0xFFFFFFFF
    assert unique.month_ms == vector["millisOfMonth"]
    assert unique.counter == vector["counter"] & 0xFFFF
    assert unique.encode() == vector["id"]


@java_vectors.each("ids", where=lambda vector: vector["kind"] == "unique" and vector["pid"] > 0)
def test_java_unique_ids_are_recognized(vector):
    assert is_unique_id(vector["id"])


@given(addresses, st.integers(1, 0xFFFF), int64)
def test_offset_message_id_is_not_taken_for_a_unique_id(address, port, offset):
    assert not is_unique_id(encode_offset_message_id(Host(address, port), offset))


@pytest.mark.parametrize("text", ["", "nonsense", "FF" * 15])
def test_invalid_text_is_no_unique_id(text):
    assert not is_unique_id(text)


@given(hosts, int64)
def test_offset_message_id_round_trip(host, offset):
    assert decode_offset_message_id(encode_offset_message_id(host, offset)) == (host, offset)


@given(
    st.builds(
        UniqueId,
        address=addresses,
        process_id=st.integers(0, 0xFFFF),
        loader_hash=st.integers(0, 0xFFFFFFFF),
        month_ms=st.integers(0, 2_678_400_000),
        counter=st.integers(0, 0xFFFF),
    )
)
def test_unique_id_round_trip(unique):
    assert decode_unique_id(unique.encode()) == unique


def test_message_id_numbers_are_truncated_to_their_fields_as_in_java():
    unique = UniqueId(bytes(4), 0x12345, -1, 5, -1)
    assert decode_unique_id(unique.encode()) == UniqueId(bytes(4), 0x2345, 0xFFFFFFFF, 5, 0xFFFF)


@pytest.mark.parametrize("text", ["", "0A", "G" * 32, "0A" * 15, "0A" * 17, "0A " * 16, "é" * 32])
@pytest.mark.parametrize("decode", [decode_offset_message_id, decode_unique_id])
def test_invalid_message_id_is_refused(decode, text):
    with pytest.raises(RecordError, match="message id at text: needed 32 or 56 hexadecimal digits"):
        decode(text)


def test_unique_id_of_a_negative_time_is_refused():
    with pytest.raises(RecordError, match="unique id"):
        UniqueId(bytes(4), 1, 1, -1, 1).encode()


@pytest.mark.parametrize("physical_offset", [1 << 63, None, "5"])
def test_offset_message_id_of_an_offset_beyond_64_bits_is_refused(physical_offset):
    with pytest.raises(
        RecordError, match="message id at physical offset: needed a 64-bit integer, found"
    ):
        encode_offset_message_id(Host(bytes(4), 1), physical_offset)
