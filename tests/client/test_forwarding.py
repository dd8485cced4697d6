"""Dead letters of unreadable records: the parts that they preserve, and their ids."""

import pytest

from rmq_spark.client.damaged_records import BadRecord
from rmq_spark.client.forwarding import DeadLetterLoop, dead_letter_of
from rmq_spark.wire.codes import MessageSysFlag
from rmq_spark.wire.message.message_id import is_unique_id
from rmq_spark.wire.message.properties import PROPERTIES_BYTES_SENT_MAX, decode_properties
from rmq_spark.wire.message.record import StoredMessage, decode_record, encode_record
from rmq_spark.wire.message_queue import MessageQueue

QUEUE = MessageQueue("orders", "broker-a", 3)
BORN_MS = 1_767_225_600_000
PROPERTIES = "KEYS\x01k1 k2\x02TAGS\x01paid\x02colour\x01red\x02DELAY\x013\x02__CRC32#\x01x\x02"


def bad(text=PROPERTIES, body=b"not JSON", problem="it is broken", queue_offset=17, **more):
    stored = StoredMessage("orders", body, text, 3, queue_offset, born_timestamp=BORN_MS, **more)
    return BadRecord(QUEUE, queue_offset, problem, encode_record(stored))


def test_dead_letter_keeps_body_keys_tag_properties_flag_and_born_time():
    letter = dead_letter_of(bad(flag=7), "dead")
    assert (letter.topic, letter.body, letter.flag) == ("dead", b"not JSON", 7)
    assert letter.born_timestamp == BORN_MS
    assert letter.properties == {
        "KEYS": "k1 k2",
        "TAGS": "paid",
        "colour": "red",
        "DLQ_ORIGIN_TOPIC": "orders",
        "DLQ_ORIGIN_BROKER": "broker-a",
        "DLQ_ORIGIN_QUEUE_ID": "3",
        "DLQ_ORIGIN_QUEUE_OFFSET": "17",
        "DLQ_ORIGIN_MESSAGE_ID": "00000000000000000000000000000000",
        "DLQ_ERROR": "it is broken",
        "DLQ_TOPICS": "orders",
        "DLQ_BODY": "body",
    }


def test_dead_letter_id_depends_on_the_position_of_the_record():
    ids = {dead_letter_of(bad(queue_offset=at), "dead").message_id for at in range(1_000)}
    assert len(ids) == 1_000
    assert all(map(is_unique_id, ids))
    assert dead_letter_of(bad(problem="told otherwise"), "dead").message_id in ids
    elsewhere = bad()._replace(queue=MessageQueue("orders", "broker-b", 3))
    assert dead_letter_of(elsewhere, "dead").message_id not in ids


def test_dead_letter_has_an_undecompressable_body_as_stored_with_its_flags():
    flags = int(MessageSysFlag.COMPRESSED | MessageSysFlag.COMPRESSION_LZ4)
    letter = dead_letter_of(bad(body=b"no stream", sys_flag=flags), "dead")
    assert (letter.body, letter.sys_flag) == (b"no stream", 0)
    assert letter.properties["DLQ_BODY"] == "stored"
    assert letter.properties["DLQ_SYS_FLAG"] == str(flags)


def test_dead_letter_marks_a_body_that_differs_from_the_stored_one():
    assert dead_letter_of(bad(body_crc=1), "dead").properties["DLQ_BODY"] == "damaged"
    letter = dead_letter_of(bad(body_crc=1, sys_flag=0x101), "dead")  # nor a zlib stream
    assert (letter.properties["DLQ_BODY"], letter.sys_flag) == ("damaged", 0)


@pytest.mark.parametrize("flags", [0, 0x301])
def test_dead_letter_of_an_empty_message_has_the_error_as_its_body(flags):
    letter = dead_letter_of(bad(body=b"", sys_flag=flags), "dead")
    assert (letter.body, letter.sys_flag) == (b"it is broken", 0)
    assert letter.properties["DLQ_BODY"] == "empty"
    assert letter.properties["TAGS"] == "paid"


@pytest.mark.parametrize("flags", [0, 0x4, 0x1 | 0x8])
def test_dead_letter_is_no_half_message(flags):
    letter = dead_letter_of(bad(sys_flag=flags, body=b""), "dead")
    assert letter.sys_flag & MessageSysFlag.TRANSACTION_MASK == 0


def test_dead_letter_contains_the_whole_record_if_properties_do_not_fit():
    given = bad(f"p\x01{'x' * (PROPERTIES_BYTES_SENT_MAX - 100)}\x02")
    letter = dead_letter_of(given, "dead")
    assert letter.properties["DLQ_BODY"] == "record"
    assert "p" not in letter.properties
    assert len(decode_properties(decode_record(letter.body).properties_text)["p"]) > 32_000


def test_dead_letter_contains_the_whole_record_if_it_cannot_be_parsed():
    record = bytearray(bad().record)
    record[84:88] = (1 << 30).to_bytes(4, "big")  # damage the length of its body
    letter = dead_letter_of(bad()._replace(record=bytes(record)), "dead")
    assert (letter.properties["DLQ_BODY"], letter.body) == ("record", bytes(record))


@pytest.mark.parametrize("record", [None, b"", b"too short"])
def test_dead_letter_without_bytes_has_the_error_as_its_body(record):
    letter = dead_letter_of(bad()._replace(record=record), "dead")
    assert (letter.properties["DLQ_BODY"], letter.body) == ("none", b"it is broken")
    assert letter.properties["DLQ_ORIGIN_QUEUE_OFFSET"] == "17"


def test_dead_letter_error_of_any_length_and_with_separators_fits_a_property():
    letter = dead_letter_of(bad(problem="a\x01b\x02c\ud800" + "x" * 100_000), "dead")
    assert letter.properties["DLQ_ERROR"].startswith("a b c\\ud800xxx")
    letter.properties_text(letter.message_id)


def test_dead_letter_of_a_dead_letter_lists_all_topics_and_never_returns_to_one():
    first = dead_letter_of(bad(), "dead")
    again = bad(first.properties_text(first.message_id))
    again = again._replace(queue=MessageQueue("dead", "broker-a", 0))
    second = dead_letter_of(again, "grave")
    assert second.properties["DLQ_TOPICS"] == "orders,dead"
    assert second.properties["DLQ_ORIGIN_TOPIC"] == "dead"
    with pytest.raises(DeadLetterLoop, match=r"in orders before \(property DLQ_TOPICS: orders\)"):
        dead_letter_of(again, "orders")
