"""The fast decoder of usual records matches `record`, and leaves all other records to it."""

import dataclasses
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.messages.wire_strategies import stored_messages
from support.suite.selection import count

from rmq_spark.errors import RecordError
from rmq_spark.wire.codes import MessageSysFlag
from rmq_spark.wire.message import record_layout as layout
from rmq_spark.wire.message.hosts import parse_host
from rmq_spark.wire.message.record import (
    StoredMessage,
    decode_plain_record,
    decode_record,
    encode_record,
)
from rmq_spark.wire.message.record_layout import EMPTY_CHECKSUM

MESSAGE = StoredMessage(
    topic="orders",
    body=b"hello",
    properties_text="UNIQ_KEY\x01A\x02TAGS\x01red\x02",
    queue_id=3,
    queue_offset=7,
    physical_offset=1_234_567,
    flag=-5,
    sys_flag=MessageSysFlag.TRANSACTION_PREPARED.value,
    born_timestamp=1_700_000_000_000,
    born_host=parse_host("10.0.0.1:5000"),
    store_timestamp=1_700_000_000_001,
    store_host=parse_host("10.0.0.2:10911"),
    reconsume_times=2,
    prepared_transaction_offset=99,
)
V6 = parse_host("[::1]:5000")


def as_record_reads(data, position):
    """Return the result of `record` in the form of `decode_plain_record`; None for
    refused records."""
    try:
        stored = decode_record(data, position)
    except RecordError:
        return None
    size = int.from_bytes(data[position : position + 4], "big")
    *values, _, _ = (getattr(stored, each.name) for each in dataclasses.fields(stored))
    return (position + size, *values)


def test_plain_record_decoder_returns_every_field():
    data = b"before" + encode_record(MESSAGE) + b"behind"
    found = decode_plain_record(data, 6)
    assert found == as_record_reads(data, 6)
    assert found[1:] == dataclasses.astuple(MESSAGE)[:-2]


def test_record_checksum_is_not_returned_as_a_property():
    text = MESSAGE.properties_text
    sealed = dataclasses.replace(MESSAGE, properties_text=text + EMPTY_CHECKSUM.decode())
    assert decode_plain_record(encode_record(sealed), 0)[3] == text


@pytest.mark.parametrize(
    "changes",
    [
        {"topic": "T" * 200, "magic": layout.MAGIC_V2},
        {"born_host": V6, "sys_flag": MessageSysFlag.BORN_HOST_V6.value},
        {"store_host": V6, "sys_flag": MessageSysFlag.STORE_HOST_V6.value},
        {"sys_flag": MessageSysFlag.COMPRESSED.value},
    ],
    ids=["long-topic", "born-host", "store-host", "compressed"],
)
def test_unusual_record_is_left_to_the_full_decoder(changes):
    record = encode_record(dataclasses.replace(MESSAGE, **changes))
    assert decode_record(record).topic
    assert decode_plain_record(record, 0) is None


@given(stored_messages(), st.binary(max_size=3), st.binary(max_size=3))
def test_plain_record_decoder_equals_the_full_decoder_or_declines(message, before, behind):
    data = before + encode_record(message) + behind
    found = decode_plain_record(data, len(before))
    assert found is None or found == as_record_reads(data, len(before))


def test_damaged_plain_record_is_never_read_differently():
    chance, read = random.Random(20), 0
    whole = encode_record(MESSAGE)
    for _ in range(count("ROCKETPOLL_USUAL_RECORDS", 20_000, wide=1_000_000)):
        data = bytearray(whole + whole)
        for _ in range(chance.randint(1, 3)):
            at = chance.choice((chance.randrange(len(data)), chance.randrange(8)))
            data[at] = chance.choice((0, 1, 127, 128, 255, chance.randrange(256)))
        cut = bytes(data[: chance.choice((len(data), chance.randrange(len(data))))])
        found = decode_plain_record(cut, 0)
        assert found is None or found == as_record_reads(cut, 0)
        read += found is not None
    assert read > 0


def test_truncated_plain_record_is_not_read():
    record = encode_record(MESSAGE)
    assert [decode_plain_record(record[:size], 0) for size in range(len(record))] == [None] * len(
        record
    )
