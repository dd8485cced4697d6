"""Requests of operators that the admin does not cover."""

import pytest

from rmq_spark.client.errors import BrokerRefused
from rmq_spark.wire.bodies.configs import TopicConfig
from rmq_spark.wire.headers.members import SendMessageRequestHeader


@pytest.fixture
def address(running_broker, api):
    api.admin.create_topic(
        running_broker.address, TopicConfig(topic_name="T", read_queue_nums=2, write_queue_nums=2)
    )
    return running_broker.address


def send(api, address, body=b"x", key="k"):
    header = SendMessageRequestHeader("P", "T", "TBW102", 4, 0, 0, 1_000, 0, f"KEYS\x01{key}\x02")
    return api.send(address, header, body, "ID")


def test_broker_runtime_info_config_and_stats_are_read(api, address, running_broker):
    send(api, address)
    assert api.admin.runtime_info(address)["brokerVersionDesc"].startswith("V4_9")
    assert api.admin.broker_config(address)["brokerName"] == "broker-a"
    with pytest.raises(BrokerRefused):
        api.admin.broker_stats(address, "TOPIC_PUT_NUMS", "Nobody")
    running_broker.ask(lambda controller: controller.processors.sample_stats())
    assert api.admin.broker_stats(address, "TOPIC_PUT_NUMS", "T").stats_day.sum == 1
