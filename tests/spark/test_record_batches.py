"""Records become Arrow batches of Spark's types."""

import logging

import pyarrow as pa
import pytest
from support.spark.source_queries import queue_of, schema_of, send

from rmq_spark.client.instance.instance import ClientInstance
from rmq_spark.client.reading import record_batches
from rmq_spark.client.reading.bulk_pull import BulkPull
from rmq_spark.client.reading.record_batches import RecordBatchConverter
from rmq_spark.spark.bodies.bad_records import BadRecordHandler
from rmq_spark.spark.errors import RecordFault
from rmq_spark.spark.options.values import OnBadRecord
from rmq_spark.spark.schemas.columns import DDL_TYPES, arrow_schema_of, ddl_of
from rmq_spark.wire.chunk import RecordChunk
from rmq_spark.wire.codes import MessageSysFlag
from rmq_spark.wire.compression import compress_body
from rmq_spark.wire.message import record_layout as layout
from rmq_spark.wire.message.properties import encode_properties
from rmq_spark.wire.message.record import StoredMessage, encode_record
from rmq_spark.wire.message_queue import MessageQueue

ZLIB = MessageSysFlag.COMPRESSED | MessageSysFlag.COMPRESSION_ZLIB
BODIES = arrow_schema_of(schema_of("body binary, queueOffset bigint"))


def batches_of(schema, how="fail", **more):
    return RecordBatchConverter(schema, BadRecordHandler(OnBadRecord(how)), **more)


def chunk_of(*bodies, **more):
    """Return a record for each body; one of None cannot be inflated, a number is damaged."""
    records = []
    for at, body in enumerate(bodies):
        flag, stored, crc = 0, body, None
        if body is None:
            flag, stored = ZLIB, b"no stream"
        elif isinstance(body, int):
            stored, crc = b"damaged", body
        records.append(
            encode_record(
                StoredMessage(
                    **{"topic": "T", "body": stored, "sys_flag": flag, "queue_offset": at, **more},
                    body_crc=crc,
                )
            )
        )
    return RecordChunk(b"".join(records))


def rows_of(batches, chunk):
    return [row for batch in batches.convert(chunk, "broker-a") for row in batch.to_pylist()]


@pytest.mark.parametrize(
    "names", [tuple(DDL_TYPES), tuple(reversed(DDL_TYPES)), ("body",), ("brokerName",)]
)
def test_record_batches_have_exactly_sparks_types(rocketpoll_broker, rocketpoll_topic, names):
    send(
        rocketpoll_broker, rocketpoll_topic, 0, "a", "b", keys="k", tags="t", properties={"p": "1"}
    )
    schema = arrow_schema_of(schema_of(ddl_of(names)))
    instance = ClientInstance(rocketpoll_broker.address)
    try:
        instance.routes.route(rocketpoll_topic)
        pulled = BulkPull(
            instance.api, rocketpoll_broker.address, "G", queue_of(rocketpoll_topic), 0, 2
        )
        [chunk] = pulled
        [rows] = batches_of(schema).convert(RecordChunk(chunk.records, chunk.sizes), "broker-a")
    finally:
        instance.shutdown()
    assert rows.schema.equals(schema)
    assert rows.num_rows == 2
    if "brokerName" in names:
        assert rows.column("brokerName").to_pylist() == ["broker-a", "broker-a"]
    if "properties" in names:
        assert ("p", "1") in rows.column("properties").to_pylist()[0]
        assert rows.column("storeTimestamp").type == pa.timestamp("us", "UTC")
        stored = rocketpoll_broker.messages(rocketpoll_topic)[0].store_timestamp
        assert rows.column("storeTimestamp")[0].value == stored * 1000


@pytest.mark.parametrize(("bad", "said"), [(None, "one whole ZLIB stream"), (1, "its CRC differs")])
def test_unreadable_body_fails_or_is_null_or_skipped_as_on_bad_record_says(bad, said, caplog):
    chunk = chunk_of(b"a", bad, b"c")
    with pytest.raises(
        RecordFault, match=f"the message at offset 1 of queue 0 of T on broker-a .*{said}"
    ):
        rows_of(batches_of(BODIES), chunk)
    found = rows_of(batches_of(BODIES, "null"), chunk)
    assert found == [
        {"body": body, "queueOffset": at} for at, body in enumerate((b"a", None, b"c"))
    ]
    assert [row["body"] for row in rows_of(batches_of(BODIES, "skip"), chunk)] == [b"a", b"c"]
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2


def test_record_batches_read_bodies_only_where_requested():
    offsets = arrow_schema_of(schema_of("queueOffset bigint"))
    assert rows_of(batches_of(offsets), chunk_of(None, 1)) == [
        {"queueOffset": 0},
        {"queueOffset": 1},
    ]
    assert len(rows_of(batches_of(BODIES, checks_crc=False), chunk_of(1))) == 1


@pytest.mark.parametrize("slice_bytes", [1, 10, 1 << 20])
def test_slices_have_the_same_rows_as_the_whole(monkeypatch, slice_bytes):
    monkeypatch.setattr(record_batches, "SLICE_BYTES", slice_bytes)
    records = []
    for at in range(20):
        flag = ZLIB if at % 3 else 0
        body = f"body {at}".encode() if at != 7 else b"broken"
        stored = (
            compress_body(body, MessageSysFlag.COMPRESSION_ZLIB) if at % 3 and at != 7 else body
        )
        records.append(encode_record(StoredMessage("T", stored, sys_flag=flag, queue_offset=at)))
    rows = rows_of(batches_of(BODIES, "null"), RecordChunk(b"".join(records)))
    expected = [None if at == 7 else f"body {at}".encode() for at in range(20)]
    assert rows == [{"body": body, "queueOffset": at} for at, body in enumerate(expected)]


def test_damaged_body_is_null_in_its_own_slice_only(monkeypatch):
    monkeypatch.setattr(record_batches, "SLICE_BYTES", 1)
    bodies = [
        compress_body(f"body {at}".encode(), MessageSysFlag.COMPRESSION_ZLIB) for at in range(6)
    ]
    records = [
        StoredMessage("T", body, sys_flag=ZLIB, queue_offset=at) for at, body in enumerate(bodies)
    ]
    for bad in range(6):
        chunk = [bytearray(encode_record(each)) for each in records]
        chunk[bad][layout.BODY_CRC_AT] ^= 1
        rows = rows_of(batches_of(BODIES, "null"), RecordChunk(b"".join(chunk)))
        expected = [None if at == bad else f"body {at}".encode() for at in range(6)]
        assert [row["body"] for row in rows] == expected


@pytest.mark.parametrize("slice_bytes", [1, 1 << 20])
def test_tags_are_compared_by_their_text(monkeypatch, slice_bytes):
    monkeypatch.setattr(record_batches, "SLICE_BYTES", slice_bytes)
    records = [
        encode_record(
            StoredMessage(
                "T",
                compress_body(tag.encode(), MessageSysFlag.COMPRESSION_ZLIB),
                sys_flag=ZLIB,
                properties_text=encode_properties({"TAGS": tag} if tag else {}),
            )
        )
        for tag in ("Aa", "BB", "", "x")
    ]
    chunk = RecordChunk(b"".join(records))
    assert [row["body"] for row in rows_of(batches_of(BODIES, tags=["x", "Aa"]), chunk)] == [
        b"Aa",
        b"x",
    ]
    tags = arrow_schema_of(schema_of("tags string"))
    assert rows_of(batches_of(tags, tags=["BB"]), chunk) == [{"tags": "BB"}]


def test_bad_body_of_an_unwanted_tag_is_ignored():
    bad = chunk_of(None, properties_text=encode_properties({"TAGS": "BB"}))
    assert rows_of(batches_of(BODIES, tags=["Aa"]), bad) == []


@pytest.mark.parametrize(
    ("born_ms", "is_time"),
    [
        (-62_135_596_800_000, True),
        (-62_135_596_800_001, False),
        (253_402_300_799_999, True),
        (253_402_300_800_000, False),
        (-(1 << 63), False),
        ((1 << 63) - 1, False),
    ],
)
def test_times_that_spark_cannot_show_are_null(born_ms, is_time):
    born = arrow_schema_of(schema_of("bornTimestamp timestamp"))
    [batch] = batches_of(born).convert(chunk_of(b"a", born_timestamp=born_ms), "broker-a")
    [value] = batch.column(0)
    assert value.value == (born_ms * 1000 if is_time else None)


def test_unreadable_record_becomes_a_row_of_its_position():
    schema = arrow_schema_of(schema_of(ddl_of(tuple(DDL_TYPES))))
    [batch] = batches_of(schema, "null").convert_unreadable(queue_of("T", 3), 17)
    [row] = batch.to_pylist()
    known = {name: value for name, value in row.items() if value is not None}
    assert known == {"topic": "T", "brokerName": "broker-a", "queueId": 3, "queueOffset": 17}
    assert list(batches_of(schema, "skip").convert_unreadable(queue_of("T"), 17)) == []


def test_record_batches_take_topic_and_queue_from_the_known_queue():
    """A bit of the record may have flipped in fields without a CRC."""
    places = pa.schema(
        [("topic", pa.string()), ("queueId", pa.int32()), ("brokerName", pa.string())]
    )
    chunk = chunk_of(b"a", b"b", topic="U", queue_id=7)
    [batch] = batches_of(places).convert(chunk, queue_of("T", 3))
    assert batch.to_pylist() == [{"topic": "T", "queueId": 3, "brokerName": "broker-a"}] * 2
    [batch] = batches_of(places, namespace="eu").convert(chunk, queue_of("eu%T", 3))
    assert batch.column("topic").to_pylist() == ["T", "T"]
    [batch] = batches_of(places).convert(chunk, queue_of("%LMQ%T"))
    assert batch.column("topic").to_pylist() == ["U", "U"]


def test_constants_of_a_queue_fit_chunks_of_any_length():
    """Constant columns are sliced from those of earlier chunks, also after a change of
    the queue."""
    schema = arrow_schema_of(schema_of("topic string, brokerName string, queueId int, body binary"))
    batches = batches_of(schema)
    for count in (3, 1, 9, 0, 40, 2):
        for queue_id in range(12):
            queue = MessageQueue("T", f"broker-{queue_id % 5}", queue_id)
            found = [
                row
                for batch in batches.convert(chunk_of(*[b"a"] * count), queue)
                for row in batch.to_pylist()
            ]
            expected = {"topic": "T", "brokerName": queue.broker_name, "queueId": queue_id}
            assert found == [{**expected, "body": b"a"}] * count
