import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stores import message

from broker.store.record_draft import BatchDraft, RecordDraft, UniformBatch, draft_of
from rmq_spark.errors import RecordError
from rmq_spark.wire import record_layout as layout
from rmq_spark.wire.hosts import Host, parse_host
from rmq_spark.wire.record import StoredMessage, encode_record
from rmq_spark.wire.record_checksum import is_intact, seal_record, with_empty_checksum

V6 = parse_host("[2001:db8::1]:5000")
int32s, int64s = st.integers(-(1 << 31), (1 << 31) - 1), st.integers(-(1 << 63), (1 << 63) - 1)
hosts = st.builds(
    Host, st.binary(min_size=4, max_size=4) | st.binary(min_size=16, max_size=16), st.integers(0, 1 << 16)
)
properties = st.lists(
    st.sampled_from(["a\x01b", "KEYS\x01k l", "__CRC32#\x010123456789", "x__CRC32#\x01y", "标\x01签", ""])
).map("\x02".join)


@st.composite
def messages(draw):
    born_host, store_host = draw(hosts), draw(hosts)
    topic = draw(st.text("Ta%é", min_size=1, max_size=100))
    return StoredMessage(
        topic=topic,
        body=draw(st.binary(max_size=50)),
        properties_text=draw(properties),
        queue_id=draw(int32s),
        flag=draw(int32s),
        sys_flag=draw(st.sampled_from([0, 4, 0x100])) | 0x10 * born_host.is_v6 | 0x20 * store_host.is_v6,
        born_timestamp=draw(int64s),
        born_host=born_host,
        store_host=store_host,
        reconsume_times=draw(int32s),
        prepared_transaction_offset=draw(int64s),
        magic=layout.MAGIC_V2 if len(topic.encode()) > 127 else draw(st.sampled_from(MAGICS)),
    )


MAGICS = [layout.MAGIC_V1, layout.MAGIC_V2]


def as_the_wire_encodes_it(sent, queue_offset, physical_offset, store_timestamp):
    whole = dataclasses.replace(
        sent,
        queue_offset=queue_offset,
        physical_offset=physical_offset,
        store_timestamp=store_timestamp,
        properties_text=with_empty_checksum(sent.properties_text),
    )
    record = bytearray(encode_record(whole))
    seal_record(record)
    return bytes(record)


def prepared(sent):
    draft = draft_of(sent)
    draft.prepare()
    return draft


@given(messages(), st.tuples(int64s, int64s, int64s))
def test_a_sealed_draft_is_the_record_that_the_wire_makes_of_the_message(sent, place):
    draft = prepared(sent)
    record = draft.sealed(*place)
    assert record == as_the_wire_encodes_it(sent, *place)
    assert draft.size == len(record)
    assert is_intact(record)


@given(st.lists(messages(), max_size=4))
def test_a_batch_is_its_records_back_to_back(sent):
    batch = BatchDraft([prepared(each) for each in sent])
    expected, position = b"", 1000
    for number, each in enumerate(sent):
        expected += as_the_wire_encodes_it(each, 7 + number, position + len(expected), 99)
    assert batch.sealed(7, position, 99) == expected
    assert batch.size == len(expected)


def test_a_body_may_be_a_piece_of_what_came_over_the_network():
    draft = RecordDraft("T", 0, memoryview(b"a body and more")[2:6], b"", 0, bytes(8), bytes(8))
    draft.prepare()
    assert b"body" in draft.sealed(0, 0, 0)


@pytest.mark.parametrize(
    ("change", "needed"),
    [
        ({"sys_flag": 0x10}, "IPv6 bits"),
        ({"born_host": V6}, "IPv6 bits"),
        ({"topic": "x" * 128}, "MAGIC_V2"),
        ({"magic": 7}, "MAGIC_V1 or MAGIC_V2"),
        ({"properties_text": "x" * 32_767}, "at most 32767 bytes"),
        ({"properties_text": "\ud800"}, "text in UTF-8"),
        ({"flag": 1 << 31}, "an integer of 32 bits"),
        ({"born_timestamp": 1 << 63}, "an integer of 64 bits"),
        ({"born_host": Host(b"abc", 1)}, "4 or 16 bytes"),
    ],
)
def test_what_cannot_be_stored_is_named_as_the_wire_names_it(change, needed):
    with pytest.raises(RecordError, match=needed):
        prepared(dataclasses.replace(message("x"), **change)).sealed(0, 0, 0)


@given(messages(), st.lists(st.tuples(int32s, st.binary(max_size=50), properties), min_size=1, max_size=5))
def test_messages_that_differ_little_become_the_same_records_as_each_by_itself(common, parts):
    each = [
        dataclasses.replace(common, flag=flag, body=body, properties_text=text) for flag, body, text in parts
    ]
    drafts = list(map(draft_of, each))
    for draft in drafts:
        draft.prepare()
    expected = BatchDraft(drafts)
    batch = UniformBatch(draft_of(common), [(flag, body, text.encode()) for flag, body, text in parts])
    assert batch.size == expected.size
    assert batch.sizes == [draft.size for draft in drafts]
    assert batch.sealed(5, 700, 900) == expected.sealed(5, 700, 900)
