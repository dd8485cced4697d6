"""Our clients, with TLS and keys, on brokers with users and access lists, or with accounts.

A real RocketMQ 4.9.7 has accounts, 5.5.0 users and lists; ours has either. Refusals have the
broker's own words.
"""

import io
import time

import pytest
from support.access.answers import OPERATOR
from support.access.secured_brokers import (
    GROUPS,
    IDLE,
    NOBODY,
    READER,
    TOPICS,
    UNLISTED,
    WRITER,
    WRONG,
    Secured,
    secured_broker,
)
from support.brokers.broker_kinds import NAME, START_SECONDS_MAX, wait_until
from support.brokers.clusters import Cluster
from support.brokers.tls_cluster import KNOWN
from support.clients.conformance_clients import (
    Clients,
    Listener,
    bodies_of,
    messages,
    numbers,
    polled,
)
from support.servers.tls import certificate
from support.suite.selection import PEERS

from rmq_spark.cli.main import main
from rmq_spark.client.admin.access_lists import AclPolicy, ClusterUser
from rmq_spark.client.admin.admin import Admin
from rmq_spark.client.consumer.dispatch.listeners import ConsumeConcurrentlyStatus
from rmq_spark.client.errors import (
    AccessDenied,
    AuthenticationFailed,
    ClientError,
    NoPermission,
    NotSupported,
)
from rmq_spark.client.instance.instance import ClientInstance
from rmq_spark.client.message import Message
from rmq_spark.client.transport.remoting_client import Credentials
from rmq_spark.wire.message_queue import MessageQueue

pytestmark = pytest.mark.interop

NEW = Credentials("the-new-one", "12345678")


def credentials(key):
    return Credentials(key.name, key.secret)


@pytest.fixture(
    scope="module",
    params=[
        Secured(kind, version, lists, "JSON")
        for kind in (("rocketmq", "rocketpoll") if PEERS else ("rocketpoll",))
        for version, lists in (("4.9.7", "accounts"), ("5.5.0", "users"))
    ],
    ids=str,
)
def secured(request):
    return request.param


@pytest.fixture(scope="module")
def broker(secured, tmp_path_factory):
    for broker in secured_broker(secured, tmp_path_factory.mktemp("secured")):
        with Admin(instance=instance_of(broker, OPERATOR)) as admin:
            wait_until(
                "topics that the name server knows", lambda: _are_known(admin), START_SECONDS_MAX
            )
        yield broker


def instance_of(broker, key):
    return ClientInstance(broker.name_server, tls=KNOWN, credentials=credentials(key))


def _are_known(admin):
    try:
        return all(admin.route(topic).broker_datas for topic in (*TOPICS, UNLISTED))
    except ClientError:
        return False


@pytest.fixture
def clients_of(broker):
    """Return a function that creates clients that sign with a key."""
    made = []

    class Signed(Cluster):
        def __init__(self, key):
            self._key = key
            super().__init__(broker.name_server, broker.address, NAME)

        def instance(self, **more):
            return super().instance(tls=KNOWN, **{"credentials": credentials(self._key), **more})

    def clients_of(key):
        made.append(Signed(key))
        return Clients(made[-1])

    yield clients_of
    for cluster in made:
        cluster.close()


def test_known_users_of_an_access_list_send_and_consume(clients_of):
    topic, readers = TOPICS[0], clients_of(READER)
    producer = clients_of(WRITER).producer()
    lite = readers.lite(GROUPS[0], topic=topic, selector="red")
    listener = Listener()
    readers.push(listener, GROUPS[1], topic=topic)
    producer.send(Message(topic, b"000", tags="red", keys="k1", properties={"é": "ü"}))
    producer.send_async(Message(topic, b"001", tags="red")).result(10)
    producer.send_one_way(Message(topic, b"002", tags="red"))
    producer.send_batch(messages(topic, numbers(3, start=3), tags="red"))
    producer.send(Message(topic, b"z" * 10_000, tags="blue"))
    assert sorted(polled(lite, 6)) == numbers(6)
    lite.commit()
    listener.wait_for([*numbers(6), "z" * 10_000])
    (found,) = [each for each in listener.messages if each.body == b"000"]
    assert (found.keys, found.properties["é"]) == (("k1",), "ü")


def test_known_user_of_an_access_list_gets_retried_message(clients_of):
    topic = TOPICS[1]
    sent = f"fails {time.time_ns()}"

    def says(message):
        is_first = message.body == sent.encode() and not message.reconsume_times
        return ConsumeConcurrentlyStatus.RECONSUME_LATER if is_first else None

    listener = Listener(says)
    clients_of(READER).push(listener, GROUPS[2], topic=topic)
    clients_of(WRITER).producer().send(Message(topic, sent.encode()))
    wait_until("a second time", lambda: listener.bodies.count(sent) == 2)


def test_operator_key_may_read_and_change_everything(broker, clients_of):
    topic = TOPICS[2]
    producer = clients_of(OPERATOR).producer()
    result = producer.send(Message(topic, b"looked for", keys="wanted"))
    with Admin(instance=instance_of(broker, OPERATOR)) as admin:
        assert set(admin.masters()) == {NAME}
        wait_until(
            "its key",
            lambda: bodies_of(admin.messages_by_key(topic, "wanted")) == ["looked for"],
        )
        assert bodies_of(admin.messages_by_unique_id(topic, result.message_id)) == ["looked for"]
        assert admin.message_by_offset_id(result.offset_message_id).message_id == result.message_id
        admin.create_topic("MadeByOperator", 1)
        admin.delete_topic("MadeByOperator")


def refusal(clients_of, key, topic, kind=NoPermission):
    """Return the remark of the broker that refuses a message to a known queue."""
    producer = clients_of(key).producer()
    with pytest.raises(kind) as refused:
        producer.send(Message(topic, b"x"), MessageQueue(topic, NAME, 0))
    return refused.value.remark


@pytest.mark.parametrize(
    ("key", "says"),
    [
        (NOBODY, {"accounts": "No acl config for nobody-knows", "users": "not found"}),
        (WRONG, {"accounts": "Check signature failed", "users": "check signature failed"}),
    ],
    ids=["unknown", "wrong secret"],
)
def test_unknown_user_of_an_access_list_is_refused(secured, clients_of, key, says):
    assert says[secured.lists] in refusal(clients_of, key, TOPICS[0], AuthenticationFailed)


def test_client_without_key_is_refused(secured, broker):
    says = {"accounts": "No accessKey is configured", "users": "username cannot be null"}
    with (
        Admin(instance=ClientInstance(broker.name_server, tls=KNOWN)) as admin,
        pytest.raises(AuthenticationFailed, match=says[secured.lists]),
    ):
        admin.create_topic("Mine", 1)


@pytest.mark.parametrize(
    ("key", "topic"),
    [(WRITER, UNLISTED), (READER, TOPICS[0]), (IDLE, TOPICS[0])],
    ids=["another topic", "another right", "no right"],
)
def test_topic_denied_by_an_access_list_is_refused(secured, broker, clients_of, key, topic):
    says = {"accounts": "No default permission for topic:", "users": "no permission to access"}
    assert says[secured.lists] in refusal(clients_of, key, topic, AccessDenied)
    with Admin(instance=instance_of(broker, key)) as admin, pytest.raises(NoPermission):
        admin.create_topic("Mine", 1)


def test_admin_of_ours_manages_users_and_lists(secured, broker, clients_of):
    with Admin(instance=instance_of(broker, OPERATOR)) as admin:
        if secured.lists == "accounts":
            with pytest.raises((NotSupported, NoPermission)):
                admin.users()
            return
        topic = TOPICS[3]
        admin.create_user(NEW.access_key, NEW.secret_key)
        assert admin.user(NEW.access_key) == {NAME: ClusterUser(NEW.access_key)}
        assert {OPERATOR.name, NEW.access_key} <= admin.users()[NAME].keys()
        key = NOBODY._replace(name=NEW.access_key)
        assert "no matched policies" in refusal(clients_of, key, topic, AccessDenied)
        allowed = AclPolicy(NEW.access_key, f"Topic:{topic}", ("Pub",), ("127.0.0.0/8",))
        admin.create_acl(allowed)
        assert admin.acls(NEW.access_key) == {NAME: (allowed,)}
        clients_of(key).producer().send(Message(topic, b"x"))
        admin.create_acl(AclPolicy(NEW.access_key, f"Topic:{topic}", ("Pub",), is_allowed=False))
        assert "the decision is deny" in refusal(clients_of, key, topic, AccessDenied)
        assert admin.delete_acl(NEW.access_key)
        admin.update_user(NEW.access_key, is_enabled=False)
        assert "is disabled" in refusal(clients_of, key, topic, AuthenticationFailed)
        admin.delete_user(NEW.access_key)
        assert NEW.access_key not in admin.users()[NAME]


@pytest.mark.parametrize("verb", [("produce", TOPICS[4]), ("topic", "create", "Other")])
def test_command_line_signs_requests_and_names_the_missing_permission(
    broker, verb, monkeypatch, capsys
):
    tls = (
        "--tls",
        "--tls-ca-file",
        certificate("ca.pem"),
        "--tls-cert-file",
        certificate("client.pem"),
    )
    for who, (key, secret) in {
        "nobody": ("", ""),
        "a wrong secret": (OPERATOR.name, "1"),
        "operator": (OPERATOR.name, OPERATOR.secret),
    }.items():
        monkeypatch.setenv("ROCKETPOLL_ACCESS_KEY", key)
        monkeypatch.setenv("ROCKETPOLL_SECRET_KEY", secret)
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"one\n")))
        code = main([*verb, "--namesrv", broker.name_server, *tls])
        said = capsys.readouterr()
        assert (code == 0) == (who == "operator"), said
        if code:
            assert len(said.err.splitlines()) == 1
