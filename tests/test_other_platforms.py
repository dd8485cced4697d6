"""The broker and the client on macOS, the client on Windows: no missing names are used."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rocketpoll import EmbeddedBroker

TESTS = Path(__file__).parent
SECONDS_MAX = 300
ON_MACOS = """
from support.suite.other_platforms import become_darwin

become_darwin()
import sys
from rocketpoll import Admin, EmbeddedBroker, Message, Producer

for first in range(2):
    with EmbeddedBroker(sys.argv[1], flushDiskType="SYNC_FLUSH") as broker:
        with Producer("makers", broker.address) as producer:
            producer.send(Message("orders", b"%d" % first))
        with Admin(broker.address) as admin:
            bodies = admin.read_table("orders")["body"].to_pylist()
        assert sorted(bodies) == [b"%d" % each for each in range(first + 1)]
print("done")
"""
ON_WINDOWS = """
import click, numpy, orjson, pyarrow  # others make these for each system
from pyspark import TaskContext
from pyspark.sql.types import BinaryType, StructField, StructType

from support.suite.other_platforms import become_windows

become_windows()
import sys
import rocketpoll.aio
from rmq_spark.cli.main import main
from rmq_spark.client.consumer.settings import LitePullSettings
from rmq_spark.spark import batch_reader, stream_reader, writer
from rmq_spark.spark.data_source import RocketPollDataSource
from rmq_spark.wire.bodies.clients import MessageModel
from rocketpoll import Admin, ConsumeFromWhere, LitePullConsumer, Message, Producer

address, directory = sys.argv[1:]
with Producer("makers", address) as producer:
    for number in range(20):
        producer.send(Message("orders", b"%d" % number))
    producer.send(Message("orders", bytes(3_000_000)))
settings = LitePullSettings(
    consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
    message_model=MessageModel.BROADCASTING,
    local_offset_directory=__import__("pathlib").Path(directory),
)
bodies = []
consumer = LitePullConsumer("takers", address, settings=settings)
consumer.subscribe("orders")
with consumer:
    while len(bodies) < 21:
        bodies += [message.body for message in consumer.poll(timeout_ms=1_000)]
    consumer.commit()
assert sorted(bodies)[1:] == sorted(b"%d" % number for number in range(20))
with Admin(address) as admin:
    assert admin.read_table("orders").num_rows == 21
options = {"namesrvAddr": address, "topic": "orders"}
schema = StructType([StructField("body", BinaryType())])
reader = RocketPollDataSource({**options, "localFiles": "true"}).reader(schema)
batches = [batch for part in reader.partitions() for batch in reader.read(part)]
assert sum(batch.num_rows for batch in batches) == 21
sink = RocketPollDataSource(options).writer(schema, overwrite=False)
TaskContext(  # as a worker of Spark begins a task
    stageId=0, partitionId=0, attemptNumber=0, taskAttemptId=0, localProperties={}
)
sink.commit([sink.write(iter(batches))])
with Admin(address) as admin:
    assert admin.read_table("orders").num_rows == 42
assert main(["topic", "list", "--namesrv", address]) == 0
print("done")
"""


def run(program, *arguments):
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent)])},
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.stdout.endswith("done\n"), done.stderr[-3_000:]


def test_embedded_broker_stores_messages_without_the_names_that_macos_lacks(tmp_path):
    run(ON_MACOS, tmp_path / "store")


def test_client_and_source_work_without_the_names_that_windows_lacks(tmp_path):
    with EmbeddedBroker() as broker:
        run(ON_WINDOWS, broker.address, tmp_path)


@pytest.mark.deep
@pytest.mark.parametrize(
    "tests", ["tests/embedded/test_embedded_broker.py", "tests/client/conformance"]
)
def test_suite_of_embedded_broker_and_client_passes_as_on_macos(tests, tmp_path):
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"),
            *("-p", "support.suite.other_platforms", tests),
        ],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent)]),
            "ROCKETPOLL_PLATFORM": "darwin",
            "TMPDIR": str(tmp_path),
        },
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
        timeout=2 * SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3_000:]
