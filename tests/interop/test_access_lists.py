"""Our clients of a RocketMQ 4.9.7 broker with access lists: each request is signed as it wants it.

What the list does not permit, and who is not in it, is refused with the broker's own words.
"""

from __future__ import annotations

import time

import pytest
from broker_kinds import NAME, settings, store_config, wait_until
from conforming_clients import Clients, Listener, bodies_of, messages, numbers, polled
from consumer_clusters import PEERS, Cluster
from rocketmq_peer import RocketMQ, free_broker_port

from broker.store.config import FlushDiskType
from rmq_spark.client.admin import Admin
from rmq_spark.client.connections import Credentials
from rmq_spark.client.consumer.listeners import ConsumeConcurrentlyStatus
from rmq_spark.client.errors import ClientError, NoPermission
from rmq_spark.client.instance import ClientInstance
from rmq_spark.client.message import Message
from rmq_spark.wire.message_queue import MessageQueue

pytestmark = [pytest.mark.interop, PEERS]

ACCOUNTS = """
globalWhiteRemoteAddresses: []
accounts:
- accessKey: operator
  secretKey: 87654321
  admin: true
- accessKey: billing
  secretKey: 12345678
  admin: false
  defaultTopicPerm: DENY
  defaultGroupPerm: SUB
  topicPerms:
  - Orders=PUB|SUB
  - ReadOnly=SUB
"""
OPERATOR = Credentials("operator", "87654321")
BILLING = Credentials("billing", "12345678")


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    """Where the name server is, and where the broker."""
    directory = tmp_path_factory.mktemp("acl")
    rocketmq = RocketMQ("4.9.7", directory)
    port = free_broker_port()
    configurations = directory / NAME / "conf"
    configurations.mkdir(parents=True)
    (configurations / "plain_acl.yml").write_text(ACCOUNTS, encoding="ascii")
    more = {**settings(FlushDiskType.ASYNC_FLUSH), "aclEnable": "true"}
    process = rocketmq.start_broker(NAME, port, store_config(directory / "store"), more)
    try:
        with Admin(instance=ClientInstance(rocketmq.address, credentials=OPERATOR)) as admin:
            wait_until("topics", lambda: _are_made(process, admin), 60)
        yield rocketmq.address, f"127.0.0.1:{port}"
    finally:
        process.kill()
        rocketmq.kill()


def _are_made(process, admin):
    process.check_is_running()
    try:
        for topic in ("Orders", "ReadOnly", "Secret"):
            admin.create_topic(topic, 4)
            admin.route(topic)
    except ClientError:
        return False
    return True


@pytest.fixture
def clients_of(broker):
    """Makes clients with credentials."""
    made = []

    class Signed(Cluster):
        def __init__(self, credentials):
            self._credentials = credentials
            super().__init__(*broker, NAME)

        def instance(self, **more):
            return super().instance(**{"credentials": self._credentials, **more})

    def clients_of(credentials):
        made.append(Signed(credentials))
        return Clients(made[-1])

    yield clients_of
    for cluster in made:
        cluster.close()


def test_who_is_in_the_list_sends_in_every_way_and_consumes_in_both(clients_of):
    clients = clients_of(BILLING)
    producer = clients.producer()
    lite = clients.lite(topic="Orders", selector="red")
    listener = Listener()
    clients.push(listener, topic="Orders")
    producer.send(Message("Orders", b"000", tags="red", keys="k1", properties={"é": "ü"}))
    producer.send_async(Message("Orders", b"001", tags="red")).result(10)
    producer.send_one_way(Message("Orders", b"002", tags="red"))
    producer.send_batch(messages("Orders", numbers(3, start=3), tags="red"))
    producer.send(Message("Orders", b"z" * 10_000, tags="blue"))
    assert sorted(polled(lite, 6)) == numbers(6)
    lite.commit()
    listener.wait_for([*numbers(6), "z" * 10_000])
    (found,) = [each for each in listener.messages if each.body == b"000"]
    assert (found.keys, found.properties["é"]) == (("k1",), "ü")


def test_what_a_listener_could_not_consume_comes_again(clients_of):
    clients = clients_of(BILLING)
    sent = f"fails {time.time_ns()}"

    def says(message):
        is_first = message.body == sent.encode() and not message.reconsume_times
        return ConsumeConcurrentlyStatus.RECONSUME_LATER if is_first else None

    listener = Listener(says)
    clients.push(listener, topic="Orders")
    clients.producer().send(Message("Orders", sent.encode()))
    wait_until("a second time", lambda: listener.bodies.count(sent) == 2)


def test_an_operator_sees_and_changes_all(broker, clients_of):
    result = clients_of(BILLING).producer().send(Message("Orders", b"looked for", keys="wanted"))
    with Admin(instance=ClientInstance(broker[0], credentials=OPERATOR)) as admin:
        assert set(admin.masters()) == {NAME}
        wait_until("its key", lambda: bodies_of(admin.messages_by_key("Orders", "wanted")) == ["looked for"])
        assert bodies_of(admin.messages_by_unique_id("Orders", result.message_id)) == ["looked for"]
        assert admin.message_by_offset_id(result.offset_message_id).message_id == result.message_id


@pytest.mark.parametrize(
    ("credentials", "topic", "says"),
    [
        (None, "Orders", "No accessKey is configured"),
        (Credentials("nobody", "12345678"), "Orders", "No acl config for nobody"),
        (Credentials("billing", "wrong"), "Orders", "Check signature failed"),
        (BILLING, "ReadOnly", "No permission|No default permission"),
        (BILLING, "Secret", "No permission|No default permission"),
    ],
)
def test_what_is_not_permitted_is_refused_in_the_brokers_words(clients_of, credentials, topic, says):
    queue = MessageQueue(topic, NAME, 0)
    with pytest.raises(NoPermission, match=says):
        clients_of(credentials).producer().send(Message(topic, b"x"), queue)


def test_what_only_an_operator_may_do_others_may_not(broker):
    instance = ClientInstance(broker[0], credentials=BILLING)
    with Admin(instance=instance) as admin, pytest.raises(NoPermission):
        admin.create_topic("Mine", 1)
