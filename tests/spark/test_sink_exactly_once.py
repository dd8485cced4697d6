"""Exactly-once writes in Spark, read with isolation=committed."""

import shutil

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from support.spark.sink_fixture import forget_the_end_of_batch_0
from support.spark.source_fixture import complaint

pytestmark = pytest.mark.deep

ONCE = {"delivery": "exactly_once"}
EARLIEST = {"startingOffsets": "earliest"}


def counting(sink, **more):
    """Return the committed bodies, read in a batch."""
    return sink.bodies(topic=sink.topic, isolation="committed", **more)


def test_repeated_exactly_once_batch_counts_once(sink):
    rows = sink.stream(topic=sink.filled(*range(20)), columns="body", **EARLIEST)
    expected = sorted(str(number) for number in range(20))
    sink.copy(rows, **ONCE)
    assert counting(sink) == expected
    forget_the_end_of_batch_0(sink.checkpoint("sink"))
    sink.copy(rows.repartition(3), **ONCE)
    assert len(sink.messages(40)) == 40
    assert counting(sink) == counting(sink, minPartitions=6) == expected
    committed = sink.stream(topic=sink.topic, isolation="committed", columns="body", **EARLIEST)
    assert sink.run(committed).bodies == expected


def test_deleted_checkpoint_of_an_exactly_once_query_is_detected(sink):
    rows = sink.stream(topic=sink.filled("a", "b"), columns="body", **EARLIEST)
    sink.copy(rows, **ONCE)
    sink.copy(rows, **ONCE)
    shutil.rmtree(sink.checkpoint("sink"))
    with pytest.raises((PySparkException, StreamingQueryException)) as raised:
        sink.copy(rows, **ONCE)
    assert "If the checkpoint was deleted, restore it" in complaint(raised)
    assert "with the same checkpointLocation has committed batch 0" in complaint(raised)
    assert counting(sink) == ["a", "b"]
    sink.copy(rows, **ONCE, checkpointLocation=str(sink.checkpoint("another")))
    assert counting(sink) == ["a", "a", "b", "b"]


def test_writes_within_foreach_batch_count_once_by_query_batch_and_name(sink):
    def send(rows, batch_id):
        for name in ("all", "again"):
            sink.write(rows, writeName=name, **ONCE)

    rows = sink.stream(topic=sink.filled("a", "b"), columns="body", **EARLIEST)
    for _ in range(2):
        writer = rows.writeStream.foreachBatch(send).trigger(availableNow=True)
        writer.option("checkpointLocation", str(sink.checkpoint("each"))).start().awaitTermination()
        forget_the_end_of_batch_0(sink.checkpoint("each"))
    assert len(sink.messages(8)) == 8
    assert counting(sink) == ["a", "a", "b", "b"]


def test_queries_that_cannot_be_exactly_once_are_refused_at_start(sink):
    rows = sink.stream(topic=sink.filled("a"), columns="body", **EARLIEST)
    counts = rows.groupBy("body").count().selectExpr("body")
    with pytest.raises((PySparkException, StreamingQueryException), match="output mode complete"):
        sink.copy(counts, mode="complete", **ONCE)
    with pytest.raises(
        (PySparkException, StreamingQueryException), match="needs one topic for all rows"
    ):
        sink.copy(rows, **ONCE, topic=None)
