"""Start and end of batch reads, in every form that the options allow."""

import json
import time

import pyspark
import pytest
from pyspark.errors import PySparkException
from support.brokers.broker_kinds import wait_until
from support.clients.conformance_clients import numbers
from support.spark.source_fixture import complaint
from support.suite.selection import spread

BODIES = numbers(10)
EVEN, ODD = BODIES[::2], BODIES[1::2]
"""What is in queue 0, and in queue 1."""

IS_ASKED_AT_EACH_ACTION = pyspark.__version__.startswith("4.0.")
"""Later releases of Spark ask a source once for a data frame what to read."""


@pytest.fixture
def topic(source):
    topic = source.cluster.topic(2)
    source.cluster.send(topic, *BODIES, queues=2)
    return topic


def written(position, topic):
    """A position as an option has it; T stands for the topic."""
    return (
        json.dumps(position).replace('"T"', f'"{topic}"')
        if isinstance(position, dict)
        else position
    )


@pytest.mark.parametrize(
    ("start", "end", "even", "odd"),
    spread(
        6,
        [
            ("earliest", "latest", EVEN, ODD),
            ({"T": {"broker-a": {"0": 1, "1": 2}}}, "latest", EVEN[1:], ODD[2:]),
            ({"T": {"0": 1, "1": 2}}, "latest", EVEN[1:], ODD[2:]),
            ({"T": {"0": 3, "*": -1}}, "latest", EVEN[3:], []),
            ({"T": {"*": {"0": -2, "*": 4}}}, "latest", EVEN, ODD[4:]),
            ({"*": "-1 message"}, "latest", EVEN[4:], ODD[4:]),
            ({"T": {"0": "latest", "1": "-2 messages"}}, "latest", [], ODD[3:]),
            ({"v": 1, "offsets": {"T": {"broker-a": {"0": 5, "1": 0}}}}, "latest", [], ODD),
            ("-3 messages", "latest", EVEN[2:], ODD[2:]),
            ("-100", "latest", EVEN, ODD),
            ("-1 day", "latest", EVEN, ODD),
            ("earliest", "-10m", [], []),
            ("earliest", {"T": {"0": 2, "1": -1}}, EVEN[:2], ODD),
            ({"T": {"0": 1, "1": 1}}, {"T": {"broker-a": {"0": 2, "1": 1}}}, EVEN[1:2], []),
            ("earliest", "-2 messages", EVEN[:3], ODD[:3]),
        ],
    ),
    ids=str,
)
def test_offsets(source, topic, start, end, even, odd):
    found = source.bodies(
        topic=topic, startingOffsets=written(start, topic), endingOffsets=written(end, topic)
    )
    assert found == sorted(even + odd)


class TestTimes:
    @pytest.fixture
    def stored(self, source, topic):
        """When the last message of the first wave was stored, and the first of the second."""
        waits = [source.load(topic=topic).agg({"storeTimestamp": "max"}).collect()[0][0]]
        wait_until("the clock goes on", lambda: time.time() > waits[0].timestamp() + 0.002)
        source.cluster.send(topic, "later", queues=2)  # in queue 0 alone
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

    def test_each_queue_can_have_its_own_timestamp_bound(self, source, topic, stored):
        _, later = stored
        starts = {topic: {"0": later, "1": 1}}
        assert source.bodies(topic=topic, startingOffsetsByTimestamp=json.dumps(starts)) == [
            *ODD,
            "later",
        ]
        ends = {topic: {"broker-a": {"*": 1, "0": "2100-01-01T00:00:00"}}}
        assert source.bodies(topic=topic, endingOffsetsByTimestamp=json.dumps(ends)) == [
            *EVEN,
            "later",
        ]

    def test_future_starting_timestamp_is_refused_without_strategy_latest(
        self, source, topic, stored
    ):
        _, later = stored
        with pytest.raises(PySparkException) as raised:
            source.bodies(topic=topic, startingTimestamp=later)
        assert complaint(raised) == (
            f"OptionError: option startingTimestamp: no message of queue 1 of {topic} on broker-a "
            f"was stored at {later} ms or later; set startingOffsetsByTimestampStrategy to latest "
            "to begin at its end"
        )


class TestGroup:
    def test_batch_read_starts_or_ends_at_a_consumer_groups_offsets(self, source, topic, kind):
        group = source.cluster.group()
        source.cluster.store_offset(group, topic, 3, queue_id=0)
        of_group = {"topic": topic, "consumerGroup": group}
        assert source.bodies(startingOffsets="group", **of_group) == sorted(EVEN[3:] + ODD)
        # RocketMQ 4.9 says 0 of a group that has stored nothing,
        # where a queue still has its first message.
        nothing_stored = ODD if kind == "4.9.7" else []
        found = source.bodies(startingOffsets="group:latest", **of_group)
        assert found == sorted(EVEN[3:] + nothing_stored)
        assert source.bodies(endingOffsets="group", **of_group) == EVEN[:3]

    def test_group_offset_past_the_end_is_refused_without_fail_on_data_loss(self, source, topic):
        group = source.cluster.group()
        source.cluster.store_offset(group, topic, 9, queue_id=0)
        options = {"topic": topic, "consumerGroup": group, "startingOffsets": "group"}
        with pytest.raises(PySparkException) as raised:
            source.bodies(**options)
        assert complaint(raised) == (
            f"OptionError: option startingOffsets: queue 0 of {topic} on broker-a has the "
            "offsets from 0 to 5, not 9. Correct the offset, or set failOnDataLoss to "
            "false to use the nearest"
        )
        assert source.bodies(failOnDataLoss=False, **options) == ODD


def test_data_frame_is_a_snapshot_at_load_for_all_its_actions(source, topic):
    """Scalar subqueries and the sides of a join have a reader each, planned at the same time."""
    frame = source.load(topic=topic)
    source.spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW made USING rocketpoll "
        f"OPTIONS (namesrvAddr '{source.cluster.name_server}', topic '{topic}')"
    )
    source.cluster.send(topic, "later", "last", queues=2)
    frame.createOrReplaceTempView("loaded")
    for view in ("loaded", "made"):
        sides = source.spark.sql(
            f"SELECT (SELECT count(*) FROM {view}), (SELECT count(DISTINCT body) FROM {view})"  # noqa: S608  # our names
        ).first()
        assert tuple(sides) == (len(BODIES), len(BODIES))
    joined = frame.groupBy().count().crossJoin(frame.selectExpr("count(DISTINCT body)")).first()
    assert tuple(joined) == (len(BODIES), len(BODIES))
    assert frame.count() == len(BODIES)
    assert source.load(topic=topic).count() == len(BODIES) + 2


def test_data_frame_with_a_schema_is_a_snapshot_at_its_first_action(source, topic):
    """Spark does not ask the source anything before."""
    frame = source.load(schema="body binary", topic=topic)
    source.cluster.send(topic, "later", queues=2)
    assert frame.count() == len(BODIES) + 1
    source.cluster.send(topic, "last", queues=2)
    again = len(BODIES) + 2 if IS_ASKED_AT_EACH_ACTION else len(BODIES) + 1
    assert frame.count() == again


def test_empty_topic_is_read_as_no_rows(source):
    empty = source.load(topic=source.cluster.topic(2))
    assert (empty.collect(), empty.count()) == ([], 0)
