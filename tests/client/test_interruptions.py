"""A signal's handler may raise an error anywhere in a call, as Ctrl-C does: all others go on, and
nothing is left half done; see `interruptions`."""

from __future__ import annotations

import signal
import threading
import time

import pytest
from broker_kinds import wait_until
from interruptions import Signal, in_another_thread, interrupted_everywhere

from rmq_spark.client import (
    Admin,
    ClientInstance,
    LitePullConsumer,
    LitePullSettings,
    Message,
    Producer,
)
from rmq_spark.client.concurrency.locks import SIGNAL_CHECK_SECONDS
from rmq_spark.client.consumer.base_consumer_impl import ServiceState
from rmq_spark.client.errors import ClientShutDown
from rmq_spark.client.transport.pending_requests import ForkSafeFuture
from rmq_spark.wire.bodies.clients import ConsumeFromWhere
from rmq_spark.wire.bodies.configs import TopicConfig

SENDS = {
    "send": lambda producer: producer.send(Message("T", b"x")),
    "a-future": lambda producer: producer.send_async(Message("T", b"x")).result(5),
    "one-way": lambda producer: producer.send_one_way(Message("T", b"x")),
}
NEVER_S = 60


@pytest.fixture
def address(running_broker, api):
    topic = TopicConfig(topic_name="T", read_queue_nums=1, write_queue_nums=1)
    api.admin.create_topic(running_broker.address, topic)
    return running_broker.address


def consumer(instance, number):
    settings = LitePullSettings(consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
    made = LitePullConsumer(f"G{number}", instance, settings)
    made.subscribe("T")
    return made


@pytest.mark.parametrize(
    ("how", "reads_itself"),
    [("send", False), ("send", True), ("one-way", False), ("one-way", True), ("a-future", False)],
)
def test_no_other_thread_notices_that_a_send_is_interrupted(address, how, reads_itself):
    instance = ClientInstance(address, reads_itself=reads_itself)
    with instance, Producer("P", instance=instance) as producer:
        producer.send(Message("T", b"the first"))

        def others_send(_):
            in_another_thread(lambda: producer.send(Message("T", b"y")))
            if not reads_itself:
                in_another_thread(lambda: producer.send_async(Message("T", b"y")).result(5))
            wait_until("nothing is pending", lambda: not producer.health().pending_sends)

        interrupted_everywhere(lambda: None, lambda _: SENDS[how](producer), others_send, least=90)


def test_a_broker_can_be_connected_whose_first_connection_was_interrupted(address, running_broker):
    made, server = [], running_broker.controller.server
    before = server.connections

    def producer():
        made.append(Producer("P", address))
        made[-1].start()
        return made[-1]

    def sends(producer):
        in_another_thread(lambda: producer.send(Message("T", b"y")))
        producer.shutdown()
        wait_until("no connection is left", lambda: server.connections == before)

    interrupted_everywhere(producer, SENDS["send"], sends, step=3, least=300)
    made[-1].shutdown()


def test_a_poll_that_is_interrupted_leaves_the_consumer_whole(address):
    with (
        ClientInstance(address) as instance,
        Producer("P", instance=instance) as producer,
        consumer(instance, 0) as member,
    ):
        wait_until("it has its queue", member.assignment)

        def gets_messages(_):
            producer.send(Message("T", b"y"))
            in_another_thread(lambda: wait_until("it comes", lambda: member.poll(1_000)))

        interrupted_everywhere(lambda: None, lambda _: member.poll(1), gets_messages, least=30)


def test_a_consumer_whose_start_is_interrupted_is_no_member(address):
    with ClientInstance(address) as instance:
        made = []

        def another():
            made.append(consumer(instance, len(made)))
            return made[-1]

        def is_gone(member):
            wait_until("it has left", lambda: member.group not in instance._consumers)
            wait_until("the instance is used by one", lambda: instance._user_count == 1)
            assert not member.is_running
            if member.service_state is not ServiceState.CREATE_JUST:
                with pytest.raises(ClientShutDown):
                    member.start()

        interrupted_everywhere(another, LitePullConsumer.__enter__, is_gone, least=30)
        made[-1].shutdown()


def test_a_producer_whose_start_is_interrupted_can_be_started(address):
    with ClientInstance(address) as instance:
        made = []

        def another():
            made.append(Producer(f"P{len(made)}", instance=instance))
            return made[-1]

        def starts(producer):
            wait_until("it has left", lambda: producer.group not in instance._producers)
            wait_until("the instance is used by one", lambda: instance._user_count == 1)
            producer.start()
            producer.send(Message("T", b"y"))
            producer.shutdown()

        interrupted_everywhere(another, Producer.__enter__, starts, least=30)
        made[-1].shutdown()


def test_a_shutdown_that_is_interrupted_is_done_when_it_is_asked_for_again(address):
    with ClientInstance(address) as instance:
        made = []

        def another():
            made.append(consumer(instance, len(made)))
            made[-1].start()
            return made[-1]

        def ends(member):
            in_another_thread(member.shutdown)
            assert member.group not in instance._consumers
            assert instance._user_count == 1

        interrupted_everywhere(another, LitePullConsumer.shutdown, ends, least=20)


def test_a_producer_whose_shutdown_is_interrupted_ends_when_it_is_asked_for_again(address):
    with ClientInstance(address) as instance:
        made = []

        def another():
            made.append(Producer(f"P{len(made)}", instance=instance))
            made[-1].start()
            return made[-1]

        def ends(producer):
            in_another_thread(producer.shutdown)
            assert producer.group not in instance._producers
            assert instance._user_count == 1
            producer.start()
            producer.send(Message("T", b"y"))
            producer.shutdown()
            assert instance._user_count == 1

        interrupted_everywhere(another, Producer.shutdown, ends, least=15)


def leave(made):
    made.__exit__(None, None, None)


@pytest.mark.parametrize(
    "kind",
    [
        lambda instance, number: Producer(f"P{number}", instance=instance),
        consumer,
        lambda instance, _: instance,
        lambda instance, _: Admin(instance=instance),
    ],
    ids=["a producer", "a consumer", "an instance", "an admin"],
)
def test_who_is_interrupted_at_the_end_of_a_with_block_leaves_nothing_behind(address, kind):
    """Nobody asks again there. Of the very call of ``__exit__`` only Python itself knows."""
    with ClientInstance(address) as instance:
        number = 0

        def another():
            nonlocal number
            number += 1
            return kind(instance, number).__enter__()

        def is_gone(_):
            wait_until("the instance is used by one", lambda: instance._user_count == 1)
            assert not instance._producers
            assert not instance._consumers
            assert not instance.is_shut_down

        interrupted_everywhere(another, leave, is_gone, least=15)


def test_a_signal_that_another_thread_gets_ends_a_wait_for_a_future_all_the_same():
    """As one does that comes just before the wait begins: Python notes it, and nobody wakes."""

    def handle(*_):
        raise Signal

    is_over, future = threading.Event(), ForkSafeFuture()

    def get_the_signal():
        signal.pthread_kill(threading.get_ident(), signal.SIGALRM)
        if not is_over.wait(10 * SIGNAL_CHECK_SECONDS):
            future.set_result(None)

    before = signal.signal(signal.SIGALRM, handle)
    try:
        threading.Timer(0.2, get_the_signal).start()  # it waits by then, or does soon
        with pytest.raises(Signal):
            future.result(NEVER_S)
    finally:
        is_over.set()
        signal.signal(signal.SIGALRM, before)
    assert not future.done()


def test_a_future_still_ends_when_its_time_is_over():
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        ForkSafeFuture().result(1.2 * SIGNAL_CHECK_SECONDS)
    assert time.monotonic() - began >= 1.2 * SIGNAL_CHECK_SECONDS
