"""Failed messages are sent back, or to the retry topic, with their origin."""

from dataclasses import replace
from random import Random

import pytest
from support.messages.received_messages import received

from rmq_spark.client.consumer.dispatch.redelivery import Redelivery
from rmq_spark.client.errors import BrokerRefused, ConnectionClosed, MessageIllegal, RouteNotFound
from rmq_spark.wire.codes import MessageSysFlag
from rmq_spark.wire.compression import compress_body, uncompress_body
from rmq_spark.wire.message.properties import decode_properties
from rmq_spark.wire.message_queue import MessageQueue


class Brokers:
    """Brokers that accept both messages sent back and sends, or only sends, or neither."""

    def __init__(self):
        self.back, self.sent, self.refuses_back, self.refuses_send = [], [], False, None
        self.names, self.silent = ["broker-b"], set()

    def send_back(self, message, delay_level, times):
        if self.refuses_back:
            raise BrokerRefused(1, "no", "b:1", 36)
        self.back.append((message.queue_offset, delay_level, times))

    def send(self, address, header, body, message_id):
        if isinstance(self.refuses_send, (ConnectionClosed, MessageIllegal)):
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
    return Redelivery("G", brokers, brokers, brokers, 16)


def test_failed_message_is_sent_back_to_its_broker(retries, brokers):
    assert retries.send_back(received(7), 4)
    assert brokers.back == [(7, 4, 16)]
    assert brokers.sent == []


def test_message_refused_by_its_broker_is_sent_to_the_retry_topic(retries, brokers):
    brokers.refuses_back = True
    assert retries.send_back(received(7, b"body", "red", reconsume_times=2, colour="blue"), 0)
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


def test_retried_message_keeps_its_origin_topic_and_id(retries, brokers):
    brokers.refuses_back = True
    retries.send_back(
        received(7, RETRY_TOPIC="First", ORIGIN_MESSAGE_ID="first", TRAN_MSG="true"), 0
    )
    properties = decode_properties(brokers.sent[0][1].properties)
    assert (properties["RETRY_TOPIC"], properties["ORIGIN_MESSAGE_ID"]) == ("First", "first")
    assert "TRAN_MSG" not in properties


@pytest.mark.parametrize("why", [ConnectionClosed("b:1", "gone"), RouteNotFound("%RETRY%G")])
def test_message_that_no_broker_takes_stays_with_its_consumer(retries, brokers, why):
    brokers.refuses_back, brokers.refuses_send = True, why
    assert not retries.send_back(received(7), 0)


OTHERS = [RuntimeError("can't start new thread"), MemoryError(), KeyError("x"), OSError(24, "full")]
"""Errors of the client itself, before a broker answers."""


@pytest.mark.parametrize("why", OTHERS, ids=lambda each: type(each).__name__)
def test_unexpected_error_in_send_back_keeps_or_resends_the_message(
    retries, brokers, monkeypatch, why
):
    def fails(*_):
        raise why

    monkeypatch.setattr(brokers, "send_back", fails)
    assert retries.send_back(received(7), 0)
    assert len(brokers.sent) == 1
    monkeypatch.setattr(brokers, "publish_queues", fails)
    assert not retries.send_back(received(7), 0)
    assert not retries.send_to_dlq(received(7))


ILLEGAL = MessageIllegal(13, "too large", "b:1", 310)


def test_dead_letter_is_sent_to_the_retry_topic_first(retries, brokers):
    assert retries.send_to_dlq(received(7, reconsume_times=16))
    assert (len(brokers.sent), brokers.back) == (1, [])


@pytest.mark.parametrize("why", [ILLEGAL, RouteNotFound("%RETRY%G")])
def test_dead_letter_that_cannot_be_sent_is_sent_back_instead(retries, brokers, why):
    brokers.refuses_send = why
    assert retries.send_to_dlq(received(7, reconsume_times=16))
    assert brokers.back == [(7, -1, 16)]
    brokers.refuses_back = True
    assert not retries.send_to_dlq(received(7, reconsume_times=16))


def test_dead_letter_waits_for_unreachable_brokers(retries, brokers):
    brokers.refuses_send = ConnectionClosed("b:1", "gone")
    assert not retries.send_to_dlq(received(7, reconsume_times=16))
    assert brokers.back == []


@pytest.mark.parametrize(
    "kind",
    [0, *(MessageSysFlag[f"COMPRESSION_{name}"] for name in ("ZLIB", "LZ4", "ZSTD"))],
)
def test_compressed_body_is_resent_compressed(retries, brokers, kind):
    message = replace(
        received(7, b"x" * 100_000),
        sys_flag=int(MessageSysFlag.COMPRESSED | MessageSysFlag.BORN_HOST_V6 | kind),
    )
    assert retries.send_to_dlq(message)
    [(_, header, body, _)] = brokers.sent
    assert header.sys_flag == MessageSysFlag.COMPRESSED | kind
    assert len(body) == len(compress_body(message.body, kind or MessageSysFlag.COMPRESSION_ZLIB))
    assert uncompress_body(body, header.sys_flag) == message.body


def test_body_that_grows_by_compression_is_resent_plain(retries, brokers):
    body = Random(1).randbytes(10_000)
    assert retries.send_to_dlq(replace(received(7, body), sys_flag=int(MessageSysFlag.COMPRESSED)))
    [(_, header, sent, _)] = brokers.sent
    assert (header.sys_flag, sent) == (0, body)


def test_message_changed_by_a_busy_listener_stays_local(retries, brokers):
    brokers.refuses_back = True
    assert not retries.send_back(received(7, attempt=3), 0)
