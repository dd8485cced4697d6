"""Streaming reads: start and restart, topics found while running, and the offsets that
brokers get."""

import json
import re

import pytest
from chispa import assert_df_equality
from support.brokers.broker_kinds import wait_until
from support.spark.source_fixture import where

from rmq_spark.client.admin.admin import Admin
from rmq_spark.spark.stream_reader import HAS_LIMITS
from rmq_spark.wire.bodies.configs import TopicConfig

pytestmark = pytest.mark.deep

EARLIEST = {"startingOffsets": "earliest", "columns": "body"}


def test_stream_starts_at_the_latest_offset_and_wakes_for_a_message(source):
    topic = source.cluster.topic(2)
    source.cluster.send(topic, "before", queues=2)
    batches = source.start(source.stream(topic=topic, columns="body")).caught_up()
    assert batches.rows == []

    source.cluster.send(topic, "after", queues=2)
    assert batches.caught_up().bodies == ["after"]
    source.cluster.send(topic, "1", "2", "3", queues=2)
    assert batches.caught_up().bodies == ["1", "2", "3", "after"]


def test_stream_restart_continues_at_the_checkpoint(source):
    topic = source.cluster.topic(2)
    source.cluster.send(topic, "a", "b", "c", queues=2)
    checkpoint = source.checkpoint()

    def run(**options):
        stream = source.stream(
            topic=topic, **{**EARLIEST, "columns": "queueId,queueOffset,body", **options}
        )
        return source.run(stream, checkpoint)

    first = run()
    source.cluster.send(topic, "d", "e", queues=2)
    second = run(startingOffsets="latest")  # ignored after the first start

    schema = "queueId int, queueOffset bigint, body binary"
    assert_df_equality(
        source.spark.createDataFrame(first.rows + second.rows, schema).orderBy("body"),
        source.load(schema, topic=topic).orderBy("body"),
    )
    assert second.bodies == ["d", "e"]
    assert run().rows == []


def test_new_queues_and_topics_are_discovered_while_a_query_runs(source):
    first = source.cluster.topic(2)
    prefix = re.sub(r"-.*", "", first)
    source.cluster.send(first, "old", queues=2)
    stream = source.stream(subscribePattern=f"{prefix}-.*", discoveryIntervalMs=100, **EARLIEST)
    batches = source.start(stream).caught_up()
    assert batches.bodies == ["old"]

    more = TopicConfig(topic_name=first, read_queue_nums=4, write_queue_nums=4, perm=6)
    source.cluster.api.admin.create_topic(source.cluster.address, more)
    wait_until(
        "a route with four queues",
        lambda: len(source.cluster.sender.routes.refresh(first).subscribe_queues) == 4,
    )
    source.cluster.send(first, "new queue", queue_id=3)
    wait_until("its message", lambda: batches.caught_up().bodies == ["new queue", "old"])

    another = f"{prefix}-another"
    config = TopicConfig(topic_name=another, read_queue_nums=1, write_queue_nums=1, perm=6)
    source.cluster.api.admin.create_topic(source.cluster.address, config)
    source.cluster.send(another, "new topic", queue_id=0)
    wait_until(
        "its message", lambda: batches.caught_up().bodies == ["new queue", "new topic", "old"]
    )


def test_brokers_get_the_group_offsets_of_a_stream(source):
    topic, group = source.cluster.topic(2), source.cluster.group()
    source.cluster.send(topic, "a", "b", "c", queues=2)
    # Before Spark 4.2 a run with AvailableNow does not report its last batch; the next run does.
    batches = source.start(source.stream(topic=topic, consumerGroup=group, **EARLIEST)).caught_up()

    admin = Admin(instance=source.cluster.sender)
    wait_until(
        "no lag", lambda: [each.consumer_offset for each in admin.lag(group, topic)] == [2, 1]
    )
    batches.stop()
    source.cluster.send(topic, "d", queue_id=0)
    assert [each.messages for each in admin.lag(group, topic)] == [1, 0]
    assert source.bodies(topic=topic, consumerGroup=group, startingOffsets="group") == ["d"]


def test_query_progress_reports_its_offset_and_the_latest_offset(source):
    topic = source.cluster.topic(1)
    source.cluster.send(topic, "a", "b", "c", queues=1)
    stream = source.stream(topic=topic, maxOffsetsPerTrigger=2, **EARLIEST)
    query = source.start(stream).caught_up().query
    progress = next(each for each in query.recentProgress if each.numInputRows)
    assert where(progress, "endOffset")["offsets"] == {topic: {"broker-a": {"0": 2}}}
    if not HAS_LIMITS:
        pytest.skip("Spark 4.0 and 4.1 do not ask a Python source how far its queues go")
    assert where(progress, "latestOffset")["offsets"] == {topic: {"broker-a": {"0": 3}}}


def test_stream_over_an_offset_range_ends_with_it_after_a_restart_too(source):
    topic = source.cluster.topic(2)
    for number in range(8):
        source.cluster.send(topic, str(number), queue_id=number % 2)
    checkpoint = source.checkpoint()
    ends = json.dumps({topic: {"0": 3, "1": 100}})

    def run(**options):
        return source.run(
            source.stream(topic=topic, availableNow=True, **EARLIEST, **options), checkpoint
        )

    assert run(endingOffsets=ends, maxOffsetsPerTrigger=2).bodies == [
        "0",
        "1",
        "2",
        "3",
        "4",
        "5",
        "7",
    ]
    source.cluster.send(topic, "8", queue_id=0)
    source.cluster.send(topic, "9", queue_id=1)
    assert run(endingOffsets=ends).bodies == ["9"]
    assert run(endingOffsets=json.dumps({topic: {"0": 1, "1": 1}})).bodies == [], (
        "the end is behind it"
    )
    assert run().bodies == ["6", "8"]
