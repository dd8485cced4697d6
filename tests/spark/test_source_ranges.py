"""Start and end of batch reads, in every format of the options."""

import json
import time

import pyspark
import pytest
from support.brokers.broker_kinds import wait_until
from support.clients.conformance_clients import numbers

BODIES = numbers(10)
EVEN, ODD = BODIES[::2], BODIES[1::2]
"""Bodies in queue 0, and in queue 1."""

IS_ASKED_AT_EACH_ACTION = pyspark.__version__.startswith("4.0.")
"""True if Spark asks a source at each action what to read; later releases ask once for a data
frame."""


@pytest.fixture
def topic(source):
    topic = source.cluster.topic(2)
    source.cluster.send(topic, *BODIES, queues=2)
    return topic


def written(position, topic):
    """Return a position as an option value; T stands for the topic."""
    return (
        json.dumps(position).replace('"T"', f'"{topic}"')
        if isinstance(position, dict)
        else position
    )


@pytest.mark.parametrize(
    ("start", "end", "even", "odd"),
    [
        ({"T": {"broker-a": {"0": 1, "1": 2}}}, "latest", EVEN[1:], ODD[2:]),
        ({"T": {"0": 3, "*": -1}}, "latest", EVEN[3:], []),
        pytest.param("-3 messages", {"T": {"0": 2, "1": -1}}, [], ODD[2:], marks=pytest.mark.deep),
        pytest.param("-1 day", "-10m", [], [], marks=pytest.mark.deep),
    ],
    ids=str,
)
def test_batch_read_start_and_end_by_offsets(source, topic, start, end, even, odd):
    found = source.bodies(
        topic=topic, startingOffsets=written(start, topic), endingOffsets=written(end, topic)
    )
    assert found == sorted(even + odd)


class TestTimes:
    @pytest.fixture
    def stored(self, source, topic):
        """Return the store times of the last message of the first wave, and of the first of the
        second wave."""
        waits = [source.load(topic=topic).agg({"storeTimestamp": "max"}).collect()[0][0]]
        wait_until("the clock goes on", lambda: time.time() > waits[0].timestamp() + 0.002)
        source.cluster.send(topic, "later", queues=2)  # only to queue 0
        (row,) = source.load(topic=topic).where("body = 'later'").collect()
        return [int(each.timestamp() * 1000) for each in (waits[0], row.storeTimestamp)]

    def test_timestamp_bounds_use_the_store_time_and_precede_its_first_message(
        self, source, topic, stored
    ):
        at, later = stored
        iso = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(later // 1000))}.{later % 1000:03}Z"
        newest = {"topic": topic, "startingOffsetsByTimestampStrategy": "latest"}
        assert source.bodies(startingTimestamp=later, **newest) == ["later"]
        assert source.bodies(startingTimestamp=iso, **newest) == ["later"]
        assert source.bodies(startingOffsets=iso, **newest) == ["later"]
        assert source.bodies(startingTimestamp=at + 1, **newest) == ["later"]
        assert source.bodies(topic=topic, endingTimestamp=later) == BODIES
        assert source.bodies(topic=topic, endingOffsets=iso) == BODIES
        assert source.bodies(topic=topic, startingTimestamp=1) == [*BODIES, "later"]


def test_data_frame_is_a_snapshot_at_load_for_all_its_actions(source, topic):
    """Scalar subqueries and the sides of a join each have their own reader, planned at the same
    time."""
    frame = source.load(topic=topic)
    source.spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW made USING rocketpoll "
        f"OPTIONS (namesrvAddr '{source.cluster.name_server}', topic '{topic}')"
    )
    source.cluster.send(topic, "later", "last", queues=2)
    frame.createOrReplaceTempView("loaded")
    for view in ("loaded", "made"):
        sides = source.spark.sql(
            f"SELECT (SELECT count(*) FROM {view}), (SELECT count(DISTINCT body) FROM {view})"  # noqa: S608  # the test's own names
        ).first()
        assert tuple(sides) == (len(BODIES), len(BODIES))
    joined = frame.groupBy().count().crossJoin(frame.selectExpr("count(DISTINCT body)")).first()
    assert tuple(joined) == (len(BODIES), len(BODIES))
    assert frame.count() == len(BODIES)
    assert source.load(topic=topic).count() == len(BODIES) + 2


def test_data_frame_with_a_schema_is_a_snapshot_at_its_first_action(source, topic):
    """Spark does not call the source before its first action."""
    frame = source.load(schema="body binary", topic=topic)
    source.cluster.send(topic, "later", queues=2)
    assert frame.count() == len(BODIES) + 1
    source.cluster.send(topic, "last", queues=2)
    again = len(BODIES) + 2 if IS_ASKED_AT_EACH_ACTION else len(BODIES) + 1
    assert frame.count() == again


def test_empty_topic_is_read_as_no_rows(source):
    empty = source.load(topic=source.cluster.topic(2))
    assert (empty.collect(), empty.count()) == ([], 0)
