"""Bad messages in Spark queries: damaged bodies, decompression bombs, other tags, invalid times."""

import os
import time
import zlib
from datetime import UTC, datetime

import pytest
from support.programs.python_programs import ROOT, python_program
from support.spark.source_queries import queue_of, schema_of
from support.spark.streaming_engine import Engine, assert_read, send

from rmq_spark.client.api.broker_api import build_send_request
from rmq_spark.client.instance.instance import ClientInstance
from rmq_spark.client.message import Message
from rmq_spark.client.reading import record_batches
from rmq_spark.spark.errors import RecordFault
from rmq_spark.spark.options.options import read_options
from rmq_spark.spark.plan.partition_planner import OffsetRange
from rmq_spark.spark.read.partition_reader import read_range
from rmq_spark.spark.schemas.columns import arrow_schema_of
from rmq_spark.wire.codes import MessageSysFlag
from rmq_spark.wire.compression import compress_body
from rmq_spark.wire.headers.members import SendMessageRequestHeader
from rocketpoll import EmbeddedBroker

FLIPPED = (
    "queue 0 of T on broker-a cannot be read: its body is not the one that was stored: its CRC "
    "differs"
)


@pytest.fixture
def flipped(tmp_path):
    """Run a broker on whose disk a byte of the third body is changed."""
    with EmbeddedBroker(tmp_path) as broker:
        broker.create_topic("T", 1)
        bodies = send(broker, "T", 5)
        log = tmp_path / "commitlog" / f"{0:020d}"
        at = log.read_bytes().index(bodies[2].encode())
        with log.open("r+b") as file:
            os.pwrite(file.fileno(), b"X", at)
        yield broker, bodies


def test_changed_body_ends_the_query_with_the_messages_place(flipped):
    broker, _ = flipped
    query = Engine(broker.address, subscribe="T")
    query.start()
    with pytest.raises(
        RecordFault, match=f"the message at offset 2 of {FLIPPED}. Set option onBadRecord"
    ):
        query.run()


def test_flipped_bit_with_on_bad_record_skip_omits_the_row(flipped, caplog):
    broker, bodies = flipped
    query = Engine(broker.address, subscribe="T", onBadRecord="skip")
    query.start()
    query.run()
    assert_read(query, bodies, without=bodies[2:3])
    assert "offset 2 of queue 0 of T on broker-a cannot be read, and it is skipped" in caplog.text


def test_flipped_bit_with_on_bad_record_null_gives_a_null_body(flipped, caplog):
    broker, bodies = flipped
    query = Engine(broker.address, subscribe="T", onBadRecord="null")
    query.start()
    query.run()
    assert [row.body for row in query.rows()] == [*bodies[:2], None, *bodies[3:]]
    assert [row.queue_offset for row in query.rows()] == list(range(5))
    assert (
        "cannot be read, and its body is null: its body is not the one that was stored"
        in caplog.text
    )


def test_flipped_bit_without_check_crc_is_read_as_it_is(flipped):
    broker, bodies = flipped
    query = Engine(broker.address, subscribe="T", checkCrc="false")
    query.start()
    query.run()
    changed = f"X{bodies[2][1:]}"
    assert_read(query, [*bodies[:2], changed, *bodies[3:]])


def send_raw(broker, count, body, *, born_ms=None, sys_flag=0):
    """Send a message a number of times, with unusual fields."""
    born_ms = time.time_ns() // 1_000_000 if born_ms is None else born_ms
    header = SendMessageRequestHeader("feeder", "T", "TBW102", 4, 0, sys_flag, born_ms, 0, "")
    instance = ClientInstance(broker.address)
    try:
        for _ in range(count):
            assert (
                instance.connections.request(
                    broker.address, build_send_request(header, body), 3_000
                ).code
                == 0
            )
    finally:
        instance.shutdown()


def rows_of(broker, columns, end, **options):
    """Return the rows of the first queue of a topic."""
    options = read_options({"namesrvAddr": broker.address, "topic": "T", **options})
    batches = read_range(
        options, arrow_schema_of(schema_of(columns)), OffsetRange(queue_of("T"), 0, end)
    )
    return [row for batch in batches for row in batch.to_pylist()]


@pytest.fixture
def broker():
    with EmbeddedBroker() as broker:
        broker.create_topic("T", 1)
        yield broker


def test_tag_filter_separates_tags_with_equal_hash_codes(broker):
    with broker.producer() as producer:
        for tag in ("Aa", "BB", "C", "Aa"):
            producer.send(Message("T", tag.encode(), tags=tag))
    query = Engine(broker.address, subscribe="T", tags="Aa")
    query.start()
    query.run()
    assert [row.body for row in query.rows()] == ["Aa", "Aa"]
    assert rows_of(broker, "tags string", 4, tags="BB||C") == [{"tags": "BB"}, {"tags": "C"}]


def test_born_timestamp_beyond_all_dates_is_null_and_the_query_continues(broker):
    """Producers set this time; here a producer has used nanoseconds."""
    times = (1_767_225_600_000_000_000, 1_767_225_600_000, -(1 << 60))
    for born_ms in times:
        send_raw(broker, 1, b"a", born_ms=born_ms)
    rows = rows_of(broker, "bornTimestamp timestamp, queueOffset bigint", 3)
    assert [row["bornTimestamp"] for row in rows] == [None, datetime(2026, 1, 1, tzinfo=UTC), None]


def test_record_batches_of_highly_compressed_bodies_are_bounded(broker, monkeypatch):
    monkeypatch.setattr(record_batches, "SLICE_BYTES", 1 << 20)
    plain = bytes(300_000)
    body = compress_body(plain, MessageSysFlag.COMPRESSION_ZLIB)
    send_raw(broker, 40, body, sys_flag=MessageSysFlag.COMPRESSED | MessageSysFlag.COMPRESSION_ZLIB)
    options = read_options({"namesrvAddr": broker.address, "topic": "T"})
    batches = read_range(
        options, arrow_schema_of(schema_of("body binary")), OffsetRange(queue_of("T"), 0, 40)
    )
    sizes = [(batch.num_rows, batch.nbytes) for batch in batches]
    assert sum(rows for rows, _ in sizes) == 40
    assert max(size for _, size in sizes) < 1.5 * (1 << 20)


READS_BOMBS = """
import resource, sys
from support.spark.source_queries import queue_of, schema_of
from rmq_spark.spark.options.options import read_options
from rmq_spark.spark.plan.partition_planner import OffsetRange
from rmq_spark.spark.schemas.columns import arrow_schema_of
from rmq_spark.spark.read.partition_reader import read_range

def rows_of(count):
    piece = OffsetRange(queue_of("T"), 0, count)
    options = {"namesrvAddr": sys.argv[1], "topic": "T"}
    batches = read_range(read_options(options), arrow_schema_of(schema_of("body binary")), piece)
    return sum(batch.num_rows for batch in batches)

def peak_bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10

rows_of(1)  # all that is imported is there now
before = peak_bytes()
print(rows_of(1_200), peak_bytes() - before)
"""


def test_task_that_inflates_a_gigabyte_needs_memory_of_a_few_batches(broker):
    plain = bytes(1_000_000)
    body = zlib.compress(plain, 9)
    assert len(plain) > 900 * len(body)
    flags = MessageSysFlag.COMPRESSED | MessageSysFlag.COMPRESSION_ZLIB
    send_raw(broker, 1_200, body, sys_flag=flags)
    done = python_program(READS_BOMBS, broker.address, cwd=ROOT / "tests")
    assert done.returncode == 0, done.stderr
    rows, more_bytes = map(int, done.stdout.split())
    assert rows == 1_200
    assert more_bytes < 12 * record_batches.SLICE_BYTES
