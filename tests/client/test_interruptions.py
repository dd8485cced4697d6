"""Ctrl-C or an exception of a signal handler ends a call cleanly, and the client stays usable."""

import signal
import threading
import time
from contextlib import contextmanager

import pytest
from support.brokers.broker_kinds import wait_until
from support.servers.fake_servers import FakeServer, silent

from rmq_spark.client.concurrency.threads import SIGNAL_CHECK_SECONDS
from rmq_spark.client.consumer.group_lifecycle import ServiceState
from rmq_spark.client.transport.pending_requests import ForkSafeFuture
from rmq_spark.wire.bodies.configs import TopicConfig
from rocketpoll import ClientInstance, LitePullConsumer, Message, Producer

NEVER_S = 60


class Signal(BaseException):
    """The exception of a signal handler."""


@contextmanager
def interrupted_after(seconds):
    """Expect a signal handler's exception to end the block after this time."""

    def handle(*_):
        raise Signal

    before = signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        with pytest.raises(Signal):
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture
def address(running_broker, api):
    topic = TopicConfig(topic_name="T", read_queue_nums=1, write_queue_nums=1)
    api.admin.create_topic(running_broker.address, topic)
    return running_broker.address


def interrupt(*_, **__):
    raise Signal


def test_interrupted_async_send_frees_its_room(address, monkeypatch):
    with Producer("P", address) as producer:
        producer.send(Message("T", b"the first"))
        with monkeypatch.context() as patched:
            patched.setattr(producer.instance.api, "submit_send", interrupt)
            with pytest.raises(Signal):
                producer.send_async(Message("T", b"x"))
        assert not producer.health().pending_sends
        producer.send_async(Message("T", b"y")).result(5)


def test_interrupted_poll_leaves_the_consumer_usable(address):
    with LitePullConsumer("G", address) as consumer, Producer("P", address) as producer:
        consumer.subscribe("T")
        wait_until("it has its queue", consumer.assignment)
        with interrupted_after(0.2):
            consumer.poll(NEVER_S * 1000)
        producer.send(Message("T", b"y"))
        wait_until("it comes", lambda: consumer.poll(1_000))


@pytest.mark.parametrize(
    "make", [lambda at: LitePullConsumer("G", at), lambda at: Producer("P", at)], ids=["G", "P"]
)
def test_interrupted_use_of_a_silent_name_server_ends_the_with_block(make):
    with FakeServer(silent) as name_server:
        user = make(name_server.address)
        if isinstance(user, LitePullConsumer):
            user.subscribe("T")
        with interrupted_after(0.2), user:
            user.send(Message("T", b"x"))
        assert not user.is_running
        if isinstance(user, LitePullConsumer):
            assert user.service_state is ServiceState.START_FAILED


def test_interrupted_start_of_an_instance_can_be_repeated(address, monkeypatch):
    instance = ClientInstance(address)
    with monkeypatch.context() as patched:
        patched.setattr("rmq_spark.client.concurrency.scheduler.start_thread", interrupt)
        with pytest.raises(Signal):
            instance.start()
    with instance, Producer("P", instance=instance) as producer:
        producer.send(Message("T", b"x"))


def test_interrupted_producer_shutdown_continues_in_the_background(address, monkeypatch):
    producer, may_end = Producer("P", address), threading.Event()
    producer.start()
    unregister = producer.instance.unregister_producer
    monkeypatch.setattr(
        producer.instance,
        "unregister_producer",
        lambda group: (may_end.wait(NEVER_S), unregister(group)),
    )
    with interrupted_after(0.2):
        producer.shutdown()
    may_end.set()
    wait_until("it has ended", lambda: producer.instance.is_shut_down)
    producer.shutdown()


def test_signal_delivered_to_another_thread_interrupts_a_future_wait():
    """A signal can also arrive just before the wait begins: Python only records it, and does not
    wake the waiter."""
    is_over, future = threading.Event(), ForkSafeFuture()

    def get_the_signal():
        signal.pthread_kill(threading.get_ident(), signal.SIGALRM)
        if not is_over.wait(10 * SIGNAL_CHECK_SECONDS):
            future.set_result(None)

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        threading.Timer(0.2, get_the_signal).start()  # the main thread is waiting by then
        with pytest.raises(Signal):
            future.result(NEVER_S)
    finally:
        is_over.set()
        signal.signal(signal.SIGALRM, before)
    assert not future.done()


def test_future_wait_times_out_between_signal_checks():
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        ForkSafeFuture().result(1.2 * SIGNAL_CHECK_SECONDS)
    assert time.monotonic() - began >= 1.2 * SIGNAL_CHECK_SECONDS
