"""Tasks of which Spark runs a second copy beside the first: rows are the same, and none is there twice.

Only a cluster speculates, and a second copy runs on another host than the first: `make cluster` has two.
"""

import time
from collections import Counter

import pytest
from broker_kinds import wait_until
from pyspark import TaskContext
from source_rooms import SourceRoom
from spark_sessions import is_submitted

from rmq_spark.spark.source import RocketPollDataSource

MESSAGES, QUEUES = 200, 4
SLOW = 1
"""The partition whose first copy waits for the second."""

GIVEN_UP_SECONDS = 120
COLUMNS = "queueId,queueOffset,body"

pytestmark = pytest.mark.skipif(not is_submitted(), reason="only a cluster speculates: make cluster")


@pytest.fixture
def topic(source):
    if source.spark.sparkContext.getConf().get("spark.speculation") != "true":
        pytest.skip("this run is without spark.speculation: make cluster has one with it")
    topic = source.cluster.topic(QUEUES)
    source.cluster.send(topic, *range(MESSAGES), queues=QUEUES)
    return topic


@pytest.fixture
def copies(tmp_path):
    """Where second copies say that they have read all their rows."""
    directory = tmp_path / "copies"
    directory.mkdir()
    return directory


@pytest.fixture
def slow(spark, cluster, tmp_path, copies):
    """The source, but that the first copy of one task has read all its rows and does not come to its end."""

    def slowed(reader):
        original = type(reader).read

        def read(self, partition):
            yield from original(self, partition)
            context = TaskContext.get()
            if context.partitionId() != SLOW:
                return
            if context.attemptNumber():
                (copies / f"of stage {context.stageId()}").touch()
                return
            given_up = time.monotonic() + GIVEN_UP_SECONDS
            while not any(copies.iterdir()):
                assert time.monotonic() < given_up, "there was no second copy"
                time.sleep(0.02)
            time.sleep(GIVEN_UP_SECONDS)  # until the second copy counts, and this one is ended

        reader.__class__ = type("SlowReader", (type(reader),), {"read": read})
        return reader

    class SlowSource(
        RocketPollDataSource
    ):  # within, so that workers, who do not know this file, get it by value
        @classmethod
        def name(cls):
            return "rocketpoll_slow"

        def reader(self, schema):
            return slowed(super().reader(schema))

        def streamReader(self, schema):  # noqa: N802  # Spark's name
            return slowed(super().streamReader(schema))

    spark.dataSource.register(SlowSource)
    room = SourceRoom(spark, cluster, tmp_path, SlowSource.name())
    yield room
    room.close()


def places(rows):
    return Counter((row.queueId, row.queueOffset, bytes(row.body)) for row in rows)


def beaten(spark):
    """The tasks so far, as stage and partition, whose second copy was done first, by Spark's word."""
    store = spark.sparkContext._jsc.sc().statusStore().store()
    tasks = spark._jvm.java.lang.Class.forName("org.apache.spark.status.TaskDataWrapper")
    found = {}
    for task in store.view(tasks).iterator():
        ends = found.setdefault((task.stageId(), task.index()), set())
        ends.add((task.speculative(), task.status()))
    return {where for where, ends in found.items() if ends >= {(True, "SUCCESS"), (False, "KILLED")}}


def assert_second_copies(source, before):
    """At least of the task that was slow; Spark hears a little later that the first copy has ended."""
    wait_until("a first copy that was ended", lambda: SLOW in {at for _, at in beaten(source.spark) - before})


def test_a_batch_read_has_the_rows_of_one_copy(source, slow, topic, copies):
    before = beaten(source.spark)
    rows = slow.load(topic=topic, columns=COLUMNS).collect()
    assert places(rows) == places(source.load(topic=topic, columns=COLUMNS).collect())
    assert len(places(rows)) == len(rows) == MESSAGES
    assert len(list(copies.iterdir())) == 1
    assert_second_copies(source, before)


def test_a_streams_batch_has_the_rows_of_one_copy(source, slow, topic, copies):
    before = beaten(source.spark)
    batches = slow.run(slow.stream(topic=topic, columns=COLUMNS, startingOffsets="earliest"))
    assert places(batches.rows) == places(source.load(topic=topic, columns=COLUMNS).collect())
    assert len(places(batches.rows)) == len(batches.rows) == MESSAGES
    assert len(list(copies.iterdir())) == 1
    assert_second_copies(source, before)
