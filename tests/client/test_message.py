"""Messages: refused fields, properties, and decoding singly and in bulk."""

import copy
from dataclasses import FrozenInstanceError, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.messages.wire_strategies import stored_messages

from rmq_spark.client.errors import MessageRejected
from rmq_spark.client.message import (
    BODY_BYTES_MAX,
    Message,
    MessageExt,
    decode_messages,
    to_message,
)
from rmq_spark.errors import BodyError, RecordError
from rmq_spark.wire.codes import MessageSysFlag
from rmq_spark.wire.compression import compress_body
from rmq_spark.wire.message.hosts import parse_host
from rmq_spark.wire.message.properties import RESERVED_NAMES, decode_properties
from rmq_spark.wire.message.record import StoredMessage, decode_record, encode_record
from rmq_spark.wire.message_queue import MessageQueue

REFUSED = {
    "a topic that cannot be": (Message("a/b", b"x"), "topic"),
    "the broker's own topic": (Message("SCHEDULE_TOPIC_XXXX", b"x"), "the broker does not reserve"),
    "no body": (Message("T", b""), "at least one byte"),
    "a body too long": (Message("T", bytes(BODY_BYTES_MAX + 1)), "4194304 bytes"),
    "a flag of 33 bits": (Message("T", b"x", flag=1 << 31), "32-bit"),
    "a delay of less than nothing": (Message("T", b"x", delay_level=-1), "delay_level"),
    "a reserved property": (Message("T", b"x", properties={"TAGS": "a", "mine": "b"}), "TAGS"),
}


@pytest.mark.parametrize(("message", "why"), REFUSED.values(), ids=REFUSED)
def test_invalid_message_is_refused(message, why):
    with pytest.raises(MessageRejected, match=why):
        message.check()


@pytest.mark.parametrize("topic", [b"body", None, 5, ["T"]])
def test_topic_of_wrong_type_is_refused_with_an_example(topic):
    said = r"^topic: .*followed by the body, .*Message\('orders', b'body'"
    with pytest.raises(TypeError, match=said):
        Message(topic, "orders")


@pytest.mark.parametrize("level", [0, 1, 18, 19, (1 << 31) - 1])
def test_any_delay_level_is_accepted_by_the_client(level):
    Message("T", b"x", delay_level=level).check()


@pytest.mark.parametrize("name", sorted(RESERVED_NAMES))
def test_message_with_reserved_property_names_is_refused(name):
    with pytest.raises(MessageRejected, match="RocketMQ does not reserve"):
        Message("T", b"x", properties={name: "1"}).check()


@pytest.mark.parametrize(
    "properties", [{"a": "b\x02c"}, {"a\x01b": "c"}, {"": "c"}, {"a": ""}, {"a": "\ud800"}]
)
def test_message_properties_that_would_be_parsed_differently_are_refused(properties):
    with pytest.raises(MessageRejected, match=r"propert(ies|y a)"):
        Message("T", b"x", properties=properties).properties_text("ID")


@pytest.mark.parametrize(
    "fields", [{"keys": "k\x01v"}, {"keys": ["a", "k\x02v"]}, {"tags": "t\x01"}]
)
def test_message_keys_and_tags_with_separators_are_refused(fields):
    with pytest.raises(MessageRejected, match=r"(one of keys|tags): needed a text without \\x01"):
        Message("T", b"x", **fields).properties_text("ID")


def test_message_with_too_many_bytes_of_properties_is_refused():
    with pytest.raises(MessageRejected, match="at most 32255 bytes"):
        Message("T", b"x", properties={"a": "é" * 16_140}).properties_text("ID")


def test_message_properties_contain_all_message_fields():
    message = Message(
        "T",
        b"x",
        "tag",
        ["k1", "k2"],
        {"mine": "1"},
        delay_level=3,
        sharding_key="s",
        wait_store_ok=False,
    )
    message.check()
    assert decode_properties(message.properties_text("ID")) == {
        "mine": "1",
        "TAGS": "tag",
        "KEYS": "k1 k2",
        "DELAY": "3",
        "__SHARDINGKEY": "s",
        "UNIQ_KEY": "ID",
        "WAIT": "false",
    }


names = st.text(
    st.characters(codec="utf-8", exclude_characters="\x01\x02"), min_size=1, max_size=20
).filter(lambda name: name not in RESERVED_NAMES)


@given(st.dictionaries(names, names, max_size=5))
def test_message_properties_round_trip(properties):
    text = Message("T", b"x", properties=properties).properties_text("ID")
    stored = StoredMessage(topic="T", body=b"x", properties_text=text)
    assert {**properties, "UNIQ_KEY": "ID", "WAIT": "true"} == to_message(stored, "b").properties


STORED = StoredMessage(
    topic="%RETRY%g",
    body=compress_body(b"body" * 2_000, MessageSysFlag.COMPRESSION_ZLIB),
    properties_text="\x02".join(
        ("RETRY_TOPIC\x01T", "TAGS\x01t", "KEYS\x01a b", "UNIQ_KEY\x01ID", "DELAY\x014", "")
    ),
    queue_id=3,
    queue_offset=17,
    physical_offset=4_711,
    flag=9,
    sys_flag=MessageSysFlag.COMPRESSED | MessageSysFlag.COMPRESSION_ZLIB,
    born_timestamp=1,
    born_host=parse_host("10.0.0.1:1000"),
    store_timestamp=2,
    store_host=parse_host("10.0.0.2:9876"),
    reconsume_times=2,
    prepared_transaction_offset=5,
)


def test_decoded_record_has_all_message_fields():
    (message,) = decode_messages(encode_record(STORED), "broker-a")
    assert message.body == b"body" * 2_000
    assert (message.topic, message.real_topic) == ("%RETRY%g", "T")
    assert (message.tags, message.keys, message.delay_level) == ("t", ("a", "b"), 4)
    assert message.queue == MessageQueue("%RETRY%g", "broker-a", 3)
    assert (message.queue_offset, message.commit_log_offset) == (17, 4_711)
    assert message.message_id == "ID"
    assert message.offset_message_id == STORED.offset_message_id
    assert (message.born_timestamp, message.born_host) == (1, "10.0.0.1:1000")
    assert (message.store_timestamp, message.store_host) == (2, "10.0.0.2:9876")
    assert (message.reconsume_times, message.flag, message.sys_flag) == (2, 9, STORED.sys_flag)
    assert message.prepared_transaction_offset == 5


@given(st.lists(stored_messages(), max_size=4))
def test_bulk_message_decoding_equals_single_decoding(stored):
    records = [encode_record(each) for each in stored]
    try:
        alone = [to_message(decode_record(each), "broker-a") for each in records]
    except (BodyError, RecordError):
        alone = None
    try:
        together = list(decode_messages(b"".join(records), "broker-a"))
    except (BodyError, RecordError):
        together = None
    assert together == alone


def test_message_of_a_plain_record_is_frozen_and_complete():
    first, second = decode_messages(
        2 * encode_record(StoredMessage("T", b"x", queue_offset=5)), "broker-a"
    )
    assert type(first) is MessageExt
    assert (first, hash(first.queue)) == (second, hash(second.queue))
    assert replace(first, queue_offset=6).queue_offset == 6
    assert first.properties is not second.properties
    assert copy.copy(first) == first
    with pytest.raises(FrozenInstanceError):
        first.queue_offset = 6


def test_message_without_properties_has_no_tags_or_keys_and_the_brokers_id():
    stored = StoredMessage(topic="T", body=b"x", properties_text="DELAY\x01soon\x02")
    message = to_message(stored, "b")
    assert (message.tags, message.keys, message.delay_level) == (None, (), 0)
    assert message.message_id == message.offset_message_id
    assert message.real_topic == "T"


def test_record_damaged_in_transit_raises():
    damaged = bytearray(encode_record(STORED))
    damaged[100] ^= 1
    with pytest.raises(RecordError):
        list(decode_messages(damaged, "b"))


def received_with(body):
    [found] = decode_messages(
        encode_record(StoredMessage("orders", body, queue_id=2, queue_offset=5)), "broker-a"
    )
    return found


def test_message_body_is_read_as_json_and_text():
    found = received_with('{"customer": "ü"}'.encode())
    assert found.json() == {"customer": "ü"}
    assert found.text == '{"customer": "ü"}'
    assert found.value("json") == found.json()


@pytest.mark.parametrize("read", [lambda found: found.json(), lambda found: found.text])
def test_undecodable_message_body_error_names_its_queue_and_offset(read):
    with pytest.raises(BodyError) as caught:
        read(received_with(b"\xff"))
    assert "queue 2 of orders on broker-a at offset 5: needed a body of" in str(caught.value)


def test_message_value_needs_a_valid_serializer():
    with pytest.raises(TypeError, match="serializer: needed"):
        received_with(b"x").value(None)
    with pytest.raises(TypeError, match="serializer: needed"):
        received_with(b"x").value("yaml")


def test_outgoing_message_shows_its_body_as_json_and_text():
    assert Message("T", b'{"a": 1}').json() == {"a": 1}
    assert Message("T", {"a": 1}).json() == {"a": 1}
    assert (Message("T", b"a").text, Message("T", "a").text) == ("a", "a")
    with pytest.raises(BodyError, match="a message to T at its body: needed"):
        _ = Message("T", b"\xff").text
    with pytest.raises(TypeError, match="body: needed bytes"):
        _ = Message("T", {"a": 1}).text
