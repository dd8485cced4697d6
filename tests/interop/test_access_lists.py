"""Our clients against RocketMQ brokers with access control: each request is signed as required.

4.9.7 has access lists, 5.5.0 users. Unknown users and forbidden operations are refused in the
broker's own words.
"""

from __future__ import annotations

import io
import json
import time

import pytest
from support.brokers.broker_kinds import NAME, settings, store_config, wait_until
from support.brokers.clusters import Cluster
from support.clients.conformance_clients import (
    Clients,
    Listener,
    bodies_of,
    messages,
    numbers,
    polled,
)
from support.rocketmq.real_broker import RocketMQ, free_broker_port

from rmq_spark.cli.main import main
from rmq_spark.client.admin.admin import Admin
from rmq_spark.client.consumer.dispatch.listeners import ConsumeConcurrentlyStatus
from rmq_spark.client.errors import ClientError, NoPermission
from rmq_spark.client.instance.instance import ClientInstance
from rmq_spark.client.message import Message
from rmq_spark.client.transport.remoting_client import Credentials
from rmq_spark.wire.message_queue import MessageQueue
from rocketpoll.broker.store.config import FlushDiskType

pytestmark = [pytest.mark.interop, pytest.mark.peers]

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
SENDER = {"4.9.7": BILLING, "5.5.0": OPERATOR}
"""Who may send to Orders; of 5.5.0's users there is only the first."""

_AUTH = "org.apache.rocketmq.auth.authentication.provider"
WITH_SIGNATURES = {
    "4.9.7": {"aclEnable": "true"},
    "5.5.0": {
        "authenticationEnabled": "true",
        "authenticationProvider": f"{_AUTH}.DefaultAuthenticationProvider",
        "authenticationMetadataProvider": f"{_AUTH}.LocalAuthenticationMetadataProvider",
        "initAuthenticationUser": json.dumps({"username": "operator", "password": "87654321"}),
        "innerClientAuthenticationCredentials": json.dumps(
            {"accessKey": "operator", "secretKey": "87654321"}
        ),
    },
}


@pytest.fixture(scope="module", params=WITH_SIGNATURES)
def broker(request, tmp_path_factory):
    """Its version, where its name server is, and where it is itself."""
    directory = tmp_path_factory.mktemp("acl")
    rocketmq = RocketMQ(request.param, directory)
    port = free_broker_port()
    configurations = directory / NAME / "conf"
    configurations.mkdir(parents=True)
    (configurations / "plain_acl.yml").write_text(ACCOUNTS, encoding="ascii")
    more = {**settings(FlushDiskType.ASYNC_FLUSH), **WITH_SIGNATURES[request.param]}
    process = rocketmq.start_broker(NAME, port, store_config(directory / "store"), more)
    try:
        with Admin(instance=ClientInstance(rocketmq.address, credentials=OPERATOR)) as admin:
            wait_until("topics", lambda: _are_made(process, admin), 120)
        yield request.param, rocketmq.address, f"127.0.0.1:{port}"
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
            super().__init__(*broker[1:], NAME)

        def instance(self, **more):
            return super().instance(**{"credentials": self._credentials, **more})

    def clients_of(credentials):
        made.append(Signed(credentials))
        return Clients(made[-1])

    yield clients_of
    for cluster in made:
        cluster.close()


def test_known_user_of_an_access_list_sends_and_consumes(broker, clients_of):
    clients = clients_of(SENDER[broker[0]])
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


def test_known_user_of_an_access_list_gets_retried_message(broker, clients_of):
    clients = clients_of(SENDER[broker[0]])
    sent = f"fails {time.time_ns()}"

    def says(message):
        is_first = message.body == sent.encode() and not message.reconsume_times
        return ConsumeConcurrentlyStatus.RECONSUME_LATER if is_first else None

    listener = Listener(says)
    clients.push(listener, topic="Orders")
    clients.producer().send(Message("Orders", sent.encode()))
    wait_until("a second time", lambda: listener.bodies.count(sent) == 2)


def test_operator_key_may_read_and_change_everything(broker, clients_of):
    result = (
        clients_of(SENDER[broker[0]])
        .producer()
        .send(Message("Orders", b"looked for", keys="wanted"))
    )
    with Admin(instance=ClientInstance(broker[1], credentials=OPERATOR)) as admin:
        assert set(admin.masters()) == {NAME}
        wait_until(
            "its key",
            lambda: bodies_of(admin.messages_by_key("Orders", "wanted")) == ["looked for"],
        )
        assert bodies_of(admin.messages_by_unique_id("Orders", result.message_id)) == ["looked for"]
        assert admin.message_by_offset_id(result.offset_message_id).message_id == result.message_id


@pytest.mark.parametrize(
    ("credentials", "says"),
    [
        (None, {"4.9.7": "No accessKey is configured", "5.5.0": "username cannot be null"}),
        (
            Credentials("nobody", "12345678"),
            {"4.9.7": "No acl config for nobody", "5.5.0": "not found"},
        ),
        (
            Credentials("operator", "wrong"),
            {"4.9.7": "Check signature failed", "5.5.0": "check signature"},
        ),
    ],
)
def test_unknown_user_of_an_access_list_is_refused(broker, clients_of, credentials, says):
    queue = MessageQueue("Orders", NAME, 0)
    with pytest.raises(NoPermission, match=says[broker[0]]):
        clients_of(credentials).producer().send(Message("Orders", b"x"), queue)


@pytest.mark.parametrize("topic", ["ReadOnly", "Secret"])
def test_topic_denied_by_an_access_list_is_refused(broker, clients_of, topic):
    if broker[0] != "4.9.7":
        pytest.skip("that has no lists")
    with pytest.raises(NoPermission, match=r"No permission|No default permission"):
        clients_of(BILLING).producer().send(Message(topic, b"x"), MessageQueue(topic, NAME, 0))
    with (
        Admin(instance=ClientInstance(broker[1], credentials=BILLING)) as admin,
        pytest.raises(NoPermission),
    ):
        admin.create_topic("Mine", 1)


@pytest.mark.parametrize("verb", [("produce", "Orders"), ("topic", "create", "Other")])
def test_command_line_signs_requests_and_names_the_missing_permission(
    broker, verb, monkeypatch, capsys
):
    keys = {"key": "operator", "secret": "87654321"}
    for who, (key, secret) in {
        "nobody": ("", ""), "a wrong secret": ("operator", "1"), "operator": tuple(keys.values()),
    }.items():  # fmt: skip
        monkeypatch.setenv("ROCKETPOLL_ACCESS_KEY", key)
        monkeypatch.setenv("ROCKETPOLL_SECRET_KEY", secret)
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"one\n")))
        code = main([*verb, "--namesrv", broker[1]])
        said = capsys.readouterr()
        assert (code == 0) == (who == "operator"), said
        if code:
            assert "Use keys that have the permission (--access-key, --profile)" in said.err
            assert len(said.err.splitlines()) == 1
