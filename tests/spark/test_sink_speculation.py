"""Two speculative copies of a sink task both send their rows: none is missing, duplicates have the
same ids, and exactly-once rows count once."""

from collections import Counter

import pytest
from support.spark.sink_fixture import registered_sink
from support.spark.speculation import ON_A_CLUSTER, SLOW, waiting

from rmq_spark.spark.write.reports import ROW_ID

ROWS, PARTITIONS = 100, 4

pytestmark = ON_A_CLUSTER


@pytest.fixture
def slow(spark, copies):
    """Return the name of a sink in which the first copy of one task sends its rows and never
    reports."""
    wait = waiting(copies.directory)

    def around(write, rows):
        sent = write(rows)
        wait()
        return sent

    return registered_sink(spark, "rocketpoll_slow_sink", around)


def assert_known_by_their_ids(sink):
    """Check that all rows of the slow task are there twice; Spark may have copied other tasks as
    well."""
    found = sink.load(topic=sink.topic, columns="body,properties").collect()
    times = Counter(row.properties[ROW_ID] for row in found)
    assert len(times) == ROWS
    assert {bytes(row.body) for row in found} == {b"%d" % number for number in range(ROWS)}
    assert len({(row.properties[ROW_ID], bytes(row.body)) for row in found}) == ROWS
    of_the_slow = {
        row_id: count for row_id, count in times.items() if row_id.split(":")[2] == str(SLOW)
    }
    assert len(of_the_slow) == ROWS // PARTITIONS
    assert min(of_the_slow.values()) == 2


def test_speculative_task_of_batch_write_repeats_rows_with_the_same_ids(sink, slow, copies):
    rows = sink.spark.range(0, ROWS, 1, PARTITIONS).selectExpr("cast(id as string) as body")
    sink.write(rows, into=slow)
    copies.assert_one()
    assert_known_by_their_ids(sink)


def test_speculative_task_of_stream_repeats_rows_with_the_same_ids(sink, slow, copies):
    topic = sink.filled(*range(ROWS))
    sink.copy(sink.stream(topic=topic, columns="body", startingOffsets="earliest"), into=slow)
    copies.assert_one()
    assert_known_by_their_ids(sink)


def assert_counts_once(sink):
    """Check that the rows of one copy of the slow task are committed, although both copies sent
    theirs."""
    found = sink.bodies(topic=sink.topic, isolation="committed")
    assert sorted(map(int, found)) == list(range(ROWS))
    assert sink.load(topic=sink.topic, columns="queueOffset").count() > ROWS


def test_speculative_task_of_exactly_once_batch_write_counts_once(sink, slow, copies):
    rows = sink.spark.range(0, ROWS, 1, PARTITIONS).selectExpr("cast(id as string) as body")
    sink.write(rows, into=slow, delivery="exactly_once")
    copies.assert_one()
    assert_counts_once(sink)


def test_speculative_task_of_exactly_once_stream_counts_once(sink, slow, copies):
    rows = sink.stream(topic=sink.filled(*range(ROWS)), columns="body", startingOffsets="earliest")
    sink.copy(rows, into=slow, delivery="exactly_once")
    copies.assert_one()
    assert_counts_once(sink)


@pytest.fixture
def _ours_alone(kind):
    if kind != "rocketpoll":
        pytest.skip("a RocketMQ broker knows no staged batches")


def assert_seen_once(sink):
    """Check that consumers see the rows of one copy of the slow task, although both copies staged
    theirs."""
    found = sorted(int(message.body) for message in sink.messages(ROWS))
    assert found == list(range(ROWS))


@pytest.mark.usefixtures("_ours_alone")
def test_speculative_task_of_staged_batch_write_is_visible_once(sink, slow, copies):
    rows = sink.spark.range(0, ROWS, 1, PARTITIONS).selectExpr("cast(id as string) as body")
    sink.write(rows, into=slow, delivery="exactly_once", visibleTo="all")
    copies.assert_one()
    assert_seen_once(sink)


@pytest.mark.usefixtures("_ours_alone")
def test_speculative_task_of_staged_stream_is_visible_once(sink, slow, copies):
    rows = sink.stream(topic=sink.filled(*range(ROWS)), columns="body", startingOffsets="earliest")
    sink.copy(rows, into=slow, delivery="exactly_once", visibleTo="all")
    copies.assert_one()
    assert_seen_once(sink)
