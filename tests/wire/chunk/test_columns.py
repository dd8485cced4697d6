"""Columns of a decoded chunk equal the values of its messages decoded one by one."""

import dataclasses
import datetime
import struct

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.messages.wire_strategies import stored_messages
from support.rocketmq import java_vectors

from rmq_spark.errors import BodyError, RecordError
from rmq_spark.wire.chunk import COLUMNS, DEFAULT_COLUMNS, RecordChunk, chunk_columns
from rmq_spark.wire.codes import MessageSysFlag
from rmq_spark.wire.compression import compress_body
from rmq_spark.wire.message.record import (
    StoredMessage,
    decode_record,
    decode_records,
    encode_record,
)

RAW_COLUMNS = [name for name in COLUMNS if name != "body"]


def one_at_a_time(message):
    """Return the value of each column for a message."""
    return {
        "topic": message.topic,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "keys": message.keys,
        "tags": message.tags,
        "body": message.plain_body(),
        "bornTimestamp": message.born_timestamp,
        "storeTimestamp": message.store_timestamp,
        "msgId": message.message_id,
        "offsetMsgId": message.offset_message_id,
        "properties": message.properties,
        "flag": message.flag,
        "sysFlag": message.sys_flag,
        "bornHost": str(message.born_host),
        "storeHost": str(message.store_host),
        "reconsumeTimes": message.reconsume_times,
        "commitLogOffset": message.physical_offset,
        "preparedTransactionOffset": message.prepared_transaction_offset,
    }


def as_rows(batch):
    columns = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        column.validate(full=True)
        values = column.view(pa.int64()) if pa.types.is_timestamp(column.type) else column
        columns[name] = (
            [dict(value) for value in values.to_pylist()]
            if name == "properties"
            else values.to_pylist()
        )
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def check_against_one_at_a_time(data, sizes=None):
    rows = as_rows(chunk_columns(RecordChunk(data, sizes), COLUMNS))
    expected = [one_at_a_time(message) for message in decode_records(data)]
    assert rows == expected


@given(st.lists(stored_messages(), max_size=6))
def test_chunk_columns_equal_single_message_values(messages):
    records = [encode_record(message) for message in messages]
    data = b"".join(records)
    check_against_one_at_a_time(data)
    check_against_one_at_a_time(data, np.array([len(record) for record in records], np.int32))


@given(st.lists(stored_messages(compressed=True), min_size=1, max_size=6))
def test_chunk_columns_inflate_compressed_bodies(messages):
    def stored(message):
        kind = MessageSysFlag(message.sys_flag) & MessageSysFlag.COMPRESSION_MASK
        if not message.sys_flag & MessageSysFlag.COMPRESSED:
            return message
        body = compress_body(message.body, kind or MessageSysFlag.COMPRESSION_ZLIB)
        return dataclasses.replace(message, body=body)

    batch = chunk_columns(
        RecordChunk(b"".join(encode_record(stored(each)) for each in messages)), ["body"]
    )
    assert batch["body"].to_pylist() == [message.body for message in messages]


@pytest.mark.parametrize("version", java_vectors.VERSIONS)
def test_chunk_columns_of_java_records(version):
    records = [bytes.fromhex(vector["record"]) for vector in java_vectors.load(version, "records")]
    readable = [record for record in records if _inflates(record)]
    assert len(readable) > 100
    check_against_one_at_a_time(b"".join(readable))
    RecordChunk(b"".join(records)).check_crcs()


def _inflates(record):
    """Return whether the body can be inflated: some vectors have the flag and a plain body."""
    try:
        decode_record(record).plain_body()
    except BodyError:
        return False
    return True


A_RECORD = encode_record(StoredMessage("T", b"hello", "TAGS\x01A\x02KEYS\x01k\x02TAGS\x01B\x02"))


def test_only_requested_chunk_columns_are_built():
    chunk = RecordChunk(A_RECORD)
    batch = chunk_columns(chunk, ["queueOffset", "body"])
    assert batch.schema.names == ["queueOffset", "body"]
    assert "properties" not in chunk.__dict__  # the property strings were never gathered
    chunk_columns(chunk, ["tags"])
    assert "properties" in chunk.__dict__


def test_default_chunk_columns_are_those_of_the_source():
    batch = chunk_columns(RecordChunk(A_RECORD), DEFAULT_COLUMNS)
    assert batch.schema.types == [COLUMNS[name].type for name in DEFAULT_COLUMNS]
    assert batch["tags"].to_pylist() == ["B"]
    assert batch["storeTimestamp"].to_pylist() == [
        datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
    ]


def test_empty_chunk_has_every_column():
    batch = chunk_columns(RecordChunk(b""), COLUMNS)
    assert batch.num_rows == 0
    assert batch.schema.names == list(COLUMNS)


def test_invalid_utf8_in_a_chunk_is_replaced_as_for_single_messages():
    data = A_RECORD.replace(b"KEYS\x01k", b"KEYS\x01\xff")
    check_against_one_at_a_time(data + A_RECORD)


def test_body_that_does_not_inflate_is_named_by_its_record():
    message = StoredMessage("T", b"no zlib stream", sys_flag=MessageSysFlag.COMPRESSED)
    data = A_RECORD + encode_record(message)
    chunk = RecordChunk(data)
    with pytest.raises(
        RecordError, match=rf"chunk at byte {len(A_RECORD)}: .*\(record 1\).*one whole ZLIB"
    ):
        chunk_columns(chunk, ["body"])
    assert chunk_columns(chunk, RAW_COLUMNS).num_rows == 2


def test_inflated_bytes_of_a_chunk_of_bombs_are_bounded(monkeypatch):
    monkeypatch.setattr("rmq_spark.wire.chunk.columns.CHUNK_PLAIN_BYTES_MAX", 1500)
    body = compress_body(bytes(1000), MessageSysFlag.COMPRESSION_ZLIB)
    record = encode_record(StoredMessage("T", body, sys_flag=MessageSysFlag.COMPRESSED))
    assert chunk_columns(RecordChunk(record), ["body"])["body"].to_pylist() == [bytes(1000)]
    with pytest.raises(RecordError, match=r"at most 1500 bytes of bodies inflated \(record 2\)"):
        chunk_columns(RecordChunk(record * 3), ["body"])


def test_chunk_column_read_alone_equals_one_among_all():
    data = A_RECORD * 3
    whole = chunk_columns(RecordChunk(data), COLUMNS)
    for name in COLUMNS:
        assert chunk_columns(RecordChunk(data), [name])[name].equals(whole[name])


def test_store_record_is_big_endian():
    assert struct.unpack_from(">i", A_RECORD)[0] == len(A_RECORD)
