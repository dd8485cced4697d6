"""Crashes at every point of a batch, without Spark: what was planned is read again, to the row."""

import pytest
from spark_engine import POINTS, Crashed, Engine

from rocketpoll import EmbeddedBroker


@pytest.fixture(scope="module")
def broker():
    with EmbeddedBroker() as broker:
        yield broker


@pytest.fixture
def topic(broker, request):
    name = f"T{abs(hash(request.node.name))}"
    broker.create_topic(name, 4)
    return name


def sent(broker, topic, count, name="m"):
    """So many messages; their bodies."""
    bodies = [f"{name}-{number}" for number in range(count)]
    broker.send(topic, *bodies)
    return bodies


def assert_all_there(query, bodies):
    assert sorted(row.body for row in query.rows()) == sorted(bodies)
    assert query.differing == []


@pytest.mark.parametrize("start", ["earliest", "latest", "-3 messages"])
@pytest.mark.parametrize("point", POINTS)
def test_a_first_batch_that_crashes_is_read_again_to_the_row(broker, topic, point, start):
    """Spark asks for the initial offset once more; meanwhile more has come, so that the end is elsewhere."""
    query = Engine(broker.address, subscribe=topic, startingOffsets=start)
    before = sent(broker, topic, 20, "before")
    query.start()
    assert query.trigger() is (start != "latest")
    expected = {"earliest": before, "latest": [], "-3 messages": before[-12:]}[start]
    query = Engine(broker.address, subscribe=topic, startingOffsets=start)
    query.start()
    query.crash_at = point
    if start == "latest" and point not in ("latest", "latest-done"):
        assert not query.trigger()
        expected = sent(broker, topic, 8, "first")
    with pytest.raises(Crashed):
        query.trigger()
    was_planned = bool(query.offsets)
    more = sent(broker, topic, 8, "more")
    query.start()
    query.run()
    if was_planned or start == "earliest":
        assert_all_there(query, expected + more)


@pytest.mark.parametrize("point", POINTS)
def test_a_later_batch_that_crashes_is_read_again_to_the_row(broker, topic, point):
    query = Engine(broker.address, subscribe=topic)
    bodies = sent(broker, topic, 10, "first")
    query.start()
    query.run()
    bodies += sent(broker, topic, 10, "second")
    query.crash_at = point
    with pytest.raises(Crashed):
        query.trigger()
    bodies += sent(broker, topic, 10, "third")
    query.start()
    query.run()
    assert_all_there(query, bodies)
