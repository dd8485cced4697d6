"""Messages lost before they were read end the query with an error, or are skipped, as
failOnDataLoss says.

`test_retention` tests messages that expired.
"""

import pytest
from support.spark.streaming_engine import Crashed, Engine, assert_read, loss, send

from rocketpoll import EmbeddedBroker

# ---- a damaged log: the queues still begin at the same offsets


@pytest.fixture
def damaged(tmp_path):
    """Run a broker that has lost one of twenty messages because a byte on disk has changed."""
    with EmbeddedBroker(
        tmp_path, mappedFileSizeCommitLog=1 << 16, maxMessageSize=1 << 12
    ) as broker:
        broker.create_topic("damaged", 2)
        bodies = send(broker, "damaged", 20)
        broker.stop()
    log = tmp_path / "commitlog" / f"{0:020d}"
    data = bytearray(log.read_bytes())
    data[data.index(bodies[7].encode())] ^= 1
    log.write_bytes(data)
    with EmbeddedBroker(
        tmp_path, mappedFileSizeCommitLog=1 << 16, maxMessageSize=1 << 12
    ) as broker:
        yield broker, bodies


def test_damaged_message_ends_the_query_with_data_loss(damaged):
    broker, _ = damaged
    query = Engine(broker.address, subscribe="damaged")
    query.start()
    with loss("of damaged", "has lost offsets 3 to 3"):
        query.run()


def test_damaged_message_is_skipped_with_fail_on_data_loss_false(damaged, caplog):
    broker, bodies = damaged
    query = Engine(broker.address, subscribe="damaged", failOnDataLoss="false")
    query.start()
    query.run()
    assert_read(query, bodies, without=bodies[7:8])
    assert "has lost offsets 3 to 3" in caplog.text


# ---- deleted and recreated topics


def read_before(broker, topic, count, **options):
    """Run a query that reads all messages, and stop it."""
    query = Engine(broker.address, subscribe=topic, **options)
    bodies = send(broker, topic, count)
    query.start()
    query.run()
    return query, bodies


def make_again(broker, topic, count, queues=4):
    broker.delete_topic(topic)
    broker.create_topic(topic, queues)
    return send(broker, topic, count, "again")


@pytest.mark.parametrize("is_running", [True, False])
@pytest.mark.parametrize("count", [8, 20, 60])
def test_recreated_topic_ends_the_query_with_data_loss(
    rocketpoll_broker, rocketpoll_topic, is_running, count
):
    """The new topic has fewer messages than were read, as many, or more."""
    query, _ = read_before(rocketpoll_broker, rocketpoll_topic, 20)
    if not is_running:
        query.stop()
    make_again(rocketpoll_broker, rocketpoll_topic, count)
    if not is_running:
        query.start()
    elif count == 20:
        query.trigger()  # the queue has not grown, so it is not checked
        send(rocketpoll_broker, rocketpoll_topic, 4)
    words = ["ends at offset 2"] if count == 8 else ["recreated", "is not the one that was read"]
    with loss(f"queue 0 of {rocketpoll_topic}", *words):
        query.run()


@pytest.mark.parametrize("is_running", [True, False])
@pytest.mark.parametrize("count", [8, 20, 60])
def test_recreated_topic_is_read_from_its_start(
    rocketpoll_broker, rocketpoll_topic, is_running, count
):
    query, bodies = read_before(rocketpoll_broker, rocketpoll_topic, 20, failOnDataLoss="false")
    if not is_running:
        query.stop()
    bodies += make_again(rocketpoll_broker, rocketpoll_topic, count)
    if not is_running:
        query.start()
    query.run()
    bodies += send(rocketpoll_broker, rocketpoll_topic, 8)
    query.run()
    assert_read(query, bodies)


@pytest.mark.parametrize("count", [0, 8, 60])
def test_recreated_topic_after_a_planned_batch_is_read_completely(
    rocketpoll_broker, rocketpoll_topic, count
):
    query, bodies = read_before(rocketpoll_broker, rocketpoll_topic, 20, failOnDataLoss="false")
    gone = send(rocketpoll_broker, rocketpoll_topic, 8)
    query.crash_at = "partitions"
    with pytest.raises(Crashed):
        query.trigger()
    bodies += make_again(rocketpoll_broker, rocketpoll_topic, count)
    query.start()
    query.run()
    assert_read(query, bodies + gone, without=gone)


@pytest.mark.parametrize("count", [0, 28, 80])
def test_topic_recreated_between_planning_and_reading_is_read_once(
    rocketpoll_broker, rocketpoll_topic, count
):
    query, bodies = read_before(rocketpoll_broker, rocketpoll_topic, 20, failOnDataLoss="false")
    gone = send(rocketpoll_broker, rocketpoll_topic, 8)
    query.before_tasks = lambda: bodies.extend(
        make_again(rocketpoll_broker, rocketpoll_topic, count)
    )
    query.run()
    # with as many messages as before, the topic is detected only after it grows
    bodies += send(rocketpoll_broker, rocketpoll_topic, 4)
    query.run()
    assert_read(query, bodies + gone, without=gone)


def test_deleted_pattern_topic_read_to_its_end_is_dropped_from_the_offset(rocketpoll_broker):
    """A missing topic that was read completely is no data loss; a later topic with its name is read
    from the first message."""
    for name in ("left-1", "left-2"):
        rocketpoll_broker.create_topic(name, 2)
    query = Engine(rocketpoll_broker.address, subscribePattern="left-.*")
    bodies = send(rocketpoll_broker, "left-1", 4) + send(rocketpoll_broker, "left-2", 4)
    query.start()
    query.run()
    rocketpoll_broker.delete_topic("left-1")
    query.run()
    assert list(query.end()["offsets"]) == ["left-2"]
    rocketpoll_broker.create_topic("left-1", 1)
    bodies += send(rocketpoll_broker, "left-1", 2)
    query.run()
    assert_read(query, bodies)
    for name in ("left-1", "left-2"):
        rocketpoll_broker.delete_topic(name)


# ---- queues


@pytest.mark.parametrize("point", ["partitions", "task", "sink-done"])
def test_available_now_reads_queues_added_between_crash_and_restart(
    rocketpoll_broker, rocketpoll_topic, point
):
    query, bodies = read_before(rocketpoll_broker, rocketpoll_topic, 20)
    query.stop()
    bodies += send(rocketpoll_broker, rocketpoll_topic, 20)
    query.start(available_now=True)
    query.crash_at = point
    with pytest.raises(Crashed):
        query.run()
    rocketpoll_broker.create_topic(rocketpoll_topic, 6)
    bodies += send(rocketpoll_broker, rocketpoll_topic, 24)
    query.start(available_now=True)
    query.run()
    query.stop()
    assert_read(query, bodies)


def test_removed_queues_are_skipped_and_read_when_they_return(rocketpoll_broker, rocketpoll_topic):
    query, bodies = read_before(rocketpoll_broker, rocketpoll_topic, 8, failOnDataLoss="false")
    bodies += send(rocketpoll_broker, rocketpoll_topic, 8)
    rocketpoll_broker.create_topic(rocketpoll_topic, 2)
    query.run()
    assert {row.queue_id for row in query.rows() if row.queue_offset > 1} == {0, 1}
    rocketpoll_broker.create_topic(rocketpoll_topic, 4)
    query.run()
    assert_read(query, bodies)
