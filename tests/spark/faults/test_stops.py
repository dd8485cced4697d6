"""A stopped query ends within two seconds in any state; otherwise Spark reports an error.

The driver's `spark.sql.streaming.stopTimeout` is two seconds. Long triggers need no test: until the
trigger is due, Spark's thread sleeps and the planner does nothing.
"""

import os

import pytest
from support.spark.driver_processes import Query
from support.spark.streaming_engine import send

from rocketpoll import EmbeddedBroker

STOPS = int(os.environ.get("ROCKETPOLL_STOPS", "2"))
"""Number of stops of each kind."""


@pytest.fixture
def broker(tmp_path):
    """Run a broker that can be killed."""
    with EmbeddedBroker(
        tmp_path / "broker", own_process=True, maxTransferBytesExtended=4096
    ) as broker:
        broker.create_topic("T")
        send(broker, "T", 200, "m" * 100)
        yield broker


@pytest.fixture
def query(broker, tmp_path):
    return Query(
        tmp_path / "query", namesrvAddr=broker.address, subscribe="T", startingOffsets="earliest"
    )


def until_idle(driver, query):
    """Start the query, and wait until the broker holds its next pull."""
    driver.start(query)
    for _ in range(2):
        query.hold("latest")
        query.reached("latest")
        query.release("latest")


@pytest.mark.wide
def test_query_stops_while_waiting_for_messages(driver, query):
    for _ in range(STOPS):
        until_idle(driver, query)
        assert driver.stop() is None


@pytest.mark.parametrize("point", ["latest", "partitions", "task"])
def test_query_stops_while_held_at_any_point(driver, query, point):
    for number in range(STOPS):
        if point == "partitions" and number:  # the planned batch starts immediately
            query.release()
        query.hold(point)
        driver.start(query)
        query.reached(point)
        assert driver.stop() is None
        query.release()


@pytest.mark.wide
@pytest.mark.parametrize("outage", ["kill", "pause"])
def test_query_stops_while_no_broker_answers(driver, query, broker, outage):
    until_idle(driver, query)
    getattr(broker, outage)()
    assert driver.stop() is None
    if outage == "pause":
        broker.resume()
