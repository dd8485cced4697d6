"""Sends with retries: which broker is tried next, and what the error lists."""

import contextlib
import os

import pytest
from support.brokers.broker_kinds import wait_until
from support.clients.fake_members import Producer as Member
from support.servers.fake_servers import FakeCluster

from rmq_spark.client.errors import (
    BrokerRefused,
    ClientError,
    ClientShutDown,
    ConnectionFailed,
    MessageIllegal,
    MessageRejected,
    NoNameServer,
    PartlySent,
    RequestTimeout,
    RouteNotFound,
    SendFailed,
    SystemBusy,
)
from rmq_spark.client.instance.instance import ClientInstance
from rmq_spark.client.message import Message
from rmq_spark.client.producer.prepared_message import SendRules
from rmq_spark.client.producer.producer import Producer, topic_sender
from rmq_spark.client.producer.topic_sender import RETRY_RESPONSE_CODES
from rmq_spark.client.results import SendStatus
from rmq_spark.wire.bodies.configs import TopicConfig
from rmq_spark.wire.message_queue import MessageQueue
from rocketpoll import EmbeddedBroker

X = Message("T", b"x")


def ok(_):
    return 0


def always(code):
    return lambda _: code


@pytest.fixture
def topic(running_broker, api):
    config = TopicConfig(topic_name="T", read_queue_nums=4, write_queue_nums=4)
    api.admin.create_topic(running_broker.address, config)
    return "T"


@pytest.fixture
def producer(running_broker, topic):
    with Producer("P", running_broker.address) as made:
        yield made


@pytest.mark.parametrize("code", sorted(RETRY_RESPONSE_CODES))
def test_retryable_response_code_is_retried_at_another_broker(code):
    with FakeCluster(a=always(code), b=ok) as cluster, Producer("P", cluster.address) as producer:
        for _ in range(3):
            assert producer.send(X).queue.broker_name == "b"
        assert cluster.brokers["a"].sent


@pytest.mark.parametrize("code", [2, 3, 13, 15, 23, 26, 207, 215, 9_999])
def test_final_response_code_is_not_retried(code):
    with (
        FakeCluster(a=always(code), b=always(code)) as cluster,
        Producer("P", cluster.address) as producer,
    ):
        with pytest.raises(BrokerRefused) as raised:
            producer.send(X)
        assert raised.value.code == code
        assert sum(cluster.sends().values()) == 1


def test_unreachable_broker_is_skipped_by_sends():
    with FakeCluster(a=ok, b=ok) as cluster, Producer("P", cluster.address) as producer:
        producer.send(X)
        cluster.servers["a"].__exit__()
        assert {producer.send(X).queue.broker_name for _ in range(4)} == {"b"}


def test_silent_broker_costs_the_send_timeout_once():
    with FakeCluster(a=always(None)) as cluster, Producer("P", cluster.address) as producer:
        with pytest.raises(SendFailed) as raised:
            producer.send(X, timeout_ms=600)
        assert isinstance(raised.value.tries[0], RequestTimeout)


@pytest.mark.parametrize("message", [X, Message("T", b"x", sharding_key="k")])
def test_send_to_a_fixed_queue_is_not_retried(message):
    queue = None if message.sharding_key else MessageQueue("T", "a", 0)
    with FakeCluster(a=always(14)) as cluster, Producer("P", cluster.address) as producer:
        with pytest.raises(BrokerRefused, match="answer 14"):
            producer.send(message, queue)
        assert cluster.sends() == {"a": 1}


@pytest.mark.parametrize(("retries", "names"), [(True, {"b"}), (False, {"a", "b"})])
def test_message_not_stored_ok_is_sent_to_another_broker_if_set(retries, names):
    with (
        FakeCluster(a=always(10), b=ok) as cluster,
        Producer("P", cluster.address, retry_another_broker_when_not_store_ok=retries) as producer,
    ):
        assert {producer.send(X).queue.broker_name for _ in range(4)} == names


def test_message_not_stored_ok_anywhere_returns_its_last_status():
    with (
        FakeCluster(a=always(10)) as cluster,
        Producer("P", cluster.address, retry_another_broker_when_not_store_ok=True) as producer,
    ):
        assert producer.send(X).send_status is SendStatus.FLUSH_DISK_TIMEOUT
        assert cluster.sends() == {"a": 3}


def test_message_stored_by_the_first_try_counts_though_the_second_is_refused():
    with (
        FakeCluster(a=lambda number: 10 if number == 1 else 2) as cluster,
        Producer("P", cluster.address, retry_another_broker_when_not_store_ok=True) as producer,
    ):
        assert producer.send(X).send_status is SendStatus.FLUSH_DISK_TIMEOUT
        assert cluster.sends() == {"a": 2}


def test_slow_brokers_are_avoided_if_that_is_wanted():
    with (
        FakeCluster(a=always(1), b=ok) as cluster,
        Producer("P", cluster.address, send_latency_fault_enable=True) as producer,
    ):
        cluster.servers["a"].__exit__()
        for _ in range(6):
            producer.send(X)
        assert not topic_sender(producer).queue_selector.is_available("a")
        assert topic_sender(producer).queue_selector.is_available("b")


def test_send_batch_failing_half_way_reports_the_messages_sent():
    def second_fails(number):
        return 0 if number == 1 else 2

    rules = SendRules("P", max_message_bytes=1_000)
    with (
        FakeCluster(a=second_fails) as cluster,
        Producer("P", cluster.address, rules=rules) as producer,
    ):
        with pytest.raises(PartlySent) as raised:
            producer.send_batch([Message("T", b"x" * 400) for _ in range(6)])
        error = raised.value
        assert error.messages_sent == len(error.results[0].message_id.split(",")) == 1
        assert isinstance(error.tries[0], SystemBusy)


def test_illegal_batch_is_halved_down_to_the_bad_message():
    with FakeCluster(a=always(13)) as cluster, Producer("P", cluster.address) as producer:
        with pytest.raises(MessageIllegal):
            producer.send_batch([X] * 4)
        assert cluster.sends() == {"a": 4}  # the last attempt sends it alone, not as a batch


def test_send_before_start_and_after_shutdown_is_refused(running_broker, topic):
    producer = Producer("P", running_broker.address)
    with pytest.raises(ClientShutDown, match="Start it"):
        producer.send(X)
    with producer:
        producer.send(X)
    producer.shutdown()
    for send in (producer.send, producer.send_async, producer.send_one_way):
        with pytest.raises(ClientShutDown):
            send(X)


def test_started_producer_may_enter_a_with_statement(running_broker, topic):
    producer = Producer("twice", running_broker.address)
    producer.start()
    with producer:
        producer.send(Message(topic, b"x"))
    with pytest.raises(ClientShutDown):
        producer.instance.start()  # it was ended by a single shutdown


def test_producer_refuses_invalid_messages_and_groups(producer):
    with pytest.raises(MessageRejected):
        producer.send(Message("T", b""))
    with pytest.raises(MessageRejected, match="one of topic T"):
        producer.send(X, MessageQueue("U", "broker-a", 0))
    with pytest.raises(MessageRejected):
        producer.send_batch([X, Message("T", b"")])
    with pytest.raises(MessageRejected):
        Producer("no group", instance=producer.instance).start()
    with pytest.raises(MessageRejected):
        Producer("P", instance=producer.instance).start()
    producer.send(X)  # failed starts have not changed the instance


def test_unknown_topic_and_unreachable_name_server_raise_different_errors():
    with (
        FakeCluster() as cluster,
        Producer("P", cluster.address) as producer,
        pytest.raises(RouteNotFound),
    ):
        producer.send(Message("Nobody", b"x"))
    with Producer("P", cluster.address) as producer, pytest.raises(NoNameServer) as raised:
        producer.send(X)
    assert isinstance(raised.value.tries[0], ConnectionFailed)


def test_transaction_member_is_registered_with_the_instance(running_broker):
    member = Member()
    with (
        ClientInstance(running_broker.address) as instance,
        Producer("P", instance=instance, member=member),
    ):
        assert instance._producers == {"P": member}


@pytest.mark.parametrize("way", ["waits", "futures"])
def test_producer_follows_a_reduced_number_of_queues(way):
    with EmbeddedBroker() as broker, Producer("P", broker.address) as producer:
        broker.create_topic("T", queues=8)
        assert len({producer.send(Message("T", b"x")).queue.queue_id for _ in range(8)}) == 8
        broker.delete_topic("T")
        broker.create_topic("T", queues=1)
        if way == "waits":
            for _ in range(9):
                producer.send(Message("T", b"x"))
        else:
            with contextlib.suppress(ClientError):
                for _ in range(9):
                    producer.send_async(Message("T", b"x")).result(30)
            wait_until("the queues are known", lambda: len(producer.publish_queues("T")) == 1)


def test_message_of_maximum_size_is_sent_outside_the_batch():
    with (
        EmbeddedBroker(maxMessageSize=65_536) as broker,
        Producer("P", broker.address, rules=SendRules("P", max_message_bytes=65_536)) as producer,
    ):
        broker.create_topic("T", queues=1)
        sizes = [10, 65_536, 20]
        producer.send_batch([Message("T", os.urandom(size)) for size in sizes])
        assert [len(each.body) for each in broker.messages("T")] == sizes
