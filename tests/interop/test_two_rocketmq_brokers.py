"""Our clients of a RocketMQ cluster of two brokers, one of which dies and returns.

Sends go on, consumers go on, and nothing that was acknowledged is lost.
"""

from __future__ import annotations

import threading
from types import SimpleNamespace

import java_vectors
import pytest
from broker_kinds import settings, store_config, wait_until
from committing_sinks import CommittingSink, own_producers
from conforming_clients import Clients, Listener, messages, numbers
from consumer_clusters import Cluster
from rocketmq_peer import RocketMQ, free_broker_port

from rmq_spark.client.admin.admin import Admin
from rmq_spark.client.errors import ClientError
from rmq_spark.client.message import Message
from rocketpoll import read_committed
from rocketpoll.broker.store.config import FlushDiskType

pytestmark = [pytest.mark.interop, pytest.mark.peers]

NAMES = ("broker-a", "broker-b")
QUEUES = 4
PAUSE_SECONDS = 0.005
RESTART_SECONDS_MAX = 90


class TwoBrokers:
    """A name server and two masters."""

    def __init__(self, version, directory):
        self._directory = directory
        self._rocketmq = RocketMQ(version, directory)
        self.name_server = self._rocketmq.address
        self._ports = {}
        self._processes = {}
        for name in NAMES:
            self._ports[name] = free_broker_port()
            self.start(name)

    def address(self, name):
        return f"127.0.0.1:{self._ports[name]}"

    def start(self, name):
        """Start it, or start it again; nobody waits for it."""
        more = {**settings(FlushDiskType.SYNC_FLUSH), "timerWheelEnable": "true"}
        config = store_config(self._directory / f"store-{name}")
        self._processes[name] = self._rocketmq.start_broker(name, self._ports[name], config, more)

    def end(self, name, how):
        """As a crash would, or in order."""
        self._processes[name].check_is_running()
        getattr(self._processes[name], how)()

    def close(self):
        for process in self._processes.values():
            process.kill()
        self._rocketmq.kill()


@pytest.fixture(scope="module", params=java_vectors.VERSIONS)
def two_brokers(request, tmp_path_factory):
    brokers = TwoBrokers(request.param, tmp_path_factory.mktemp("two"))
    try:
        with Admin(brokers.name_server) as admin:
            wait_until("both masters", lambda: _masters(admin) == set(NAMES), RESTART_SECONDS_MAX)
        yield brokers
    finally:
        brokers.close()


def _masters(admin):
    try:
        return set(admin.masters())
    except ClientError:
        return set()


@pytest.fixture
def clients(two_brokers):
    cluster = Cluster(two_brokers.name_server, two_brokers.address("broker-a"), "broker-a")
    yield Clients(cluster)
    cluster.close()


@pytest.fixture
def topic(two_brokers, clients):
    """A topic with four queues on each broker."""
    topic = clients.cluster.group().replace("Group", "Both")
    routes = clients.cluster.sender.routes
    with Admin(two_brokers.name_server) as admin:
        wait_until("a topic on both", lambda: _is_made(admin, topic), RESTART_SECONDS_MAX)
    wait_until("a route to both", lambda: len(routes.refresh(topic).publish_queues) == 2 * QUEUES)
    return topic


def _is_made(admin, topic):
    try:
        admin.create_topic(topic, QUEUES)
        return {each.broker_name for each in admin.route(topic).queue_datas} == set(NAMES)
    except ClientError:
        return False


class Sender:
    """Sends one message after the other in a thread, and keeps what was acknowledged, and where."""

    def __init__(self, producer, topic):
        self.acknowledged, self.errors = {}, []
        self._producer, self._topic = producer, topic
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        number = 0
        while not self._stopped.wait(PAUSE_SECONDS):
            body = f"{number:06}"
            number += 1
            try:
                result = self._producer.send(Message(self._topic, body.encode()))
            except ClientError as error:
                self.errors.append(error)
            else:
                self.acknowledged[body] = result.queue.broker_name

    def wait_for(self, what, condition):
        """Wait until what was sent from now on is as it should be."""
        before = len(self.acknowledged)
        wait_until(
            what, lambda: condition(list(self.acknowledged.values())[before:]), RESTART_SECONDS_MAX
        )

    def stop(self):
        self._stopped.set()
        self._thread.join(30)


class Poller:
    """Polls in a thread, and keeps what has come."""

    def __init__(self, consumer):
        self.bodies = set()
        self._consumer = consumer
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        while not self._stopped.is_set():
            self.bodies |= {message.body.decode() for message in self._consumer.poll(100)}

    def stop(self):
        self._stopped.set()
        self._thread.join(30)


def test_a_route_leads_to_both_and_sends_and_consumers_use_both(clients, topic, two_brokers):
    producer = clients.producer()
    results = [producer.send(each) for each in messages(topic, numbers(16))]
    assert [result.queue.broker_name for result in results].count("broker-a") == 8
    assert {(result.queue.broker_name, result.queue.queue_id) for result in results} == {
        (name, queue_id) for name in NAMES for queue_id in range(QUEUES)
    }
    listener = Listener()
    consumer = clients.push(listener, topic=topic)
    assert sorted(listener.wait_for(numbers(16))) == numbers(16)
    assert {queue.broker_name for queue in consumer.assignment()} == set(NAMES)
    with Admin(two_brokers.name_server) as admin:
        assert admin.masters() == {name: two_brokers.address(name) for name in NAMES}
        assert len(admin.topic_offsets(topic)) == 2 * QUEUES
        assert sum(each.max_offset for each in admin.topic_offsets(topic).values()) == 16
        assert len(admin.lag(consumer.group, topic)) == 2 * QUEUES


def test_a_table_is_spread_over_both(clients, topic):
    pa = pytest.importorskip("pyarrow")
    result = clients.producer().send_table(
        pa.table({"body": numbers(900)}), topic, chunk_bytes=10_000
    )
    assert {span.queue.broker_name for span in result.spans} == set(NAMES)
    listener = Listener()
    clients.push(listener, topic=topic)
    assert sorted(listener.wait_for(numbers(900))) == numbers(900)


def test_rows_on_both_count_once_though_the_broker_of_manifests_dies_before_a_commit(
    two_brokers, topic, monkeypatch
):
    """Exactly once by manifests, without Spark: what its tasks and its driver do."""
    at = SimpleNamespace(address=two_brokers.name_server)
    with own_producers(monkeypatch):
        sink = CommittingSink(monkeypatch, at, topic, maxMessageBytes="10000")
        rows = sink.write(0, sink.rows(300, 300))
        partitions = sink.rows(300, 300)
        sink.send(1, partitions)  # a run that ended before it committed
        sent = sink.send(1, partitions)
        assert {span.queue.broker_name for each in sent for span in each.spans} == set(NAMES)
        two_brokers.end("broker-a", "kill")
        two_brokers.start("broker-a")
        sink.commit(1, sent)
        sink.commit(1, sink.send(1, partitions))  # Spark runs its last batch again
    rows += [row for each in partitions for row in each]
    table = read_committed(topic, two_brokers.name_server)
    assert sorted(body.decode() for body in table["body"].to_pylist()) == sorted(rows)
    with Admin(two_brokers.name_server) as admin:
        stored = sum(each.max_offset for each in admin.topic_offsets(topic).values())
        assert stored == 600 + 3 * 600


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_one_dies_and_returns_and_nothing_acknowledged_is_lost(clients, topic, two_brokers, how):
    group = clients.cluster.group()
    listeners = [Listener(), Listener()]
    members = [clients.push(each, group, topic) for each in listeners]
    wait_until(
        "four queues each", lambda: [_of(topic, each) for each in members] == [QUEUES, QUEUES]
    )
    poller = Poller(clients.lite(topic=topic))
    sender = Sender(clients.producer(), topic)
    try:
        sender.wait_for("sends to both", lambda names: set(names) == set(NAMES))
        two_brokers.end("broker-b", how)
        sender.wait_for("sends that go on", lambda names: names[-50:] == ["broker-a"] * 50)
        latest = list(sender.acknowledged)[-1]
        wait_until(
            "consumers that go on", lambda: latest in _all(listeners) and latest in poller.bodies
        )
        two_brokers.start("broker-b")
        sender.wait_for("sends to both again", lambda names: "broker-b" in names)
        sender.wait_for("more of these", lambda names: names.count("broker-b") > 20)
    finally:
        sender.stop()
        poller.stop()
    assert sender.errors == []
    acknowledged = set(sender.acknowledged)
    wait_until("all by call", lambda: acknowledged <= _all(listeners), RESTART_SECONDS_MAX)
    rest = Poller(poller._consumer)
    try:
        wait_until(
            "all by poll", lambda: acknowledged <= poller.bodies | rest.bodies, RESTART_SECONDS_MAX
        )
    finally:
        rest.stop()


def _of(topic, consumer):
    return sum(queue.topic == topic for queue in consumer.assignment())


def _all(listeners):
    return {body for listener in listeners for body in listener.bodies}
