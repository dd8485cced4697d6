"""Sends without waiting: retries, limits of pending sends, and shutdown."""

import gc
import threading
from types import NoneType

import pytest
from support.brokers.broker_kinds import wait_until
from support.servers.fake_servers import FakeCluster, FakeServer

from rmq_spark.client.errors import (
    BrokerRefused,
    ClientError,
    ConnectionClosed,
    MessageRejected,
    SendFailed,
    TooManyPending,
)
from rmq_spark.client.instance.instance import ClientInstance
from rmq_spark.client.message import Message
from rmq_spark.client.producer.prepared_message import SendRules
from rmq_spark.client.producer.producer import Producer, topic_sender
from rmq_spark.wire.codes import RequestCode
from rmq_spark.wire.message_queue import MessageQueue

X = Message("T", b"x")
AS_IT_IS = SendRules("P", compress_body_bytes=1 << 30)


def ok(_):
    return 0


def test_async_send_is_retried_on_another_broker_when_a_connection_fails():
    with FakeCluster(a=ok, b=ok) as cluster, Producer("P", cluster.address) as producer:
        producer.send(X)
        cluster.servers["a"].__exit__()
        assert {producer.send_async(X).result(10).queue.broker_name for _ in range(6)} == {"b"}


def test_refused_async_send_is_not_retried():
    with FakeCluster(a=lambda _: 14) as cluster, Producer("P", cluster.address) as producer:
        with pytest.raises(BrokerRefused):
            producer.send_async(X).result(10)
        assert cluster.sends() == {"a": 1}


def test_async_send_is_tried_three_times():
    with FakeCluster(a=ok) as cluster, Producer("P", cluster.address) as producer:
        producer.publish_queues("T")
        cluster.servers["a"].__exit__()
        with pytest.raises(SendFailed) as raised:
            producer.send_async(X).result(10)
        assert len(raised.value.tries) == 3


def test_async_send_without_retry_thread_reports_failure_and_later_sends_work(monkeypatch):
    real, is_limited = threading.Thread.start, True

    def start(thread):
        if is_limited and thread.name.startswith("rocketpoll sends again"):
            raise RuntimeError("can't start new thread")
        real(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    with FakeCluster(a=ok, b=ok) as cluster, Producer("P", cluster.address) as producer:
        producer.publish_queues("T")
        cluster.servers["a"].__exit__()
        futures = [producer.send_async(X, timeout_ms=20_000) for _ in range(6)]
        found = [future.exception(10) for future in futures]
        # some were sent to b directly
        assert {type(error) for error in found} == {SendFailed, NoneType}
        is_limited = False
        assert {producer.send_async(X).result(10).queue.broker_name for _ in range(6)} == {"b"}


def test_async_send_to_a_fixed_queue_is_tried_once():
    with FakeCluster(a=ok) as cluster, Producer("P", cluster.address) as producer:
        producer.publish_queues("T")
        cluster.servers["a"].__exit__()
        with pytest.raises(ClientError) as raised:
            producer.send_async(X, MessageQueue("T", "a", 0)).result(10)
        assert not isinstance(raised.value, SendFailed)


def test_pending_async_sends_are_limited():
    go_on = threading.Event()

    def story(_):
        go_on.wait(10)
        return 0

    with FakeCluster(a=story) as cluster, Producer("P", cluster.address, pending_max=2) as producer:
        futures = [producer.send_async(X, timeout_ms=20_000) for _ in range(2)]
        with pytest.raises(TooManyPending, match="too many sends wait for their responses: 2 with"):
            producer.send_async(X, timeout_ms=10)
        go_on.set()
        futures.append(producer.send_async(X, timeout_ms=20_000))
        assert [future.result(10).send_status.name for future in futures] == ["SEND_OK"] * 3


def test_async_send_needs_a_connection_that_a_thread_reads():
    with FakeCluster(a=ok) as cluster:
        instance = ClientInstance(cluster.address, reads_itself=True)
        with Producer("P", instance=instance) as producer:
            assert producer.send(X).send_status.name == "SEND_OK"
            with pytest.raises(MessageRejected, match=r"read by threads, found .reads_itself=True"):
                producer.send_async(X)


def test_producer_shutdown_fails_pending_async_sends():
    with FakeCluster(a=lambda _: None) as cluster:
        with Producer("P", cluster.address) as producer:
            future = producer.send_async(X, timeout_ms=60_000)
        assert isinstance(future.exception(10), ClientError)


def test_future_of_a_failed_send_does_not_keep_its_message():
    with FakeCluster(a=ok) as cluster, Producer("P", cluster.address) as producer:
        producer.publish_queues("T")
        cluster.servers["a"].__exit__()
        future = producer.send_async(Message("T", b"not to be kept"), timeout_ms=2_000)
        assert isinstance(future.exception(10), SendFailed)
        gc.collect()
        kept = [each for each in gc.get_objects() if isinstance(each, Message)]
        assert b"not to be kept" not in {message.body for message in kept}


class Trickling:
    """A broker that reads slowly until released."""

    def __init__(self):
        self.go_on, self.bodies = threading.Event(), []

    def __call__(self, peer):
        while (request := peer.receive()) is not None:
            if request.code == RequestCode.EXTENSIONS:
                peer.send(request.respond(3, "not supported"))
            elif request.code == RequestCode.SEND_MESSAGE_V2:
                self.bodies.append(bytes(request.body[:8]))
                fields = {"msgId": "m", "queueId": "0", "queueOffset": "1"}
                peer.send(request.respond(0, "", fields))
                self.go_on.wait(0.05)
            else:
                peer.send(request.respond(0))


def heads_of(sends):
    """Return the maximum size of this number of frame headers and a heartbeat's."""
    return 1_000 * (sends + 1)


def test_timed_out_async_sends_to_a_slow_broker_are_neither_kept_nor_sent():
    limit, size, broker = 4 << 20, 1 << 16, Trickling()
    failed, most, refused = set(), 0, 0
    with (
        FakeCluster(a=ok) as cluster,
        FakeServer(broker) as server,
        Producer("P", cluster.address, rules=AS_IT_IS, pending_bytes_max=limit) as producer,
    ):
        cluster.servers["a"] = server
        producer.send(X)
        for number in range(600):
            body = b"%08d" % number + bytes(size)

            def ends(future, body=body):
                if future.exception() is not None:
                    failed.add(body[:8])

            try:
                future = producer.send_async(Message("T", body), timeout_ms=100)
                future.add_done_callback(ends)
            except TooManyPending:
                refused += 1
            health = producer.health()
            most = max(most, health.unwritten_bytes)
            heads = heads_of(health.pending_sends)
            assert health.unwritten_bytes <= health.pending_bytes + heads
        assert most <= limit + heads_of(limit // size)
        wait_until("most are given up", lambda: len(failed) > 100)
        broker.go_on.set()
        wait_until("nothing is pending", lambda: producer.health().pending_sends == 0)
        wait_until("nothing is unwritten", lambda: producer.health().unwritten_bytes == 0)
        assert producer.send(X).send_status.name == "SEND_OK"  # completes after all of them
        assert len(server.peers) == 1  # the same connection for all
    never_sent = failed - set(broker.bodies)
    assert len(never_sent) > 50
    assert len(broker.bodies) + len(never_sent) + refused == 602


def test_slow_send_callbacks_block_senders_but_not_themselves():
    go_on, ran = threading.Event(), []
    with FakeCluster(a=ok) as cluster, Producer("P", cluster.address, pending_max=3) as producer:

        def sends_more(_):
            go_on.wait(10)
            ran.append(producer.send_async(X, timeout_ms=2_000))

        futures = []

        def send_one():
            futures.append(producer.send_async(X, timeout_ms=500))
            futures[-1].add_done_callback(sends_more)
            futures[-1].result(10)

        for _ in range(3):
            send_one()
        with pytest.raises(TooManyPending, match="callbacks of sends are queued: 3"):
            # the first may already run, and wait there
            assert all(send_one() is None for _ in range(2))
        assert producer.health().pending_sends == 0
        go_on.set()
        wait_until("all have run", lambda: len(ran) == len(futures))
        assert all(future.result(10) for future in ran)
        assert producer.send_async(X).result(10)


class Outcome:
    """Receives the result of a send that is not awaited."""

    def __init__(self):
        self.told, self.is_there, self.is_cancelled = None, threading.Event(), False

    def cancelled(self):
        return self.is_cancelled

    def set_running_or_notify_cancel(self):
        self.is_there.set()
        return not self.is_cancelled

    def set_result(self, result):
        self.told = result

    def set_exception(self, error):
        self.told = error


def begun(producer, outcome, timeout_ms=10_000):
    prepared = topic_sender(producer).prepare(X)
    return producer._async_sender.send_nonblocking(
        prepared, None, timeout_ms, outcome, lambda action: action()
    )


def test_async_send_starts_in_a_thread_only_while_the_route_is_unknown(monkeypatch):
    threads = []
    with FakeCluster(a=ok) as cluster, Producer("P", cluster.address) as producer:
        ask = producer.instance.connections.submit

        def asked(*arguments):
            threads.append(threading.current_thread().name)
            ask(*arguments)

        monkeypatch.setattr(producer.instance.connections, "submit", asked)
        for _ in range(2):
            outcome = Outcome()
            assert begun(producer, outcome)
            assert outcome.is_there.wait(10)
            assert outcome.told.queue.broker_name == "a"
    assert threads[0].startswith("rocketpoll sends again")
    assert threads[1] == threading.current_thread().name


@pytest.mark.parametrize("is_known", [False, True], ids=["route-unknown", "try-that-fails"])
def test_async_send_tried_in_another_thread_is_not_deferred_to_the_caller(monkeypatch, is_known):
    """Also not if it runs before the caller continues: a loop's fast path is for its own thread
    only."""
    soon_of = []
    with FakeCluster(a=ok) as cluster, Producer("P", cluster.address) as producer:
        sends, connections = producer._async_sender, producer.instance.connections

        def try_again(send):
            monkeypatch.undo()
            trying = threading.Thread(target=send.attempt)
            trying.start()
            trying.join(10)
            return True

        def fails(*_):
            raise ConnectionClosed("a:1", "it has gone")

        if is_known:
            producer.send(X)
            monkeypatch.setattr(connections, "submit", fails)
        monkeypatch.setattr(sends, "schedule_retry", try_again)
        outcome = Outcome()
        prepared = topic_sender(producer).prepare(X)
        assert sends.send_nonblocking(prepared, None, 60_000, outcome, soon_of.append)
        assert outcome.is_there.wait(10)
        assert outcome.told.queue.broker_name == "a"
        assert soon_of == []


def test_async_send_over_the_pending_limit_is_not_started():
    answer = threading.Event()
    with (
        FakeCluster(a=lambda _: answer.wait(10) and 0) as cluster,
        Producer("P", cluster.address, pending_max=1) as producer,
    ):
        first = Outcome()
        assert begun(producer, first)
        assert not begun(producer, Outcome())
        answer.set()
        assert first.is_there.wait(10)
        assert begun(producer, Outcome())


def test_cancelled_async_send_is_not_tried():
    with FakeCluster(a=ok) as cluster, Producer("P", cluster.address) as producer:
        outcome = Outcome()
        outcome.is_cancelled = True
        assert begun(producer, outcome)
        assert outcome.is_there.is_set()
        assert outcome.told is None
        assert producer.health().pending_sends == 0
        assert cluster.sends() == {"a": 0}


def test_async_send_before_its_first_try_fails_at_shutdown(monkeypatch):
    asked, go_on = threading.Event(), threading.Event()
    with FakeCluster(a=ok) as cluster, Producer("P", cluster.address) as producer:
        real = topic_sender(producer).publish_queues

        def publish_queues(topic):
            asked.set()
            go_on.wait(10)
            return real(topic)

        monkeypatch.setattr(topic_sender(producer), "publish_queues", publish_queues)
        outcomes = [Outcome() for _ in range(5)]  # one more than there are threads
        for outcome in outcomes:
            assert begun(producer, outcome)
        assert asked.wait(10)
        producer.shutdown()
        go_on.set()
        for outcome in outcomes:
            assert outcome.is_there.wait(10)
        assert all(isinstance(outcome.told, ClientError) for outcome in outcomes)
