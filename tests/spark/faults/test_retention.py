"""The broker's retention deletes messages before a slow query has read them."""

import os
from collections import Counter

import pytest
from support.spark.driver_processes import Query
from support.spark.streaming_engine import Crashed, Engine, assert_read, loss, send

from rmq_spark.client.api.broker_api import BrokerApi
from rmq_spark.client.transport.remoting_client import RemotingClient, build_request
from rmq_spark.wire.codes import RequestCode
from rmq_spark.wire.message_queue import MessageQueue
from rocketpoll import EmbeddedBroker
from rocketpoll.broker.testing import wait_until

LONG_AGO = 1_000_000_000
SMALL = {
    "flushDiskType": "SYNC_FLUSH",
    "mappedFileSizeCommitLog": 1 << 12,
    "mappedFileSizeConsumeQueue": 20 * 10,
    "maxMessageSize": 1 << 11,
    "deleteWhen": ";".join(f"{hour:02d}" for hour in range(24)),
}


@pytest.fixture(scope="module")
def expiring_broker():
    """Run a broker with files so small that they expire one by one."""
    with EmbeddedBroker(**SMALL) as broker:
        yield broker


@pytest.fixture
def topic(expiring_broker, rocketpoll_topic):
    """Create the topic in this broker, too."""
    expiring_broker.create_topic(rocketpoll_topic, 2)
    yield rocketpoll_topic
    expiring_broker.delete_topic(rocketpoll_topic)


def expire(broker, topic):
    """Expire all files of the log but the last; return the remaining bodies."""
    files = sorted((broker.directory / "commitlog").iterdir())[:-1]
    for file in files:
        os.utime(file, (LONG_AGO, LONG_AGO))
    connections = RemotingClient()
    api = BrokerApi(connections)
    queues = [MessageQueue(topic, "broker-a", number) for number in range(2)]

    def is_clean():
        command = build_request(RequestCode.DELETE_EXPIRED_COMMITLOG)
        connections.request(broker.address, command, 3_000)
        return not any(file.exists() for file in files) and all(
            api.min_offset(broker.address, queue) > 2 for queue in queues
        )

    try:
        wait_until(is_clean)
    finally:
        connections.shutdown()
    return [message.body.decode() for message in broker.messages(topic)]


def without(bodies, left):
    return [body for body in bodies if body not in left]


def slow_query(broker, topic, **options):
    """Return a query that has read the first of many messages."""
    query = Engine(broker.address, subscribe=topic, maxOffsetsPerTrigger=4, **options)
    bodies = send(broker, topic, 100)
    query.start()
    query.trigger()
    return query, bodies


def test_retention_that_overtakes_a_running_query_ends_it(expiring_broker, topic):
    query, bodies = slow_query(expiring_broker, topic)
    left = expire(expiring_broker, topic)
    first = min(
        message.queue_offset
        for message in expiring_broker.messages(topic)
        if message.queue.queue_id == 0
    )
    with loss(f"queue 0 of {topic}", f"has lost offsets 2 to {first - 1}"):
        query.run()
    assert_read(query, bodies[:4])
    assert left


@pytest.mark.parametrize("is_running", [True, False])
def test_retention_overtaking_a_query_skips_only_expired_messages(
    expiring_broker, topic, is_running, caplog
):
    query, bodies = slow_query(expiring_broker, topic, failOnDataLoss="false")
    left = expire(expiring_broker, topic)
    if not is_running:
        query.stop()
        query.start()
    query.run()
    assert_read(query, bodies, without=without(bodies[4:], left))
    assert "has lost offsets 2 to" in caplog.text


def test_planned_batch_with_expired_messages_ends_the_query(expiring_broker, topic):
    query, _ = slow_query(expiring_broker, topic)
    query.crash_at = "partitions"
    with pytest.raises(Crashed):
        query.trigger()
    expire(expiring_broker, topic)
    query.start()
    with loss(f"queue 1 of {topic}", "has lost offsets 2 to"):
        query.trigger()


def test_planned_batch_without_fail_on_data_loss_reads_what_retention_left(
    expiring_broker, topic, caplog
):
    query = Engine(expiring_broker.address, subscribe=topic, failOnDataLoss="false")
    bodies = send(expiring_broker, topic, 100)
    query.start()
    query.crash_at = "partitions"
    with pytest.raises(Crashed):
        query.trigger()
    left = expire(expiring_broker, topic)
    more = send(expiring_broker, topic, 10)
    query.start()
    query.run()
    assert_read(query, bodies + more, without=without(bodies, left))
    assert "has lost offsets" in caplog.text


# ---- with Spark: after the first batch, all other messages but the newest expire


def overtaken(driver, broker, topic, directory, **options):
    """Run the query over expired messages; return it, its error, the sent bodies, and the remaining
    ones."""
    query = Query(
        directory / "query",
        namesrvAddr=broker.address,
        subscribe=topic,
        startingOffsets="earliest",
        maxOffsetsPerTrigger=4,
        **options,
    )
    bodies = send(broker, topic, 100)
    query.hold("sink-done")
    driver.start(query, trigger={"availableNow": True})
    query.reached("sink-done")
    left = expire(broker, topic)
    query.release("sink-done")
    return query, driver.end(), bodies, left


def bodies_in(query):
    return Counter(body for *_, body in query.rows())


@pytest.mark.wide
def test_spark_ends_a_query_that_retention_has_overtaken(driver, expiring_broker, topic, tmp_path):
    query, error, bodies, left = overtaken(driver, expiring_broker, topic, tmp_path)
    for word in (f"queue 0 of {topic}", "has lost offsets 2 to", "failOnDataLoss"):
        assert word in error
    assert bodies_in(query) == Counter(bodies[:4])
    assert 0 < len(left) < len(bodies) - 4


def test_spark_query_continues_with_what_retention_left(driver, expiring_broker, topic, tmp_path):
    query, error, bodies, left = overtaken(
        driver, expiring_broker, topic, tmp_path, failOnDataLoss="false"
    )
    assert error is None
    assert bodies_in(query) == Counter(bodies[:4]) + Counter(left)
    assert 0 < len(left) < len(bodies) - 4
