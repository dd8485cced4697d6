from __future__ import annotations

import pytest
from received_messages import received

from rmq_spark.client.consumer.retries import Retries
from rmq_spark.client.errors import BrokerRefused, ConnectionClosed, RouteNotFound
from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.properties import decode_properties


class Brokers:
    """Take messages back, or are sent them, or neither."""

    def __init__(self):
        self.back, self.sent, self.refuses_back, self.refuses_send = [], [], False, None
        self.names, self.silent = ["broker-b"], set()

    def send_back(self, message, delay_level, times):
        if self.refuses_back:
            raise BrokerRefused(1, "no", "b:1", 36)
        self.back.append((message.queue_offset, delay_level, times))

    def send(self, address, header, body, message_id):
        if isinstance(self.refuses_send, ConnectionClosed):
            raise self.refuses_send
        self.sent.append((address, header, body, message_id))

    def publish_queues(self, topic):
        if isinstance(self.refuses_send, RouteNotFound):
            raise self.refuses_send
        return tuple(MessageQueue(topic, name, 0) for name in self.names)

    def master_address(self, broker_name):
        return f"{broker_name}:1"

    @property
    def connections(self):
        return self

    def is_silent(self, address):
        return address in self.silent


@pytest.fixture
def brokers():
    return Brokers()


@pytest.fixture
def retries(brokers):
    return Retries("G", brokers, brokers, brokers, 16)


def test_a_message_goes_back_to_its_broker(retries, brokers):
    assert retries.give_back(received(7), 4)
    assert brokers.back == [(7, 4, 16)]
    assert brokers.sent == []


def test_what_its_broker_does_not_take_is_sent_to_the_retry_topic_of_any(retries, brokers):
    brokers.refuses_back = True
    assert retries.give_back(received(7, b"body", "red", reconsume_times=2, colour="blue"), 0)
    ((address, header, body, message_id),) = brokers.sent
    assert (address, body, message_id) == ("broker-b:1", b"body", "id-7")
    assert (header.topic, header.reconsume_times, header.max_reconsume_times) == ("%RETRY%G", 3, 16)
    assert decode_properties(header.properties) == {
        "TAGS": "red",
        "colour": "blue",
        "RETRY_TOPIC": "T",
        "ORIGIN_MESSAGE_ID": "id-7",
        "UNIQ_KEY": "id-7",
        "DELAY": "5",
    }


def test_what_came_back_before_keeps_where_it_came_from(retries, brokers):
    retries.send_again(received(7, RETRY_TOPIC="First", ORIGIN_MESSAGE_ID="first", TRAN_MSG="true"))
    properties = decode_properties(brokers.sent[0][1].properties)
    assert (properties["RETRY_TOPIC"], properties["ORIGIN_MESSAGE_ID"]) == ("First", "first")
    assert "TRAN_MSG" not in properties


@pytest.mark.parametrize("why", [ConnectionClosed("b:1", "gone"), RouteNotFound("%RETRY%G")])
def test_what_nobody_takes_stays_with_its_consumer(retries, brokers, why):
    brokers.refuses_back, brokers.refuses_send = True, why
    assert not retries.give_back(received(7), 0)
