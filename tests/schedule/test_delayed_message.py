"""A delayed message keeps its topic, queue and fields."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.messages.wire_strategies import stored_messages
from support.stores.small_store import message

from rmq_spark.wire.message.properties import encode_properties
from rmq_spark.wire.message.record import decode_record, encode_record
from rocketpoll.broker.schedule.delayed_message import (
    WITHOUT_DELAY,
    UndeliverableMessage,
    to_real_topic,
    to_schedule_topic,
)


def test_scheduled_message_keeps_its_real_topic_and_queue():
    waiting = to_schedule_topic(
        message("x", topic="T", queue_id=3, tags="a", WAIT="false", DELAY="99"), 4
    )
    assert (waiting.topic, waiting.queue_id) == ("SCHEDULE_TOPIC_XXXX", 3)
    assert waiting.properties == {"TAGS": "a", "DELAY": "4", "REAL_TOPIC": "T", "REAL_QID": "3"}


def test_real_topic_property_of_a_producer_is_ignored():
    forged = message("x", topic="T", REAL_TOPIC="other", REAL_QID="7")
    assert to_real_topic(to_schedule_topic(forged, 1)).topic == "T"


def test_delivered_message_loses_its_delay_properties():
    back = to_real_topic(to_schedule_topic(message("x", topic="T", queue_id=3, tags="a"), 4))
    assert (back.topic, back.queue_id) == ("T", 3)
    assert back.properties == {"TAGS": "a"}


def test_delivered_message_keeps_a_producers_crc_property():
    named = {"__CRC32#": "0123456789", "a": "1"}
    assert to_real_topic(to_schedule_topic(message("x", **named), 1)).properties == named


def test_scheduled_retry_topic_of_a_long_group_uses_the_long_record():
    topic = "%RETRY%" + "g" * 200
    waiting = to_schedule_topic(message("x", topic=topic), 1)
    assert decode_record(encode_record(waiting)).topic == "SCHEDULE_TOPIC_XXXX"
    assert decode_record(encode_record(to_real_topic(waiting))).topic == topic


@given(stored_messages(), st.integers(1, 18), st.integers(0, (1 << 31) - 1))
def test_scheduled_and_delivered_message_keeps_all_other_fields(given_message, level, queue_id):
    original = dataclasses.replace(given_message, queue_id=queue_id)
    back = to_real_topic(to_schedule_topic(original, level))
    kept = {name: value for name, value in original.properties.items() if name not in WITHOUT_DELAY}
    assert back == dataclasses.replace(
        original, properties_text=encode_properties(kept), magic=back.magic
    )


@pytest.mark.parametrize(
    "properties",
    [
        {},
        {"REAL_TOPIC": "T"},
        {"REAL_QID": "1"},
        {"REAL_TOPIC": "T", "REAL_QID": "-1"},
        {"REAL_TOPIC": "T", "REAL_QID": "x"},
        {"REAL_TOPIC": "T", "REAL_QID": "\u0663"},
        {"REAL_TOPIC": "T", "REAL_QID": str(1 << 31)},
        {"REAL_TOPIC": "T", "REAL_QID": "9" * 5_000},
        {"REAL_TOPIC": "SCHEDULE_TOPIC_XXXX", "REAL_QID": "1"},
        {"REAL_TOPIC": "RMQ_SYS_TRANS_HALF_TOPIC", "REAL_QID": "0"},
    ],
)
def test_scheduled_message_without_a_real_topic_is_undeliverable(properties):
    with pytest.raises(UndeliverableMessage):
        to_real_topic(message("x", topic="SCHEDULE_TOPIC_XXXX", **properties))
