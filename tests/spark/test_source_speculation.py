"""Speculative copies of source tasks give the same rows, and none twice."""

from collections import Counter

import pytest
from support.spark.source_fixture import SourceRoom
from support.spark.speculation import ON_A_CLUSTER, waiting

from rmq_spark.spark.data_source import RocketPollDataSource

MESSAGES, QUEUES = 200, 4
COLUMNS = "queueId,queueOffset,body"

pytestmark = ON_A_CLUSTER


@pytest.fixture
def slow(spark, cluster, tmp_path, copies):
    """Return the name of a source in which the first copy of one task reads all its rows and never
    ends."""
    wait = waiting(copies.directory)

    def slowed(reader):
        original = type(reader).read

        def read(self, partition):
            yield from original(self, partition)
            wait()

        reader.__class__ = type("SlowReader", (type(reader),), {"read": read})
        return reader

    class SlowSource(RocketPollDataSource):  # nested, so that it is pickled by value
        @classmethod
        def name(cls):
            return "rocketpoll_slow"

        def reader(self, schema):
            return slowed(super().reader(schema))

        def streamReader(self, schema):  # noqa: N802  # name in Spark's interface
            return slowed(super().streamReader(schema))

    spark.dataSource.register(SlowSource)
    room = SourceRoom(spark, cluster, tmp_path, SlowSource.name())
    yield room
    room.close()


@pytest.fixture
def topic(source):
    topic = source.cluster.topic(QUEUES)
    source.cluster.send(topic, *range(MESSAGES), queues=QUEUES)
    return topic


def places(rows):
    return Counter((row.queueId, row.queueOffset, bytes(row.body)) for row in rows)


def test_speculative_task_copies_of_a_batch_read_yield_each_row_once(source, slow, topic, copies):
    rows = slow.load(topic=topic, columns=COLUMNS).collect()
    assert places(rows) == places(source.load(topic=topic, columns=COLUMNS).collect())
    assert len(places(rows)) == len(rows) == MESSAGES
    copies.assert_one()


def test_speculative_task_copies_of_a_stream_batch_yield_each_row_once(source, slow, topic, copies):
    batches = slow.run(slow.stream(topic=topic, columns=COLUMNS, startingOffsets="earliest"))
    assert places(batches.rows) == places(source.load(topic=topic, columns=COLUMNS).collect())
    assert len(places(batches.rows)) == len(batches.rows) == MESSAGES
    copies.assert_one()
