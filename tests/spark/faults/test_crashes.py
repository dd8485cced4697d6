"""Crashes at every point of a batch, without Spark: the planned rows are read again exactly."""

import pytest
from support.spark.streaming_engine import POINTS, Crashed, Engine, assert_read, send

PLANNED = POINTS[POINTS.index("partitions") :]


@pytest.mark.parametrize("point", PLANNED)
@pytest.mark.parametrize(("start", "rows"), [("latest", 0), ("-3 messages", 12), ("earliest", 20)])
def test_crashed_first_batch_is_read_again_with_the_same_rows(
    rocketpoll_broker, rocketpoll_topic, point, start, rows
):
    """Spark asks for the initial offset again; by then the end of the queue has moved."""
    query = Engine(rocketpoll_broker.address, subscribe=rocketpoll_topic, startingOffsets=start)
    expected = send(rocketpoll_broker, rocketpoll_topic, 20, "before")[20 - rows :]
    query.start()
    if not rows:
        assert not query.trigger()
        expected += send(rocketpoll_broker, rocketpoll_topic, 8, "first")
    query.crash_at = point
    with pytest.raises(Crashed):
        query.trigger()
    expected += send(rocketpoll_broker, rocketpoll_topic, 8, "later")
    query.start()
    query.run()
    assert_read(query, expected)


def test_repeated_first_batch_ignores_changed_starting_offsets(rocketpoll_broker, rocketpoll_topic):
    """Even queues without rows in the batch begin where they were when it was planned."""
    query = Engine(rocketpoll_broker.address, subscribe=rocketpoll_topic, startingOffsets="latest")
    send(rocketpoll_broker, rocketpoll_topic, 20, "before")
    query.start()
    assert not query.trigger()
    expected = send(rocketpoll_broker, rocketpoll_topic, 1, "first")
    query.crash_at = "partitions"
    with pytest.raises(Crashed):
        query.trigger()
    query.options["startingOffsets"] = "earliest"
    query.start()
    query.run()
    assert_read(query, expected)


def test_messages_before_the_first_batch_are_read(rocketpoll_broker, rocketpoll_topic):
    query = Engine(rocketpoll_broker.address, subscribe=rocketpoll_topic, startingOffsets="latest")
    send(rocketpoll_broker, rocketpoll_topic, 20, "before")
    query.start()
    assert not query.trigger()
    assert not query.trigger()
    between = send(rocketpoll_broker, rocketpoll_topic, 5, "between")
    query.run()
    assert_read(query, between)


@pytest.mark.parametrize("point", POINTS)
def test_crashed_later_batch_is_read_again_with_the_same_rows(
    rocketpoll_broker, rocketpoll_topic, point
):
    query = Engine(rocketpoll_broker.address, subscribe=rocketpoll_topic)
    bodies = send(rocketpoll_broker, rocketpoll_topic, 10, "first")
    query.start()
    query.run()
    bodies += send(rocketpoll_broker, rocketpoll_topic, 10, "second")
    query.crash_at = point
    with pytest.raises(Crashed):
        query.trigger()
    bodies += send(rocketpoll_broker, rocketpoll_topic, 10, "third")
    query.start()
    query.run()
    assert_read(query, bodies)


@pytest.mark.parametrize("limit", [{"maxOffsetsPerTrigger": 7}, {"maxBytesPerTrigger": "2k"}])
def test_crashes_between_limited_batches_lose_and_repeat_nothing(
    rocketpoll_broker, rocketpoll_topic, limit
):
    query = Engine(rocketpoll_broker.address, subscribe=rocketpoll_topic, **limit)
    bodies = send(rocketpoll_broker, rocketpoll_topic, 60)
    for point in POINTS:
        query.start()
        query.crash_at = point
        with pytest.raises(Crashed):
            query.run()
    query.start()
    query.run()
    assert len(query.sink) > 5
    assert_read(query, bodies)
