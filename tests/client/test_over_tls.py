"""Our clients and our broker over TLS: sends, pulls, holds, broken connections and shutdown."""

import threading

import pytest
from support.brokers.broker_kinds import NAME
from support.brokers.tls_cluster import (
    TlsCluster,
    assert_messages_go_every_way,
    behind_tls,
    with_own_tls,
)
from support.clients.conformance_clients import Clients
from support.servers.tls import Terminator

from rmq_spark.client.errors import ClientError
from rmq_spark.client.message import Message, decode_messages
from rmq_spark.client.reading.bulk_pull import BulkPull, PullRules
from rmq_spark.wire.codes import PullSysFlag
from rmq_spark.wire.headers.members import PullMessageRequestHeader


@pytest.fixture(scope="module", params=[with_own_tls, behind_tls], ids=["itself", "terminator"])
def both(request, tmp_path_factory):
    """Run a broker with its own TLS, and one behind a TLS proxy."""
    with request.param(tmp_path_factory.mktemp("broker")) as both:
        yield both


@pytest.fixture(scope="module")
def broker(both):
    return both[0]


@pytest.fixture(scope="module")
def front(both):
    return both[1]


@pytest.fixture
def cluster(front):
    cluster = TlsCluster(front.address, front.address)
    yield cluster
    cluster.close()


@pytest.fixture
def clients(cluster):
    return Clients(cluster)


@pytest.fixture(params=["all extensions", "none", "who waits reads"])
def api(request, cluster):
    more = {"none": {"extensions": frozenset()}, "who waits reads": {"reads_itself": True}}
    return cluster.instance(**more.get(request.param, {})).api


def bulk(cluster, api, topic, end, **rules):
    pull = BulkPull(api, cluster.address, "G", cluster.queue(topic), 0, end, PullRules(**rules))
    return [each for chunk in pull for each in decode_messages(chunk.records, NAME)]


def held_pull(topic, queue_offset=0):
    """Start a pull that the broker may hold for twenty seconds."""
    flags = PullSysFlag.SUSPEND.value | PullSysFlag.SUBSCRIPTION.value
    return PullMessageRequestHeader(
        consumer_group="G",
        topic=topic,
        queue_id=0,
        queue_offset=queue_offset,
        max_msg_nums=32,
        sys_flag=flags,
        commit_offset=0,
        suspend_timeout_millis=20_000,
        sub_version=0,
        subscription="*",
        expression_type="TAG",
    )


def test_messages_are_sent_and_consumed_over_tls_in_every_way(clients):
    assert_messages_go_every_way(clients)


def test_bulk_pull_over_tls_returns_every_message_once_in_order(cluster, clients, api):
    topic = cluster.topic(queues=1)
    producer = clients.producer()
    for start in range(0, 3_000, 500):
        producer.send_batch(Message(topic, b"%04d" % n * 100) for n in range(start, start + 500))
    found = bulk(cluster, api, topic, 3_000, chunk_bytes=200_000)
    assert [each.body[:4] for each in found] == [b"%04d" % n for n in range(3_000)]


def test_messages_of_megabytes_are_sent_and_received_over_tls(cluster, clients, api):
    topic = cluster.topic(queues=1)
    body = bytes(range(256)) * (3 << 12)
    producer = clients.producer(
        rules={"compress_body_bytes": 9 << 20, "max_message_bytes": 8 << 20}
    )
    for _ in range(3):
        producer.send(Message(topic, body))
    assert [each.body for each in bulk(cluster, api, topic, 3)] == [body] * 3


def test_held_pull_over_tls_is_answered_by_a_new_message(broker, cluster, clients, api):
    topic = cluster.topic(queues=1)
    answer = api.pull_async(cluster.address, held_pull(topic), 30_000)
    broker.until(lambda controller: controller.hold_service.hold_count == 1)
    clients.producer().send(Message(topic, b"at last"))
    found = decode_messages(answer.result(20).records, NAME)
    assert [each.body for each in found] == [b"at last"]


def test_tls_connection_cut_within_a_response_is_reopened(front, cluster, clients):
    if not isinstance(front, Terminator):
        pytest.skip("a terminator cuts connections")
    topic = cluster.topic(queues=1)
    clients.producer().send_batch(Message(topic, b"%04d" % n * 100) for n in range(1_000))
    api = cluster.instance().api
    # connected before the cut, so that the pull is cut
    api.max_offset(cluster.address, cluster.queue(topic))
    connected = front.connected
    front.cut_after = 300_123
    found = bulk(cluster, api, topic, 1_000)
    assert front.cut_after is None
    assert front.connected == connected + 1
    assert [each.queue_offset for each in found] == list(range(1_000))


@pytest.mark.parametrize("reads_itself", [False, True], ids=["a thread reads", "who waits reads"])
def test_shutdown_over_tls_ends_waiting_calls(broker, cluster, reads_itself):
    topic = cluster.topic(queues=1)
    instance = cluster.instance(reads_itself=reads_itself)
    answer = instance.api.pull_async(cluster.address, held_pull(topic), 30_000)
    broker.until(lambda controller: controller.hold_service.hold_count == 1)
    waiting = threading.Thread(target=answer.exception)
    waiting.start()
    instance.shutdown()
    assert isinstance(answer.exception(2), ClientError)
    waiting.join(10)
    broker.until(lambda controller: controller.hold_service.hold_count == 0)
