"""Limits of a batch's size, and the number of its tasks."""

import pytest
from pyspark.sql.functions import spark_partition_id
from support.clients.conformance_clients import numbers

from rmq_spark.spark.stream_reader import HAS_LIMITS

pytestmark = pytest.mark.deep

EARLIEST = {"startingOffsets": "earliest", "columns": "body"}


def test_batch_size_is_limited_by_max_offsets_per_trigger(source):
    topic = source.cluster.topic(2)
    source.cluster.send(topic, *numbers(10), queues=2)
    batches = source.start(
        source.stream(topic=topic, maxOffsetsPerTrigger=4, **EARLIEST)
    ).caught_up()
    assert (batches.sizes, batches.bodies) == ([4, 4, 2], numbers(10))


def test_available_now_run_is_split_into_batches(source):
    topic = source.cluster.topic(2)
    source.cluster.send(topic, *numbers(10), queues=2)
    limits = {"maxOffsetsPerTrigger": 6, "minOffsetsPerTrigger": 6}
    more = {} if HAS_LIMITS else {"availableNow": True}
    batches = source.run(source.stream(topic=topic, **limits, **more, **EARLIEST))
    assert batches.bodies == numbers(10)
    assert batches.sizes == ([6, 4] if HAS_LIMITS else [10])


class TestTasks:
    @pytest.fixture
    def topic(self, source):
        topic = source.cluster.topic(2)
        source.cluster.send(topic, *numbers(8), queue_id=0)
        source.cluster.send(topic, "008", "009", queue_id=1)
        return topic

    def tasks(self, frame):
        return frame.select("body", "queueId", "queueOffset", spark_partition_id().alias("task"))

    def counted(self, rows):
        """Return the number of rows of each task; check that none is missing or repeated."""
        assert sorted(row.body.decode() for row in rows) == numbers(10)
        by_task = {}
        for row in rows:
            by_task.setdefault(row.task, []).append((row.queueId, row.queueOffset))
        assert all(offsets == sorted(offsets) for offsets in by_task.values())
        return [len(offsets) for _, offsets in sorted(by_task.items())]

    @pytest.mark.parametrize(
        ("limits", "sizes"),
        [
            ({"minPartitions": 5}, [2, 2, 2, 2, 2]),
            ({"maxPartitions": 1}, [10]),
            ({"minPartitions": 3, "maxPartitions": 3}, [4, 4, 2]),
        ],
        ids=str,
    )
    def test_min_partitions_divides_a_batch_read(self, source, topic, limits, sizes):
        assert self.counted(self.tasks(source.load(topic=topic, **limits)).collect()) == sizes

    def test_min_partitions_divides_a_stream_batch(self, source, topic):
        stream = source.stream(topic=topic, minPartitions=5, startingOffsets="earliest")
        batches = source.run(self.tasks(stream))
        assert self.counted(batches.rows) == [2, 2, 2, 2, 2]
