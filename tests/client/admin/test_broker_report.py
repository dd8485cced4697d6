"""A broker report reads all topics and groups of a broker together."""

import socket

import pytest
from support.programs.web_console import with_topics

from rmq_spark.client.admin import broker_report
from rmq_spark.client.admin.broker_report import read_broker_report
from rmq_spark.client.api.admin_api import AdminApi
from rmq_spark.client.errors import BrokerRefused, ClientError
from rmq_spark.wire.bodies.configs import TopicConfig
from rmq_spark.wire.codes import RequestCode, ResponseCode
from rmq_spark.wire.message_queue import MessageQueue
from rocketpoll import Admin, EmbeddedBroker


@pytest.fixture(scope="module")
def report():
    """Return the report of a broker with five messages in two queues, three of them consumed."""
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
        yield read_broker_report(admin, broker.address), offsets


def test_broker_report_sums_up_the_queues_of_a_topic(report):
    read, _ = report
    (topic,) = [each for each in read.topics if each.topic == "T"]
    assert (topic.message_type, topic.begin, topic.end) == ("FIFO", 0, 5)


def test_broker_report_lag_of_a_group_sums_its_queues(report):
    read, offsets = report
    (group,) = [each for each in read.groups if each.group == "G"]
    ends = sum(each.max_offset for each in offsets.values())
    assert (group.topic, group.consumed) == ("T", 1)
    assert group.messages == ends - 1
    assert group.last_timestamp_ms > 1_700_000_000_000


def test_store_times_are_queried_for_a_limited_number_of_queues_and_small_groups_first(monkeypatch):
    with EmbeddedBroker() as broker, Admin(broker.address) as admin:
        for topic, queues in (("Wide", 8), ("Narrow", 2)):
            config = TopicConfig(topic_name=topic, read_queue_nums=queues, write_queue_nums=queues)
            admin.create_topic(topic, config=config)
            broker.send(topic, *"abcdefghijklmnop")
            for queue, held in admin.topic_offsets(topic).items():
                admin.set_offset(f"G-{topic}", queue, held.max_offset - 1, missing_ok=True)
        monkeypatch.setattr(broker_report, "ROWS_MAX", 9)
        found = {each.group: each for each in read_broker_report(admin, broker.address).groups}
        assert found["G-Narrow"].messages == 2
        assert found["G-Narrow"].last_timestamp_ms > 1_700_000_000_000
        assert found["G-Wide"].messages == 8
        assert found["G-Wide"].last_timestamp_ms == 0
        monkeypatch.setattr(broker_report, "ROWS_MAX", 10)
        found = {each.group: each for each in read_broker_report(admin, broker.address).groups}
        assert all(each.last_timestamp_ms for each in found.values())
        untimed = read_broker_report(admin, broker.address, with_times=False).groups
        assert not any(each.last_timestamp_ms for each in untimed)


def test_broker_report_includes_groups_with_very_many_queues(tmp_path):
    store = with_topics(tmp_path / "store", 3, queues=4_000, groups=1, committed=[1])
    with EmbeddedBroker(store) as broker, Admin(broker.address) as admin:
        broker.send("topic-00000", *"abc")
        for number in range(3):
            admin.set_offset("group-00000", MessageQueue(f"topic-{number:05}", "broker-a", 0), 0)
        groups = read_broker_report(admin, broker.address).groups
    assert [(each.topic, each.messages) for each in groups] == [
        ("topic-00000", 3),
        ("topic-00001", 0),
        ("topic-00002", 0),
    ]


def test_broker_report_has_the_runtime_figures_of_the_broker(report):
    read, _ = report
    assert len(read.runtime["putTps"].split()) == 3


def test_broker_report_of_a_starting_broker_has_no_runtime_figures(monkeypatch):
    """RocketMQ refuses the request in its first seconds."""

    def refused(_, address):
        code, request = ResponseCode.SYSTEM_ERROR, RequestCode.GET_BROKER_RUNTIME_INFO
        raise BrokerRefused(code, "java.util.NoSuchElementException", address, request)

    with EmbeddedBroker() as broker, Admin(broker.address) as admin:
        broker.send("T", "one")
        monkeypatch.setattr(AdminApi, "runtime_info", refused)
        read = read_broker_report(admin, broker.address)
    assert read.runtime == {}
    assert "T" in {each.topic for each in read.topics}


def test_broker_report_of_an_unreachable_broker_raises():
    with EmbeddedBroker() as broker, Admin(broker.address) as admin:
        with socket.create_server(("127.0.0.1", 0)) as other:
            nobody_there = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(ClientError):
            read_broker_report(admin, nobody_there)
