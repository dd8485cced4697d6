"""Entries of rolled back rows."""

from hypothesis import given
from hypothesis import strategies as st

from rmq_spark.wire.message.properties import tags_code
from rmq_spark.wire.message.record_layout import BLANK_SIZE, ROLLED_BACK
from rocketpoll.broker.store.queues.consume_queue import ENTRY_STRUCT


@given(st.text())
def test_rolled_back_code_is_the_hash_of_no_tag(tags):
    assert tags_code(tags) not in (ROLLED_BACK, -ROLLED_BACK)


def test_blank_entry_places_its_mark_like_any_entry():
    assert ENTRY_STRUCT.unpack(ENTRY_STRUCT.pack(0, BLANK_SIZE, ROLLED_BACK))[1:] == (
        BLANK_SIZE,
        ROLLED_BACK,
    )
