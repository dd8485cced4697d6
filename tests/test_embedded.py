"""A broker for a test, a notebook or a program: ready when it returns, and gone with whoever started it."""

from __future__ import annotations

import threading

import pytest

from broker.embedded import EmbeddedBroker, EmbeddedBrokerError, NotInTime
from broker.settings import ConfigError
from rmq_spark.client import LitePullConsumer


def bodies(broker, topic):
    return [message.body for message in broker.messages(topic)]


def test_what_is_sent_to_it_is_there_and_nothing_is_left_behind():
    with EmbeddedBroker() as broker:
        broker.create_topic("orders", queues=2)
        broker.send("orders", "one", b"two", "three")
        assert bodies(broker, "orders") == [b"one", b"two", b"three"]
        assert {message.queue.queue_id for message in broker.messages("orders")} == {0, 1}
        directory = broker.directory
        assert directory.is_dir()
        assert broker.address == f"127.0.0.1:{broker.port}"
    assert not directory.exists()


def test_a_directory_that_is_given_stays_with_what_is_in_it(tmp_path):
    with EmbeddedBroker(tmp_path) as broker:
        broker.send("orders", "one")
    with EmbeddedBroker(str(tmp_path)) as broker:
        assert bodies(broker, "orders") == [b"one"]


def test_waiting_ends_with_the_message_that_was_waited_for():
    with EmbeddedBroker() as broker:
        late = threading.Thread(target=broker.send, args=("orders", "one", "two"))
        late.start()
        broker.wait_until_arrived("orders", 2)
        late.join()
        assert bodies(broker, "orders") == [b"one", b"two"]


def test_waiting_in_vain_says_what_was_there_instead():
    with EmbeddedBroker() as broker:
        with pytest.raises(NotInTime, match=r"there is no topic orders, only .*TBW102"):
            broker.wait_until_arrived("orders", 1, timeout=0)
        broker.create_topic("orders", queues=1)
        broker.send("orders", "one", "two")
        with pytest.raises(NotInTime, match="2 have arrived, 2 in queue 0"):
            broker.wait_until_arrived("orders", 3, timeout=0.01)
        with pytest.raises(NotInTime, match="0 of 2 in queue 0; 0 of its consumers are online"):
            broker.wait_until_consumed("billing", "orders", timeout=0.01)


def test_it_is_told_when_a_group_has_consumed_all():
    with EmbeddedBroker() as broker:
        broker.create_topic("orders", queues=1)
        broker.send("orders", "one", "two")
        with LitePullConsumer("billing", broker.address) as consumer:
            consumer.subscribe("orders")
            seen = []
            while len(seen) < 2:
                seen += consumer.poll(1_000)
            consumer.commit()
            broker.wait_until_consumed("billing", "orders")


def test_settings_carry_the_names_of_the_broker_and_are_checked():
    with EmbeddedBroker(defaultTopicQueueNums=3, autoCreateTopicEnable=True) as broker:
        assert broker.send("orders", "one")[0].queue.queue_id < 3
    with pytest.raises(ConfigError, match="did you mean flushDiskType"):
        EmbeddedBroker(flushDiskTyp="SYNC_FLUSH")
    with pytest.raises(EmbeddedBrokerError, match="it is given as port"):
        EmbeddedBroker(listenPort=1)


def test_a_port_or_a_directory_in_use_is_named(tmp_path):
    with EmbeddedBroker(tmp_path) as broker:
        with pytest.raises(EmbeddedBrokerError, match=f"cannot listen on 127.0.0.1:{broker.port}"):
            EmbeddedBroker(port=broker.port).start()
        with pytest.raises(EmbeddedBrokerError, match="in use by this process already"):
            EmbeddedBroker(tmp_path).start()
        assert bodies(broker, "TBW102") == []
