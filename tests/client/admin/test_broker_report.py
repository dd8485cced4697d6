"""A broker's topics and groups, read as a whole."""

from __future__ import annotations

import socket

import pytest

from rmq_spark.client import Admin
from rmq_spark.client.admin.broker_report import read_broker
from rmq_spark.client.errors import ClientError
from rmq_spark.wire.bodies.configs import TopicConfig
from rocketpoll import EmbeddedBroker


@pytest.fixture(scope="module")
def report():
    """Of a broker with five messages in two queues, three of which a group has consumed."""
    with EmbeddedBroker() as broker, Admin(broker.address) as admin:
        config = TopicConfig(
            topic_name="T",
            read_queue_nums=2,
            write_queue_nums=2,
            attributes={"message.type": "FIFO"},
        )
        admin.create_topic("T", config=config)
        broker.send("T", *(str(number) for number in range(5)))
        admin.create_group("G")
        (queue, *_), offsets = sorted(admin.topic_offsets("T")), admin.topic_offsets("T")
        admin.set_offset("G", queue, 1)
        yield read_broker(admin, broker.address), offsets


def test_a_topic_is_the_sum_of_its_queues(report):
    read, _ = report
    (topic,) = [each for each in read.topics if each.topic == "T"]
    assert (topic.message_type, topic.begin, topic.end) == ("FIFO", 0, 5)
    assert topic.last_update_ms > 1_700_000_000_000


def test_a_group_is_as_far_behind_as_its_queues_together(report):
    read, offsets = report
    (group,) = [each for each in read.groups if each.group == "G"]
    ends = sum(each.max_offset for each in offsets.values())
    assert (group.topic, group.consumed) == ("T", 1)
    assert group.messages == ends - 1
    assert group.last_timestamp_ms > 1_700_000_000_000


def test_the_figures_of_the_broker_are_those_that_it_reports(report):
    read, _ = report
    assert len(read.runtime["putTps"].split()) == 3


def test_a_broker_that_is_away_is_an_error():
    with EmbeddedBroker() as broker, Admin(broker.address) as admin:
        with socket.create_server(("127.0.0.1", 0)) as other:
            nobody_there = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(ClientError):
            read_broker(admin, nobody_there)
