"""Drafts of records, once sealed, equal the wire encoding."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.messages.stored_messages import int64s, messages, sealed
from support.stores.small_store import message

from rmq_spark.errors import RecordError
from rmq_spark.wire.message.hosts import Host, parse_host
from rmq_spark.wire.message.record_layout import has_valid_checksum
from rocketpoll.broker.store.append.record_encoding import RecordDraft, draft_of

V6 = parse_host("[2001:db8::1]:5000")


def as_the_wire_encodes_it(sent, queue_offset, physical_offset, store_timestamp):
    whole = dataclasses.replace(
        sent,
        queue_offset=queue_offset,
        physical_offset=physical_offset,
        store_timestamp=store_timestamp,
    )
    return sealed(whole)


def prepared(sent):
    draft = draft_of(sent)
    draft.prepare()
    return draft


@given(messages(), st.tuples(int64s, int64s, int64s))
def test_sealed_record_draft_equals_the_wire_encoding(sent, place):
    draft = prepared(sent)
    record = draft.encode(*place)
    assert record == as_the_wire_encodes_it(sent, *place)
    assert draft.size == len(record)
    assert has_valid_checksum(record)


def test_record_draft_body_may_be_a_memoryview():
    draft = RecordDraft("T", 0, memoryview(b"a body and more")[2:6], b"", 0, bytes(8), bytes(8))
    draft.prepare()
    assert b"body" in draft.encode(0, 0, 0)


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
def test_invalid_record_draft_is_refused_like_by_the_wire(change, needed):
    with pytest.raises(RecordError, match=needed):
        prepared(dataclasses.replace(message("x"), **change)).encode(0, 0, 0)
