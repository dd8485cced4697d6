"""mqadmin, with its keys in conf/tools.yml, manages users and lists, and works with them.

Each test runs on a real RocketMQ and on our broker, both with TLS.
"""

import pytest
from support.access.answers import OPERATOR
from support.access.secured_brokers import (
    GROUPS,
    READER,
    TOPICS,
    UNLISTED,
    WRITER,
    Secured,
    secured_broker,
    tls_options,
)
from support.access.signed_client import Key
from support.brokers.broker_kinds import (
    CLUSTER,
    KINDS,
    NAME,
    START_SECONDS_MAX,
    wait_until,
)
from support.rocketmq.java_clients import JavaClients, JavaError, Producer, to_send
from support.rocketmq.mqadmin import CommandFailed, MqAdmin, row, rows
from support.suite.selection import PEERS

pytestmark = pytest.mark.interop

_KINDS = KINDS if PEERS else ["rocketpoll"]


@pytest.fixture(
    scope="module",
    params=[
        Secured(kind, version, lists, "JSON")
        for version, lists in (("5.5.0", "users"), ("4.9.7", "accounts"))
        for kind in _KINDS
    ],
    ids=str,
)
def secured(request):
    return request.param


@pytest.fixture(scope="module")
def broker(secured, tmp_path_factory):
    yield from secured_broker(secured, tmp_path_factory.mktemp("secured"))


@pytest.fixture(scope="module")
def clients_of(secured, broker, tmp_path_factory):
    """Return JVMs whose mqadmin finds a key in its tools.yml."""
    made = {}

    def clients_of(key):
        if key not in made:
            home = tmp_path_factory.mktemp(key.name)
            (home / "conf").mkdir()
            tools = f"accessKey: {key.name}\nsecretKey: '{key.secret}'\n"
            (home / "conf" / "tools.yml").write_text(tools, encoding="ascii")
            options = (
                *tls_options(home),
                f"-Drocketpoll.accessKey={key.name}",
                f"-Drocketpoll.secretKey={key.secret}",
            )
            made[key] = JavaClients(secured.version, home, broker.name_server, *options)
        return made[key]

    yield clients_of
    for clients in made.values():
        clients.kill()


@pytest.fixture(scope="module")
def mqadmin(secured, clients_of):
    mqadmin = MqAdmin(clients_of(OPERATOR), secured.version)
    wait_until(
        "a broker that its name server knows",
        lambda: rows(mqadmin.run("clusterList"), CLUSTER, NAME),
        START_SECONDS_MAX,
    )
    return mqadmin


@pytest.fixture
def with_users(secured):
    if secured.lists != "users":
        pytest.skip("4.9 has no such commands")


def test_mqadmin_creates_changes_lists_and_deletes_users(with_users, mqadmin, broker):
    at = ("-b", broker.address)

    def user(name):
        """Return the displayed fields of a user, except the password, which our broker does not
        return."""
        name, _, *others = row(mqadmin.run("getUser", *at, "-u", name), name)
        return [name, *others]

    assert "success" in mqadmin.run("createUser", *at, "-u", "alice", "-p", "12345678")
    assert "success" in mqadmin.run("createUser", "-c", CLUSTER, "-u", "bob", "-p", "12345678")
    with pytest.raises(CommandFailed, match=r"CODE: 16 +DESC: The user is existed"):
        mqadmin.run("createUser", *at, "-u", "alice", "-p", "12345678")
    assert user("alice") == ["alice", "Normal", "enable"]
    listed = rows(mqadmin.run("listUser", *at))
    assert [name for name, *_ in listed] == sorted(name for name, *_ in listed)
    assert {"alice", "bob", OPERATOR.name, READER.name} <= {name for name, *_ in listed}
    (found,) = rows(mqadmin.run("listUser", *at, "-f", "ali"))
    assert found[0] == "alice"
    for option, value, shown in (
        ("-p", "another-secret", ["alice", "Normal", "enable"]),
        ("-t", "Super", ["alice", "Super", "enable"]),
        ("-s", "disable", ["alice", "Super", "disable"]),
    ):
        assert "success" in mqadmin.run("updateUser", *at, "-u", "alice", option, value)
        assert user("alice") == shown
    with pytest.raises(CommandFailed, match=r"CODE: 16 +DESC: The user is not exist"):
        mqadmin.run("updateUser", *at, "-u", "no-such-user", "-p", "12345678")
    for name in ("alice", "bob"):
        assert "success" in mqadmin.run("deleteUser", *at, "-u", name)
    assert {"alice", "bob"}.isdisjoint(name for name, *_ in rows(mqadmin.run("listUser", *at)))


def test_mqadmin_creates_changes_lists_and_deletes_lists(with_users, mqadmin, broker):
    at, alice = ("-b", broker.address), "User:carol"
    assert "success" in mqadmin.run("createUser", *at, "-u", "carol", "-p", "12345678")
    of_alice = (*at, "-s", alice)
    resources, addresses = "Topic:A,Topic:B*", "10.0.0.0/8,127.0.0.1"
    made = mqadmin.run(
        "createAcl", *of_alice, "-r", resources, "-a", "Pub,Sub", "-d", "Allow", "-i", addresses
    )
    assert "success" in made
    first, second = (
        [alice, "Custom", resource, "[Pub,", "Sub]", "[10.0.0.0/8,", "127.0.0.1]", "Allow"]
        for resource in resources.split(",")
    )
    assert rows(mqadmin.run("getAcl", *of_alice)) == [first, second]
    assert rows(mqadmin.run("listAcl", *at), alice) == [first, second]
    assert rows(mqadmin.run("listAcl", *at, "-s", "carol", "-r", "Topic:A")) == [first]
    assert "success" in mqadmin.run("updateAcl", *of_alice, *_denied("Topic:A"))
    changed = [alice, "Custom", "Topic:A", "[Get]", "null", "Deny"]
    assert rows(mqadmin.run("getAcl", *of_alice)) == [changed, second]
    assert "success" in mqadmin.run("deleteAcl", *of_alice, "-r", "Topic:A")
    assert rows(mqadmin.run("getAcl", *of_alice)) == [second]
    assert "success" in mqadmin.run("deleteAcl", *of_alice)
    assert rows(mqadmin.run("listAcl", *at), alice) == []
    with pytest.raises(CommandFailed, match=r"CODE: 16 +DESC: The subject of User:no-such-user"):
        mqadmin.run("createAcl", *at, "-s", "User:no-such-user", *_denied("Topic:A"))
    assert "success" in mqadmin.run("deleteUser", *at, "-u", "carol")


def _denied(resource):
    return ("-r", resource, "-a", "Get", "-d", "Deny")


def test_mqadmin_changes_take_effect_on_running_clients(
    with_users, secured, mqadmin, broker, clients_of
):
    at = ("-b", broker.address)
    dave = Key("dave", "12345678")
    mqadmin.run("createUser", *at, "-u", dave.name, "-p", dave.secret)
    keys = {"accessKey": dave.name, "secretKey": dave.secret}
    producer = Producer(clients_of(OPERATOR), "senders", **keys)

    def send():
        return producer.send_to_queue(TOPICS[0], 0, to_send("x"))

    def refusal():
        with pytest.raises(JavaError) as refused:
            send()
        assert refused.value.code == 16
        return str(refused.value)

    assert "no matched policies" in refusal()
    listed = (*at, "-s", f"User:{dave.name}", "-r", f"Topic:{TOPICS[0]}", "-a", "Pub")
    mqadmin.run("createAcl", *listed, "-d", "Allow")
    send()
    mqadmin.run("updateAcl", *listed, "-d", "Deny")
    assert "the decision is deny" in refusal()
    mqadmin.run("updateAcl", *listed, "-d", "Allow")
    send()
    mqadmin.run("updateUser", *at, "-u", dave.name, "-s", "disable")
    assert "is disabled" in refusal()
    mqadmin.run("deleteUser", *at, "-u", dave.name)
    assert "not found" in refusal()
    producer.stop()


def test_mqadmin_of_an_operator_works_under_lists(mqadmin, broker):
    at = ("-b", broker.address)
    topic = "MadeByMqadmin"
    assert "success" in mqadmin.run("updateTopic", *at, "-t", topic, "-r", "1", "-w", "1")
    assert topic in mqadmin.run("topicList").split()
    assert "success" in mqadmin.run("updateSubGroup", *at, "-g", "made-by-mqadmin")
    assert row(mqadmin.run("topicStatus", "-t", topic), NAME)
    assert CLUSTER in mqadmin.run("clusterList")
    mqadmin.run("deleteTopic", "-c", CLUSTER, "-t", topic)
    assert topic not in mqadmin.run("topicList").split()


@pytest.mark.parametrize("key", [WRITER, READER], ids=lambda key: key.name)
def test_mqadmin_without_the_right_changes_nothing(secured, mqadmin, clients_of, broker, key):
    at = ("-b", broker.address)
    refused = MqAdmin(clients_of(key), secured.version)
    code = {"users": 16, "accounts": 1}[secured.lists]
    with pytest.raises(CommandFailed, match=f"CODE: {code} "):
        refused.run("updateTopic", *at, "-t", "NotMade", "-r", "1", "-w", "1")
    assert "NotMade" not in mqadmin.run("topicList").split()
    seen = refused.run("topicList").split()
    assert TOPICS[0] in seen
    # our broker shows permitted topics only
    assert (UNLISTED in seen) == (secured.kind == "rocketmq")
    with pytest.raises(CommandFailed):
        refused.run("deleteSubGroup", *at, "-g", GROUPS[0])
    if secured.lists == "users":
        with pytest.raises(CommandFailed, match="CODE: 16 "):
            refused.run("listUser", *at)
        with pytest.raises(CommandFailed, match="CODE: 16 "):
            refused.run("createUser", *at, "-u", "mallory", "-p", "12345678", "-t", "Super")
