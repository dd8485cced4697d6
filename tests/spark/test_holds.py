import json
import threading
import time

from middle_boxes import BlackHole
from name_servers import JoiningNameServer
from source_parts import BROKER, queue_of, queues_of, send

from rmq_spark.wire.message_queue import MessageQueue
from rocketpoll import EmbeddedBroker


def test_waiting_ends_with_a_message(rocketpoll_broker, rocketpoll_topic):
    with queues_of(rocketpoll_broker, rocketpoll_topic) as queues:
        ends = queues.ends(queues.discover())
        sender = threading.Timer(0.05, send, (rocketpoll_broker, rocketpoll_topic, 2, "a"))
        sender.start()
        queues.wait(ends, 30_000)
        sender.join()
        assert queues.ends(ends)[queue_of(rocketpoll_topic, 2)] == 1


def test_waiting_ends_with_its_time(rocketpoll_broker, rocketpoll_topic):
    with queues_of(rocketpoll_broker, rocketpoll_topic) as queues:
        ends = queues.ends(queues.discover())
        queues.wait(ends, 30)
        assert queues.ends(ends) == ends


def test_messages_that_the_filter_leaves_out_wake_nobody(rocketpoll_broker, rocketpoll_topic):
    with queues_of(rocketpoll_broker, rocketpoll_topic, tags="wanted") as queues:
        ends = queues.ends(queues.discover())
        both = threading.Event()

        def send_both():
            send(rocketpoll_broker, rocketpoll_topic, 0, "no", tags="other")
            both.set()
            send(rocketpoll_broker, rocketpoll_topic, 1, "yes", tags="wanted")

        sender = threading.Timer(0.05, send_both)
        sender.start()
        queues.wait(ends, 30_000)
        assert both.is_set()
        sender.join()


def test_a_host_that_is_down_makes_no_wait_longer(rocketpoll_broker, rocketpoll_topic):
    """One that gives no answer at all is found out only by the time that passes."""
    rocketpoll_broker.create_topic(rocketpoll_topic, 8)
    with (
        BlackHole() as hole,
        queues_of(
            rocketpoll_broker, rocketpoll_topic, brokerAddresses=json.dumps({BROKER: hole.address})
        ) as queues,
    ):
        ends = dict.fromkeys(queues.discover(), 0)
        began = time.monotonic()
        for _ in range(2):
            assert not queues.wait(ends, 200)
        assert time.monotonic() - began < 2  # and the first try alone takes three seconds


def test_nor_does_news_of_another_broker_come_later_for_it(rocketpoll_topic):
    with EmbeddedBroker() as here, EmbeddedBroker(brokerName="broker-b") as away:
        for broker in (here, away):
            broker.create_topic(rocketpoll_topic, 4)
        with (
            JoiningNameServer(here, away) as names,
            BlackHole() as hole,
            queues_of(
                names, rocketpoll_topic, brokerAddresses=json.dumps({"broker-b": hole.address})
            ) as queues,
        ):
            ends = dict.fromkeys(queues.discover(), 0)
            assert MessageQueue(rocketpoll_topic, "broker-b", 0) in ends
            sender = threading.Timer(0.1, send, (here, rocketpoll_topic, 2, "a"))
            sender.start()
            began = time.monotonic()
            assert queues.wait(ends, 30_000)
            assert time.monotonic() - began < 2
            sender.join()
