"""Fields of a record are read without decoding all of it."""

import dataclasses

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.stores.small_store import message

from rmq_spark.errors import RecordError
from rmq_spark.wire.message import record_layout as layout
from rmq_spark.wire.message.hosts import parse_host
from rmq_spark.wire.message.properties import decode_properties
from rmq_spark.wire.message.record import encode_record
from rocketpoll.broker.store.records.fields import pattern_of, property_of, read_fields

V6 = parse_host("[::1]:9876")
pieces = st.sampled_from(
    [
        "TAGS\x01a",
        "TAGS\x01",
        "TAGS",
        "xTAGS\x01b",
        "TAGS\x01c\x01d",
        "KEYS\x01TAGS",
        "\x01x",
        "",
        "标\x01签",
    ]
)
texts = st.lists(pieces, max_size=6).map("\x02".join)


@example("xTAGS\x01b", "TAGS")
@given(texts, st.sampled_from(["TAGS", "KEYS", "标", "missing"]))
def test_property_of_equals_a_full_decode_of_the_properties(text, name):
    found = property_of(text.encode(), pattern_of(name))
    assert (found and found.decode()) == decode_properties(text).get(name)


@given(
    texts,
    st.booleans(),
    st.booleans(),
    st.sampled_from([layout.MAGIC_V1, layout.MAGIC_V2]),
    st.binary(),
)
def test_record_fields_read_at_a_glance_equal_the_decoded_ones(
    text, born_v6, store_v6, magic, before
):
    sent = dataclasses.replace(
        message("body", topic="%RETRY%g", queue_id=7),
        properties_text=text,
        queue_offset=1 << 40,
        store_timestamp=99,
        sys_flag=0x8 | 0x10 * born_v6 | 0x20 * store_v6,
        born_host=V6 if born_v6 else message("").born_host,
        store_host=V6 if store_v6 else message("").store_host,
        magic=magic,
    )
    record = encode_record(sent)
    expected = (b"%RETRY%g", 7, 1 << 40, sent.sys_flag, 99, text.encode())
    assert read_fields(before + record + b"more", len(before), len(record)) == expected
    assert read_fields(memoryview(record), 0, len(record)) == expected


MAGIC, BODY_LENGTH, TOPIC_LENGTH, PROPERTIES_LENGTH = range(4, 8), range(84, 88), [92], [94, 95]


@pytest.mark.parametrize("at", [*MAGIC, *BODY_LENGTH, *TOPIC_LENGTH, *PROPERTIES_LENGTH])
def test_read_fields_refuses_an_inconsistent_record(at):
    record = encode_record(message("body", tags="A"))
    for bit in range(8):
        damaged = bytearray(record)
        damaged[at] ^= 1 << bit
        with pytest.raises(RecordError):
            read_fields(bytes(damaged), 0, len(damaged))


def test_record_of_an_unexpected_size_is_refused():
    record = encode_record(message("body", tags="A"))
    with pytest.raises(RecordError, match="totalSize"):
        read_fields(record, 0, len(record) - 1)
    with pytest.raises(RecordError, match=f"a record of {len(record) + 4} bytes"):
        read_fields(record + b"more", 0, len(record) + 4)
