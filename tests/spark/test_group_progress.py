"""Consumer group progress of a query: brokers get the offsets of written rows, never of planned
ones."""

from support.spark.source_queries import query, queue_of, schema_of, send
from support.suite.clocks import Clock

from rmq_spark.client.api.broker_api import BrokerApi
from rmq_spark.client.errors import ConnectionClosed
from rmq_spark.spark import stream_reader
from rmq_spark.spark.brokers.queue_client import QueueClient
from rmq_spark.spark.plan.micro_batch_planner import NO_LIMITS


def told_of(monkeypatch):
    """Record the offsets committed to brokers."""
    told = []
    commit = QueueClient.commit

    def heard(queues, group, offsets):
        told.append(dict(offsets))
        return commit(queues, group, offsets)

    monkeypatch.setattr(QueueClient, "commit", heard)
    return told


def grouped(topic, **more):
    return {"consumerGroup": f"group-{topic}", "startingOffsets": "earliest", **more}


def test_group_progress_is_committed_after_a_batch(rocketpoll_broker, rocketpoll_topic):
    send(rocketpoll_broker, rocketpoll_topic, 0, "a")
    given = grouped(rocketpoll_topic)
    with query(rocketpoll_broker, rocketpoll_topic, **given) as batches:
        batches.commit_progress(batches.latest_offset(batches.initial_offset(), NO_LIMITS))
        rocketpoll_broker.wait_until_consumed(given["consumerGroup"], rocketpoll_topic)


def test_latest_offset_query_commits_no_group_progress(
    rocketpoll_broker, rocketpoll_topic, monkeypatch
):
    send(rocketpoll_broker, rocketpoll_topic, 0, "a")
    told = told_of(monkeypatch)
    with query(rocketpoll_broker, rocketpoll_topic, **grouped(rocketpoll_topic)) as batches:
        end = batches.latest_offset(batches.initial_offset(), NO_LIMITS)
        assert batches.latest_offset(end, NO_LIMITS) is end
    assert told == []


def test_next_batch_request_commits_the_written_batch_only(
    rocketpoll_broker, rocketpoll_topic, monkeypatch
):
    """The batch from its start on is only planned, and is read again after a kill."""
    send(rocketpoll_broker, rocketpoll_topic, 0, "a", "b")
    told, queue = told_of(monkeypatch), queue_of(rocketpoll_topic, 0)
    options = {"namesrvAddr": rocketpoll_broker.address, "topic": rocketpoll_topic}
    more = {"maxOffsetsPerTrigger": "1"}
    reader = stream_reader.Spark40StreamReader(
        {**options, **grouped(rocketpoll_topic), **more}, schema_of("body binary")
    )
    try:
        first = reader.latestOffset()
        assert {each[queue] for each in told} <= {0}
        reader.partitions(reader.initialOffset(), first)
        second = reader.latestOffset()
        assert second != first
        assert told[-1][queue] == 1
    finally:
        reader.stop()


def test_unchanged_group_progress_is_not_committed_again(
    rocketpoll_broker, rocketpoll_topic, monkeypatch
):
    send(rocketpoll_broker, rocketpoll_topic, 0, "a")
    told = told_of(monkeypatch)
    with query(rocketpoll_broker, rocketpoll_topic, **grouped(rocketpoll_topic)) as batches:
        start = batches.initial_offset()
        batches.commit_progress(start)
        end = batches.latest_offset(start, NO_LIMITS)
        batches.end_batch(end)
        batches.commit_progress(end)
    assert [sorted(each.values()) for each in told] == [[0, 0, 0, 0], [1]]


def test_failed_group_progress_commit_is_retried_after_a_second(
    rocketpoll_broker, rocketpoll_topic, monkeypatch
):
    """An idle source in a query with others is called many times a second, and must not wait each
    time."""
    send(rocketpoll_broker, rocketpoll_topic, 0, "a")
    given, clock, told = grouped(rocketpoll_topic), Clock(), told_of(monkeypatch)
    with query(rocketpoll_broker, rocketpoll_topic, clock, **given) as batches:
        end = batches.latest_offset(batches.initial_offset(), NO_LIMITS)
        with monkeypatch.context() as broken:
            broken.setattr(BrokerApi, "update_consumer_offset", fails)
            batches.commit_progress(end)
            batches.commit_progress(end)
        assert len(told) == 1
        send(rocketpoll_broker, rocketpoll_topic, 1, "b")
        further = batches.latest_offset(end, NO_LIMITS)
        batches.commit_progress(further)  # these offsets are new
        assert told[-1][queue_of(rocketpoll_topic, 1)] == 1
        clock.now += 1
        batches.commit_progress(further)
        rocketpoll_broker.wait_until_consumed(given["consumerGroup"], rocketpoll_topic)


def fails(*_, **__):
    raise ConnectionClosed("127.0.0.1:1", "gone")
