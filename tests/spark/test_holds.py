"""An idle query waits for messages at the brokers."""

import threading

from support.spark.source_queries import queue_of, queues_of, send


def test_idle_wait_ends_with_a_message(rocketpoll_broker, rocketpoll_topic):
    with queues_of(rocketpoll_broker, rocketpoll_topic) as queues:
        ends = queues.ends(queues.discover())
        sender = threading.Timer(0.05, send, (rocketpoll_broker, rocketpoll_topic, 2, "a"))
        sender.start()
        queues.wait(ends, 30_000)
        sender.join()
        assert queues.ends(ends)[queue_of(rocketpoll_topic, 2)] == 1


def test_idle_wait_ends_with_its_timeout(rocketpoll_broker, rocketpoll_topic):
    with queues_of(rocketpoll_broker, rocketpoll_topic) as queues:
        ends = queues.ends(queues.discover())
        queues.wait(ends, 30)
        assert queues.ends(ends) == ends


def test_removed_queue_does_not_wake_a_waiting_query(rocketpoll_broker, rocketpoll_topic):
    with queues_of(rocketpoll_broker, rocketpoll_topic) as queues:
        ends = queues.ends(queues.discover())
        send(rocketpoll_broker, rocketpoll_topic, 2, "a")
        assert queues.wait(ends, 30_000)
        del ends[queue_of(rocketpoll_topic, 2)]
        assert not queues.wait(ends, 30)


def test_filtered_out_messages_do_not_wake_a_waiting_query(rocketpoll_broker, rocketpoll_topic):
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
