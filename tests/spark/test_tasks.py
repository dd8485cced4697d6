"""Read tasks: rows, shared clients, moved brokers and losses."""

import json
import os
import random
import subprocess
import sys
from contextlib import ExitStack
from types import SimpleNamespace

import pytest
from support.servers.middleboxes import Nat
from support.spark.source_queries import options_for, queue_of, schema_of, send
from support.suite.clocks import Clock

from rmq_spark.client.api.admin_api import NameServerApi
from rmq_spark.client.concurrency import retry_timer
from rmq_spark.client.reading import readable_chunks
from rmq_spark.client.reading.log_files import LogFiles
from rmq_spark.spark.errors import BrokersAway, DataLoss
from rmq_spark.spark.plan.partition_planner import OffsetRange
from rmq_spark.spark.read import record_chunks
from rmq_spark.spark.read.partition_reader import addresses_of, read_range
from rmq_spark.spark.schemas.columns import arrow_schema_of
from rmq_spark.wire.bodies.clients import BrokerData
from rmq_spark.wire.bodies.operators import ClusterInfo
from rocketpoll.broker.embedded import EmbeddedBroker

SCHEMA = arrow_schema_of(schema_of("body binary, queueOffset bigint"))


def bodies(options, topic, start, end):
    batches = read_range(options, SCHEMA, OffsetRange(queue_of(topic), start, end))
    return [body for batch in batches for body in batch.column("body").to_pylist()]


def test_partition_is_read_from_start_to_before_end(rocketpoll_broker, rocketpoll_topic):
    send(rocketpoll_broker, rocketpoll_topic, 0, *"abcdef")
    options = options_for(rocketpoll_broker, rocketpoll_topic)
    assert bodies(options, rocketpoll_topic, 1, 4) == [b"b", b"c", b"d"]
    assert bodies(options, rocketpoll_topic, 3, 3) == []


def test_rows_are_the_same_whether_pulled_or_read_from_files(
    monkeypatch, rocketpoll_broker, rocketpoll_topic
):
    found, read = {}, []
    real = LogFiles.read_records
    monkeypatch.setattr(LogFiles, "read_records", lambda *args: read.append(1) or real(*args))
    dice = random.Random(1)  # compressible bodies would be too short to be read from files
    sent = [dice.randbytes(9_000).hex() for _ in range(9)]
    send(rocketpoll_broker, rocketpoll_topic, 0, *sent)
    for local in ("true", "false"):
        options = options_for(rocketpoll_broker, rocketpoll_topic, localFiles=local)
        found[local] = bodies(options, rocketpoll_topic, 1, 8)
        assert bool(read) is (local == "true")
        read.clear()
    assert found["true"] == found["false"]
    assert len(found["true"]) == 7


def test_partition_read_again_gives_the_same_rows(rocketpoll_broker, rocketpoll_topic):
    send(rocketpoll_broker, rocketpoll_topic, 0, *"abc")
    options = options_for(rocketpoll_broker, rocketpoll_topic)
    first = bodies(options, rocketpoll_topic, 0, 3)
    send(rocketpoll_broker, rocketpoll_topic, 0, "d")
    assert bodies(options, rocketpoll_topic, 0, 3) == first


@pytest.mark.parametrize(
    ("more", "found"), [({"tags": "x || z"}, [b"a", b"c"]), ({"sql": "n = '2'"}, [b"b"])]
)
def test_broker_filters_the_messages_of_a_task(rocketpoll_broker, rocketpoll_topic, more, found):
    for body, tag, n in (("a", "x", "1"), ("b", "y", "2"), ("c", "z", "3")):
        send(rocketpoll_broker, rocketpoll_topic, 0, body, tags=tag, properties={"n": n})
    assert (
        bodies(options_for(rocketpoll_broker, rocketpoll_topic, **more), rocketpoll_topic, 0, 3)
        == found
    )


READS = """
import sys
import pyarrow as pa
from rmq_spark.spark.options.options import read_options
from rmq_spark.spark.plan.partition_planner import OffsetRange
from rmq_spark.spark.schemas.columns import BROKER_NAME, DEFAULT_COLUMNS
from rmq_spark.spark.read.partition_reader import read_range
from rmq_spark.wire.chunk import COLUMNS
from rmq_spark.wire.message_queue import MessageQueue

def type_of(name):
    kind = pa.string() if name == BROKER_NAME else COLUMNS[name].type
    return pa.timestamp("us", "UTC") if pa.types.is_timestamp(kind) else kind

address, topic, broker_name = sys.argv[1:]
options = read_options({"namesrvAddr": address, "topic": topic})
schema = pa.schema([pa.field(name, type_of(name)) for name in DEFAULT_COLUMNS])
batches = list(read_range(options, schema, OffsetRange(MessageQueue(topic, broker_name, 0), 0, 3)))
assert sum(batch.num_rows for batch in batches) == 3, batches
assert "pandas" not in sys.modules
"""


def test_spark_task_does_not_import_pandas(rocketpoll_broker, rocketpoll_topic):
    """Arrow imports an installed pandas as soon as it converts Python objects."""
    send(rocketpoll_broker, rocketpoll_topic, 0, *"abc", tags="t", keys="k")
    place = rocketpoll_broker.address, rocketpoll_topic, queue_of("T").broker_name
    run = subprocess.run(
        [sys.executable, "-c", READS, *place], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr


def test_client_is_shared_by_tasks_with_equal_access(rocketpoll_broker, rocketpoll_topic):
    access = options_for(rocketpoll_broker, rocketpoll_topic).access
    client = addresses_of(access)
    assert addresses_of(options_for(rocketpoll_broker, "another").access) is client
    assert (
        addresses_of(options_for(rocketpoll_broker, "another", accessKey="a", secretKey="b").access)
        is not client
    )


def test_forked_python_worker_gets_its_own_client(rocketpoll_broker, rocketpoll_topic):
    access = options_for(rocketpoll_broker, rocketpoll_topic).access
    client = addresses_of(access)
    child = os.fork()
    if child == 0:
        os._exit(0 if addresses_of(access) is not client else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_partition_read_resumes_when_its_broker_returns(monkeypatch):
    monkeypatch.setattr(readable_chunks, "BATCH_BYTES_MIN", 1)
    with EmbeddedBroker() as broker:
        broker.create_topic("T", 1)
        send(broker, "T", 0, *"abc")
        rows = read_range(options_for(broker, "T"), SCHEMA, OffsetRange(queue_of("T"), 0, 5))
        assert next(rows).column("body").to_pylist() == [b"a", b"b", b"c"]
        broker.restart()
        send(broker, "T", 0, *"de")
        assert [body for batch in rows for body in batch.column("body").to_pylist()] == [b"d", b"e"]


def test_partition_read_restarts_its_timeout_after_each_success(monkeypatch):
    monkeypatch.setattr(readable_chunks, "BATCH_BYTES_MIN", 1)
    clock, away, bodies = Clock(), ExitStack(), ["c", "b"]

    def sleep(seconds):
        clock.now += seconds
        away.close()
        if len(bodies) == left:
            send(broker, "T", 0, bodies.pop())

    monkeypatch.setattr(retry_timer, "time", SimpleNamespace(monotonic=clock, sleep=sleep))
    with EmbeddedBroker() as broker, away:
        broker.create_topic("T", 1)
        options = options_for(broker, "T", retryTimeoutMs="600000")
        send(broker, "T", 0, "a")
        rows = read_range(options, SCHEMA, OffsetRange(queue_of("T"), 0, 3))
        assert next(rows).column("body").to_pylist() == [b"a"]
        for left in (2, 1):
            away.enter_context(broker.away())
            clock.now += 1_000
            assert next(rows).column("body").to_pylist() == [b"c" if left == 1 else b"b"]


def test_partition_read_follows_a_moved_broker(monkeypatch):
    monkeypatch.setattr(readable_chunks, "BATCH_BYTES_MIN", 1)
    clock = Clock()

    def sleep(seconds):
        clock.now += seconds

    monkeypatch.setattr(retry_timer, "time", SimpleNamespace(monotonic=clock, sleep=sleep))
    with EmbeddedBroker() as before, EmbeddedBroker() as now:
        for broker, sent in ((before, "a"), (now, "ab")):
            broker.create_topic("T", 1)
            send(broker, "T", 0, *sent)
        rows = read_range(
            options_for(before, "T", retryTimeoutMs="5000"),
            SCHEMA,
            OffsetRange(queue_of("T"), 0, 2),
        )
        assert next(rows).column("body").to_pylist() == [b"a"]
        place = BrokerData(broker_name="broker-a", broker_addrs={0: now.address})
        told = ClusterInfo(broker_addr_table={"broker-a": place})
        monkeypatch.setattr(NameServerApi, "cluster_info", lambda _: told)
        with before.away():
            assert next(rows).column("body").to_pylist() == [b"b"]


@pytest.mark.timeout(20)  # a pull alone may wait 30 s
def test_connection_dropped_by_a_nat_between_tasks_is_replaced(monkeypatch):
    monkeypatch.setattr(record_chunks, "IDLE_CONNECTION_SECONDS", 0.0)
    with EmbeddedBroker() as broker, Nat(broker.address) as nat:
        broker.create_topic("T", 1)
        send(broker, "T", 0, *"abc")
        name = queue_of("T").broker_name
        addresses = json.dumps({name: nat.address})
        options = options_for(broker, "T", brokerAddresses=addresses, requestTimeoutMs="1000")
        assert bodies(options, "T", 0, 1) == [b"a"]
        nat.forget()
        assert bodies(options, "T", 1, 3) == [b"b", b"c"]
        assert nat.count == 2


def test_unavailable_broker_fails_the_read_task():
    with EmbeddedBroker() as broker:
        broker.create_topic("T", 1)
        options = options_for(broker, "T", retryTimeoutMs="0", requestTimeoutMs="200")
    with pytest.raises(BrokersAway, match="broker broker-a has not answered for 0 ms"):
        list(read_range(options, SCHEMA, OffsetRange(queue_of("T"), 0, 5)))


@pytest.mark.parametrize("fails", [True, False])
def test_range_missing_in_a_queue_is_data_loss(rocketpoll_broker, rocketpoll_topic, fails, caplog):
    send(rocketpoll_broker, rocketpoll_topic, 0, *"abc")
    options = options_for(rocketpoll_broker, rocketpoll_topic, failOnDataLoss=str(fails).lower())
    if fails:
        with pytest.raises(DataLoss, match="ends at offset 3, and the batch was planned to 9"):
            bodies(options, rocketpoll_topic, 1, 9)
    else:
        assert bodies(options, rocketpoll_topic, 1, 9) == [b"b", b"c"]
        assert "messages are lost, continuing without them: queue 0" in caplog.text


def test_tasks_say_once_that_a_broker_is_away_and_once_that_it_is_back(caplog):
    """A worker reads many ranges one after the other, which would log a hundred lines."""
    with EmbeddedBroker() as broker:
        broker.create_topic("T", 3)
        for number in range(3):
            send(broker, "T", number, "a")
        options = options_for(broker, "T", retryTimeoutMs="0")
        pieces = [OffsetRange(queue_of("T", number), 0, 1) for number in range(3)]
        for _ in range(2):
            caplog.clear()
            with broker.away():
                for piece in pieces:
                    with pytest.raises(BrokersAway):
                        list(read_range(options, SCHEMA, piece))
            again = [each for piece in pieces for each in read_range(options, SCHEMA, piece)]
            assert sum(batch.num_rows for batch in again) == 3
            said = [each for each in caplog.messages if "reading from broker broker-a" in each]
            assert len(said) == 2
            assert said[0].startswith("reading from broker broker-a failed, retrying: ")
            assert said[1].startswith("reading from broker broker-a recovered after ")
