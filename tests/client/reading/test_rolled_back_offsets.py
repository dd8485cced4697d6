"""Readers of queues with gaps from rolled-back rows report no data loss."""

import json
import os
import time

import pytest
from support.spark.source_queries import options_for, schema_of
from support.spark.source_queries import query as query_of
from support.spark.streaming_engine import Crashed, Engine
from support.stores.small_store import open_store, read_all
from support.stores.staged_batches import roll_back_between

from rmq_spark.client.admin import arrow_reads
from rmq_spark.client.admin.admin import Admin
from rmq_spark.client.errors import ProtocolError
from rmq_spark.client.instance.instance import ClientInstance
from rmq_spark.client.message import Message
from rmq_spark.client.producer.producer import Producer
from rmq_spark.client.reading.bulk_pull import RawChunk
from rmq_spark.client.reading.readable_chunks import without_rolled_back
from rmq_spark.spark.batch_reader import BatchReader
from rmq_spark.spark.brokers.queue_client import mark_of
from rmq_spark.spark.errors import DataLoss, RecordFault
from rmq_spark.spark.plan.micro_batch_planner import NO_LIMITS
from rmq_spark.spark.plan.partition_planner import OffsetRange
from rmq_spark.spark.read import record_chunks
from rmq_spark.spark.read.partition_reader import addresses_of
from rmq_spark.spark.read.record_chunks import UnreadableRecord, pull_chunks
from rmq_spark.wire.message import record_layout as layout
from rmq_spark.wire.message.record import encode_record
from rmq_spark.wire.message_queue import MessageQueue
from rocketpoll import EmbeddedBroker, read_table
from rocketpoll.broker.store.queues.consume_queue import ENTRY_BYTES

LOG_BYTES, QUEUE_BYTES = 1 << 23, 6_000
QUEUE = MessageQueue("T", "broker-a", 0)
RECORD_BYTES_BEFORE_BODY = (
    layout.HEAD_BYTES + layout.STORE_TIMESTAMP_BYTES + 2 * layout.HOST_V4_BYTES + layout.TAIL_BYTES
)
SCHEMA = schema_of("body binary, queueOffset bigint")


@pytest.fixture(params=[QUEUE_BYTES, 2 * ENTRY_BYTES], ids=["one file", "small files"])
def queue_bytes(request):
    """Return the size of a queue's file; a gap may be larger."""
    return request.param


def open_files(directory, queue_bytes=QUEUE_BYTES):
    """Open the store without a broker."""
    return open_store(
        directory,
        clock=lambda: time.time_ns() // 1_000_000,
        mapped_file_size_commit_log=LOG_BYTES,
        mapped_file_size_consume_queue=queue_bytes,
    )


@pytest.fixture
def store(tmp_path, queue_bytes):
    store = open_files(tmp_path, queue_bytes)
    yield store
    store.shutdown()


def broker_on(directory, queue_bytes=QUEUE_BYTES):
    return EmbeddedBroker(
        directory,
        mappedFileSizeCommitLog=LOG_BYTES,
        mappedFileSizeConsumeQueue=queue_bytes,
        maxHashSlotNum=64,
        maxIndexNum=256,
    )


@pytest.fixture
def gap(store):
    """Write messages around a gap of rolled-back offsets, and close the store."""
    sent = roll_back_between(store)
    there = {each.queue_offset: each for each in read_all(store, "T", 0)}
    offsets = [each for each in range(max(there)) if each not in there]
    store.shutdown()
    return sent, offsets, there


def test_read_table_over_rolled_back_rows_has_all_other_messages(tmp_path, queue_bytes, gap):
    sent, offsets, _ = gap
    with broker_on(tmp_path, queue_bytes) as broker:
        table = read_table("T", broker.address)
        assert table["body"].to_pylist() == [text.encode() for text in sent]
        with ClientInstance(broker.address) as instance:
            first, last = offsets[0], offsets[-1]
            ask = (instance.api, broker.address, QUEUE)
            assert without_rolled_back(*ask, [(first, last + 1), (last, last + 1)]) == []
            assert without_rolled_back(*ask, [(first - 1, last + 3), (90, 92)]) == [
                (first - 1, first),
                (last + 1, last + 3),
                (90, 92),
            ]
            absent = MessageQueue("absent", "broker-a", 0)
            assert without_rolled_back(instance.api, broker.address, absent, [(0, 2)]) == [(0, 2)]


@pytest.mark.parametrize("most", [1, 2, 1_000])
def test_query_reads_past_rolled_back_offsets_with_any_batch_size(tmp_path, queue_bytes, gap, most):
    sent, _, _ = gap
    with broker_on(tmp_path, queue_bytes) as broker:
        query = Engine(broker.address, topic="T", maxOffsetsPerTrigger=most)
        query.start()
        query.run()
        query.stop()
        assert [row.body for row in query.rows()] == sent
        assert max(map(len, query.sink.values())) <= most
        for end in map(json.loads, query.offsets):  # the last message identifies a recreated topic
            offsets, stored = (end[part]["T"]["broker-a"] for part in ("offsets", "stored"))
            assert stored.keys() == {queue for queue, offset in offsets.items() if offset}


@pytest.mark.parametrize("more", [{"minPartitions": "40"}, {"maxRecordsPerPartition": "2"}])
@pytest.mark.parametrize("is_stream", [True, False])
def test_tasks_know_their_topic_wherever_a_queue_is_cut(
    tmp_path, queue_bytes, gap, more, is_stream
):
    """The last message of a task's range identifies its topic, so no range may end
    within the gap."""
    sent, _, there = gap
    with broker_on(tmp_path, queue_bytes) as broker:
        if is_stream:
            with query_of(broker, "T", startingOffsets="earliest", **more) as batches:
                start = batches.initial_offset()
                cut = batches.plan_ranges(start, batches.latest_offset(start, NO_LIMITS))
        else:
            given = {"namesrvAddr": broker.address, "topic": "T", **more}
            cut = [
                piece for part in BatchReader(given, SCHEMA).partitions() for piece in part.ranges
            ]
        assert [piece.start for piece in cut] == [0, *(piece.end for piece in cut[:-1])]
        assert {piece.end - 1 for piece in cut} <= there.keys()
        for piece in cut:
            last = there[piece.end - 1]
            assert piece.last_stored_ms == last.store_timestamp
            assert piece.last_mark == mark_of(last.body_crc, last.born_timestamp)
        rows = [sum(piece.start <= at < piece.end for at in there) for piece in cut]
        assert sum(rows) == len(sent)
        assert max(rows) <= int(more.get("maxRecordsPerPartition", len(sent)))
        assert len(cut) >= len(sent) / 2


@pytest.mark.parametrize("how", ["null", "skip", "fail"])
def test_damaged_record_past_rolled_back_offsets_counts_once(
    tmp_path, queue_bytes, gap, caplog, how
):
    _, offsets, there = gap
    behind = there[offsets[-1] + 1]
    with broker_on(tmp_path, queue_bytes) as broker:
        file = tmp_path / "commitlog" / f"{behind.physical_offset // LOG_BYTES * LOG_BYTES:020}"
        with file.open("r+b") as log:  # damage the length of its body
            at = behind.physical_offset % LOG_BYTES + RECORD_BYTES_BEFORE_BODY - 4
            os.pwrite(log.fileno(), bytes([0x7F]), at)
        query = Engine(broker.address, topic="T", localFiles="false", onBadRecord=how)
        query.start()
        what = rf"offset {behind.queue_offset} of "
        if how == "fail":
            with pytest.raises(RecordFault, match=what):
                query.run()
        else:
            query.run()
            query.stop()
            rows = {row.queue_offset: row.body for row in query.rows()}
            bad = {behind.queue_offset} if how == "skip" else set()
            assert rows.keys() == there.keys() - bad
            assert [at for at, body in rows.items() if body is None] == (
                [behind.queue_offset] if how == "null" else []
            )
            assert caplog.text.count("cannot be read") == 1
        with pytest.raises(ProtocolError, match=what):
            read_table("T", broker.address)


def test_unreadable_record_past_rolled_back_offsets_gives_its_own_offset(
    tmp_path, queue_bytes, gap, monkeypatch
):
    """One record is reported, not one for each offset without a message."""
    _, offsets, there = gap
    behind = offsets[-1] + 1
    records = {at: bytearray(encode_record(each)) for at, each in there.items() if at <= behind}
    records[behind][4] ^= 1  # damage the magic
    answer = RawChunk(b"".join(records.values()), None, behind + 1)
    monkeypatch.setattr(record_chunks, "BulkPull", lambda **_: [answer])
    monkeypatch.setattr(arrow_reads, "BulkPull", lambda *_: [answer])
    with broker_on(tmp_path, queue_bytes) as broker:
        options = options_for(broker, "T")
        chunks = pull_chunks(
            addresses_of(options.access), options, OffsetRange(QUEUE, 0, behind + 1)
        )
        assert next(chunks)[1] == behind
        with pytest.raises(UnreadableRecord) as raised:
            next(chunks)
        assert raised.value.bad.queue_offset == behind
        with pytest.raises(ProtocolError, match=f"offset {behind} "):
            read_table("T", broker.address)


@pytest.fixture
def first_gap(store):
    """Fill a queue that begins with rolled-back offsets."""
    sent = roll_back_between(store, before=0)
    assert read_all(store, "T", 0)[0].queue_offset > 0
    store.shutdown()
    return sent


@pytest.mark.parametrize("is_crash", [False, True])
def test_query_waiting_at_an_empty_queue_reads_past_rolled_back_offsets(
    tmp_path, queue_bytes, first_gap, is_crash
):
    """The query saw the queue empty before the batch was rolled back."""
    with broker_on(tmp_path, queue_bytes) as broker:
        query = Engine(broker.address, topic="T")
        query.start()
        query.offsets.append(
            json.dumps({"v": 1, "offsets": {"T": {"broker-a": {"0": 0}}}, "began": {}})
        )
        query.commits = 1
        if is_crash:
            query.crash_at = "partitions"
            with pytest.raises(Crashed):
                query.run()
            query.start()
        query.run()
        query.stop()
        assert [row.body for row in query.rows()] == first_gap


def test_spark_query_waiting_at_an_empty_queue_survives_rolled_back_rows(tmp_path, queue_bytes):
    """The first rows of a queue are rolled back, after messages of another queue were read."""
    with broker_on(tmp_path, queue_bytes) as broker:
        Admin(broker.address).create_topic("T", 2)
        with Producer("P", broker.address) as producer:
            producer.send(Message("T", b"first"), MessageQueue("T", "broker-a", 1))
        query = Engine(broker.address, topic="T")
        query.start()
        query.run()
        query.stop()
    store = open_files(tmp_path, queue_bytes)
    sent = roll_back_between(store, before=0)
    assert read_all(store, "T", 0)[0].queue_offset > 0
    store.shutdown()
    with broker_on(tmp_path, queue_bytes) as broker:
        query.options["namesrvAddr"] = broker.address
        query.start()
        query.run()
        query.stop()
        assert [row.body for row in query.rows()] == ["first", *sent]
        found = read_table("T", broker.address)["body"].to_pylist()
        assert sorted(found) == sorted(text.encode() for text in ["first", *sent])


def test_message_lost_beside_rolled_back_offsets_is_data_loss(tmp_path, queue_bytes, gap):
    _, offsets, there = gap
    place = there[offsets[-1] + 1].physical_offset
    file = tmp_path / "commitlog" / f"{place // LOG_BYTES * LOG_BYTES:020}"
    with file.open("r+b") as log:
        os.pwrite(log.fileno(), bytes(4), place % LOG_BYTES)
    with broker_on(tmp_path, queue_bytes) as broker:
        what = rf"offsets {offsets[-1] + 1} to {offsets[-1] + 1}\b"
        with pytest.raises(ProtocolError, match=what):
            read_table("T", broker.address)
        query = Engine(broker.address, topic="T")
        query.start()
        with pytest.raises(DataLoss, match=what):
            query.run()
