"""Our clients of a RocketMQ cluster of two brokers, one of which dies and returns.

Sends go on, consumers go on, and nothing that was acknowledged is lost.
"""

from __future__ import annotations

import threading

import java_vectors
import pytest
from broker_kinds import wait_until
from conforming_clients import Clients, Listener, messages, numbers
from consumer_clusters import Cluster
from rocketmq_pair import KNOWN_SECONDS_MAX, NAMES, TwoBrokers

from rmq_spark.client.admin.admin import Admin
from rmq_spark.client.errors import ClientError
from rmq_spark.client.message import Message

pytestmark = [pytest.mark.interop, pytest.mark.peers]

QUEUES = 4
PAUSE_SECONDS = 0.005


@pytest.fixture(scope="module", params=java_vectors.VERSIONS)
def two_brokers(request, tmp_path_factory):
    brokers = TwoBrokers(request.param, tmp_path_factory.mktemp("two"))
    try:
        brokers.wait_until_known()
        yield brokers
    finally:
        brokers.close()


@pytest.fixture
def clients(two_brokers):
    cluster = Cluster(two_brokers.name_server, two_brokers.members["broker-a"].address, "broker-a")
    yield Clients(cluster)
    cluster.close()


@pytest.fixture
def topic(two_brokers, clients):
    """A topic with four queues on each broker."""
    topic = clients.cluster.group().replace("Group", "Both")
    routes = clients.cluster.sender.routes
    with Admin(two_brokers.name_server) as admin:
        wait_until("a topic on both", lambda: _is_made(admin, topic), KNOWN_SECONDS_MAX)
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
            what, lambda: condition(list(self.acknowledged.values())[before:]), KNOWN_SECONDS_MAX
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
        assert admin.masters() == {
            name: member.address for name, member in two_brokers.members.items()
        }
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
        getattr(two_brokers.members["broker-b"], how)()
        sender.wait_for("sends that go on", lambda names: names[-50:] == ["broker-a"] * 50)
        latest = list(sender.acknowledged)[-1]
        wait_until(
            "consumers that go on", lambda: latest in _all(listeners) and latest in poller.bodies
        )
        two_brokers.members["broker-b"].start()
        sender.wait_for("sends to both again", lambda names: "broker-b" in names)
        sender.wait_for("more of these", lambda names: names.count("broker-b") > 20)
    finally:
        sender.stop()
        poller.stop()
    assert sender.errors == []
    acknowledged = set(sender.acknowledged)
    wait_until("all by call", lambda: acknowledged <= _all(listeners), KNOWN_SECONDS_MAX)
    rest = Poller(poller._consumer)
    try:
        wait_until(
            "all by poll", lambda: acknowledged <= poller.bodies | rest.bodies, KNOWN_SECONDS_MAX
        )
    finally:
        rest.stop()


def _of(topic, consumer):
    return sum(queue.topic == topic for queue in consumer.assignment())


def _all(listeners):
    return {body for listener in listeners for body in listener.bodies}
