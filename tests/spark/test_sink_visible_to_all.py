"""Exactly once for every consumer: what ordinary consumers see with visibleTo=all."""

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from support.spark.source_fixture import complaint

pytestmark = pytest.mark.deep

ALL = {"delivery": "exactly_once", "visibleTo": "all"}
EARLIEST = {"startingOffsets": "earliest"}


@pytest.fixture(autouse=True)
def _ours_alone(kind):
    if kind != "rocketpoll":
        pytest.skip("a RocketMQ broker knows no staged batches")


def plain(sink, count, topic=None):
    """Return the bodies that a Java client reads; check their number."""
    return sorted(message.body.decode() for message in sink.messages(count, topic))


def forget_the_end_of_batch_0(checkpoint):
    """Remove the entry of batch 0 from the commit log, as if a crash had come before it."""
    for name in ("0", ".0.crc"):
        (checkpoint / "commits" / name).unlink(missing_ok=True)


def test_retried_batch_is_seen_once_by_plain_consumers(sink):
    rows = sink.stream(topic=sink.filled(*range(20)), columns="body", **EARLIEST)
    expected = sorted(str(number) for number in range(20))
    sink.copy(rows, **ALL)
    assert plain(sink, 20) == expected
    forget_the_end_of_batch_0(sink.checkpoint("sink"))
    sink.copy(rows.repartition(3), **ALL)
    assert plain(sink, 20) == expected
    assert sink.bodies(topic=sink.topic, isolation="committed") == expected


def test_deleted_checkpoint_of_a_visible_to_all_query_is_detected(sink):
    rows = sink.stream(topic=sink.filled("a", "b"), columns="body", **EARLIEST)
    sink.copy(rows, **ALL)
    others = {**ALL, "checkpointLocation": str(sink.checkpoint("other"))}
    with pytest.raises((PySparkException, StreamingQueryException)) as raised:
        sink.copy(rows, **others)
    assert "If the checkpoint was deleted, restore it" in complaint(raised)
    assert plain(sink, 2) == ["a", "b"]
    sink.copy(rows, **others, sinkName="another")
    assert plain(sink, 4) == ["a", "a", "b", "b"]


def test_visible_to_all_rows_of_several_topics_are_one_batch(sink):
    topics = [sink.cluster.topic(4) for _ in range(2)]
    rows = sink.stream(topic=sink.filled(*range(10)), columns="body", **EARLIEST)
    to = f"if(cast(cast(body as string) as int) % 2 = 0, '{topics[0]}', '{topics[1]}') as topic"
    sink.copy(rows.selectExpr("body", to), topic=None, sinkName=topics[0], **ALL)
    assert [plain(sink, 5, topic) for topic in topics] == [list("02468"), list("13579")]
