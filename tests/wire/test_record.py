"""Stored records in Java's bytes."""

import dataclasses
import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.messages.wire_strategies import stored_messages
from support.rocketmq import java_vectors

from rmq_spark.errors import RecordError
from rmq_spark.wire.codes import MessageSysFlag
from rmq_spark.wire.message import record_layout as layout
from rmq_spark.wire.message.hosts import Host, parse_host
from rmq_spark.wire.message.properties import tags_code
from rmq_spark.wire.message.record import (
    StoredMessage,
    body_crc_of,
    decode_blank,
    decode_record,
    decode_records,
    encode_blank,
    encode_record,
    magic_of,
    record_size,
)

MESSAGE = StoredMessage(
    topic="T",
    body=b"hello",
    properties_text="TAGS\x01A",
    queue_id=3,
    queue_offset=7,
    physical_offset=1_234_567,
    born_timestamp=1_700_000_000_000,
    born_host=parse_host("10.0.0.1:5000"),
    store_timestamp=1_700_000_000_001,
    store_host=parse_host("10.0.0.2:10911"),
)
# The worked example of the protocol's notes.
RECORD = bytes.fromhex(
    "00000067 daa320a7 3610a686 00000003 00000000 0000000000000007 000000000012d687 "
    "000000000000018bcfe56800 0a000001 00001388 0000018bcfe56801 0a000002 00002a9f 00000000 "
    "000000000000000000000005 68656c6c6f 01 54 0006 544147530141"
)


def test_record_example_is_encoded_and_decoded():
    assert encode_record(MESSAGE) == RECORD
    assert decode_record(RECORD) == dataclasses.replace(MESSAGE, body_crc=907_060_870)


def test_message_exposes_tags_keys_and_ids():
    message = dataclasses.replace(MESSAGE, properties_text="TAGS\x01A\x02KEYS\x01k1 k2\x02")
    assert message.tags == "A"
    assert message.keys == "k1 k2"
    assert message.message_id == message.offset_message_id == "0A00000200002A9F000000000012D687"
    assert dataclasses.replace(message, properties_text="UNIQ_KEY\x01U1").message_id == "U1"


@given(stored_messages())
def test_stored_message_encode_decode_round_trip(message):
    data = encode_record(message)
    read = decode_record(data)
    assert read == dataclasses.replace(message, body_crc=body_crc_of(message.body))
    assert encode_record(read) == data


@given(st.lists(stored_messages(), max_size=4))
def test_records_are_decoded_one_after_another_from_a_buffer(messages):
    data = b"".join(map(encode_record, messages))
    assert [dataclasses.replace(read, body_crc=None) for read in decode_records(data)] == messages


@java_vectors.each("records")
def test_javas_records_are_read_as_java_reads_them(vector):
    fields = vector["fields"]
    data = bytes.fromhex(vector["record"])
    message = decode_record(data)
    assert record_size(data, 0) == fields["totalSize"]
    assert message.magic == fields["magic"]
    assert message.body_crc == fields["bodyCrc"]
    assert message.queue_id == fields["queueId"]
    assert message.flag == fields["flag"]
    assert message.queue_offset == fields["queueOffset"]
    assert message.physical_offset == fields["physicalOffset"]
    assert message.sys_flag == fields["sysFlag"]
    assert message.born_timestamp == fields["bornTimestamp"]
    assert (
        message.born_host.encode()[:-4].hex()
        == fields["bornHostBytes"][: len(message.born_host.address) * 2]
    )
    assert message.born_host.port == int(fields["bornHost"].rpartition(":")[2])
    assert message.store_timestamp == fields["storeTimestamp"]
    assert (
        message.store_host.address.hex()
        == fields["storeHostBytes"][: len(message.store_host.address) * 2]
    )
    assert message.store_host.port == int(fields["storeHost"].rpartition(":")[2])
    assert message.reconsume_times == fields["reconsumeTimes"]
    assert message.prepared_transaction_offset == fields["preparedTransactionOffset"]
    assert message.body.hex() == (fields["body"] or "")
    assert message.topic == fields["topic"]
    assert message.properties_text.encode().hex() == (fields["propertiesData"] or "")
    assert message.properties == fields["properties"]
    assert tags_code(message.tags) == fields["tagsCode"]
    assert message.offset_message_id == fields["offsetMsgId"]
    assert message.message_id == fields["msgId"]
    if "bodyPlain" in fields:
        assert message.plain_body().hex() == fields["bodyPlain"]


@java_vectors.each("records")
def test_javas_records_are_written_with_the_same_bytes(vector):
    data = bytes.fromhex(vector["record"])
    assert encode_record(decode_record(data)) == data


@java_vectors.each("ids", where=lambda vector: vector["kind"] == "crc32")
def test_body_crc_equals_that_of_java(vector):
    assert body_crc_of(bytes.fromhex(vector["bytes"])) == vector["crc32"]


def test_damaged_record_body_is_found_by_its_crc():
    damaged = RECORD.replace(b"hello", b"hellO")
    with pytest.raises(RecordError, match=r"at byte 0: needed body CRC \d+, found 907060870"):
        decode_record(damaged)
    assert decode_record(damaged, check_crc=False).body == b"hellO"


def test_truncated_record_is_refused():
    for end in range(len(RECORD)):
        with pytest.raises(RecordError, match="stored message at byte"):
            decode_record(RECORD[:end])


@pytest.mark.parametrize(
    ("at", "replacement", "message"),
    [
        (0, struct.pack(">i", 90), "at byte 10: needed totalSize 91 to 103, found 90"),
        (0, struct.pack(">i", 104), "at byte 10: needed totalSize 91 to 103, found 104"),
        (0, struct.pack(">i", 102), "propertiesLength 0 to 5, found 6"),
        (4, b"\0\0\0\0", "at byte 14: needed a record's magic, found '0x0'"),
        (4, struct.pack(">i", layout.MAGIC_BLANK), "needed a record's magic, found '0xcbd43194'"),
        (36, struct.pack(">i", 0x30), "stored message at byte"),
        (84, struct.pack(">i", -1), "at byte 98: needed bodyLength 0 to 15, found -1"),
        (84, struct.pack(">i", 16), "needed bodyLength 0 to 15, found 16"),
        (84, struct.pack(">i", 15), "needed a whole record"),
        (93, b"\x0a", "needed topicLength 0 to 9, found 10"),
        (95, struct.pack(">h", -2), "needed propertiesLength 0 to 6, found -2"),
        (95, struct.pack(">h", 5), "at byte 10: needed totalSize 102, found 103"),
    ],
)
def test_record_with_wrong_lengths_names_place_and_fault(at, replacement, message):
    data = RECORD[:at] + replacement + RECORD[at + len(replacement) :]
    with pytest.raises(RecordError, match=message):
        decode_record(bytes(10) + data, 10)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"sys_flag": MessageSysFlag.BORN_HOST_V6},
            "sysFlag: needed the IPv6 bits of the hosts, 0x0",
        ),
        ({"born_host": Host(bytes(16), 1)}, "sysFlag: needed the IPv6 bits of the hosts, 0x10"),
        ({"born_host": Host(bytes(5), 1)}, "host at address: needed 4 or 16 bytes"),
        ({"magic": 5}, "magic: needed MAGIC_V1 or MAGIC_V2, found 5"),
        ({"topic": "t" * 128}, "topic: needed at most 127 bytes, or MAGIC_V2, found '128 bytes'"),
        ({"topic": "t" * 32_768, "magic": layout.MAGIC_V2}, "topic: needed at most 32767 bytes"),
        ({"topic": "\ud800"}, "topic: needed text in UTF-8"),
        ({"properties_text": "x" * 32_768}, "properties: needed at most 32767 bytes"),
        ({"queue_id": 1 << 31}, "queue_id: needed an integer of 32 bits, found 2147483648"),
        (
            {"queue_offset": -(1 << 63) - 1},
            "queue_offset: needed an integer of 64 bits, found -922337",
        ),
        (
            {"store_timestamp": 1 << 63},
            "store_timestamp: needed an integer of 64 bits, found 922337",
        ),
        (
            {"reconsume_times": -(1 << 31) - 1},
            "reconsume_times: needed an integer of 32 bits, found -214748",
        ),
        (
            {"prepared_transaction_offset": 1.5},
            "prepared_transaction_offset: needed an integer .* found 1.5",
        ),
        ({"flag": "5"}, "flag: needed an integer of 32 bits, found '5'"),
        ({"body_crc": 1 << 31}, "body_crc: needed an integer of 32 bits"),
    ],
)
def test_oversized_field_of_a_record_is_named(change, message):
    with pytest.raises(RecordError, match=message):
        encode_record(dataclasses.replace(MESSAGE, **change))


def test_unencodable_message_is_not_copied_into_the_error():
    tracemalloc.start()
    try:
        body = bytes(4_000_000)
        with pytest.raises(RecordError, match="stored message at queue_id"):
            encode_record(dataclasses.replace(MESSAGE, body=body, queue_id=1 << 31))
        assert tracemalloc.get_traced_memory()[1] < 4_500_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("flags", [0x10, 0x20, 0x30])
def test_record_too_short_for_its_hosts_names_its_start(flags):
    hosts = {"born_host": Host(bytes(16), 1)} if flags & 0x10 else {}
    hosts |= {"store_host": Host(bytes(16), 1)} if flags & 0x20 else {}
    record = encode_record(StoredMessage("", b"", sys_flag=flags, **hosts))
    size_min = len(record)
    assert decode_record(record).sys_flag == flags
    for size in range(91, size_min):
        cut = struct.pack(">i", size) + record[4:size]
        for behind in (b"", bytes(100)):
            with pytest.raises(
                RecordError,
                match=f"at byte 10: needed totalSize {size_min} with these hosts, found {size}",
            ):
                decode_record(bytes(10) + cut + behind, 10)


def test_record_layout_numbers_are_rocketmqs():
    numbers = {
        "QUEUE_OFFSET_AT": 20,
        "PHYSICAL_OFFSET_AT": 28,
        "HEAD_BYTES": 48,
        "STORE_TIMESTAMP_BYTES": 8,
        "TAIL_BYTES": 16,
        "HOST_V4_BYTES": 8,
        "HOST_V6_BYTES": 20,
        "RECORD_BYTES_MIN": 91,
    }
    assert {name: getattr(layout, name) for name in numbers} == numbers


def test_blank_record_fills_the_end_of_a_file():
    blank = encode_blank(300)
    assert blank.hex() == "0000012ccbd43194"
    assert decode_blank(b"x" + blank, 1) == 300
    assert decode_blank(RECORD) is None
    assert decode_blank(blank[:7]) is None
    assert decode_blank(encode_blank(7)) is None


def test_topics_and_properties_that_are_no_utf8_are_shown_with_replacements():
    data = RECORD.replace(b"\x01\x54\x00\x06", b"\x01\xff\x00\x06").replace(
        b"TAGS\x01A", b"TAGS\x01\xfe"
    )
    message = decode_record(data)
    assert message.topic == "\ufffd"
    assert message.tags == "\ufffd"


def test_topic_over_127_bytes_needs_the_v2_record():
    assert [magic_of("T" * count) for count in (1, 127, 128, 255)] == [
        layout.MAGIC_V1,
        layout.MAGIC_V1,
        layout.MAGIC_V2,
        layout.MAGIC_V2,
    ]
    assert magic_of("\u00e9" * 64) == layout.MAGIC_V2
