"""`Admin` manages users and access lists; other clients then have the new rights."""

from contextlib import ExitStack

import pytest
from support.brokers.secured import OPERATOR, client_of, secured_broker, secured_rocketmq
from support.suite.selection import PEERS

from rmq_spark.client.admin.access_lists import parse_actions, parse_resource
from rmq_spark.client.errors import (
    AccessDenied,
    AuthenticationFailed,
    BrokerNotFound,
    MessageRejected,
    NoPermission,
    NotFound,
)
from rmq_spark.client.transport.remoting_client import Credentials
from rocketpoll import AclPolicy, Admin, ClusterUser, EmbeddedBroker, Message, Producer, aio

BILLING = Credentials("billing", "of billing")
NAME = "broker-a"


@pytest.fixture(scope="module", params=["rocketpoll", *(["5.5.0"] if PEERS else [])])
def broker(request, tmp_path_factory):
    """Run a broker with `OPERATOR`: ours or a real one."""
    with ExitStack() as stack:
        if request.param == "rocketpoll":
            yield stack.enter_context(secured_broker(tmp_path_factory.mktemp("store")))
        else:
            yield stack.enter_context(secured_rocketmq(tmp_path_factory.mktemp("rocketmq")))


@pytest.fixture
def admin(broker):
    """Return the operator's admin; delete the objects of the test at the end."""
    with Admin(instance=client_of(broker)) as admin:
        yield admin
        for name in {*admin.users()[NAME]} - {OPERATOR.access_key}:
            admin.delete_user(name)


@pytest.fixture
def billing(admin):
    """Create a user without rights."""
    admin.create_user(BILLING.access_key, BILLING.secret_key)
    return BILLING.access_key


def test_created_user_is_listed_without_its_password(admin):
    admin.create_user("billing", "s3cret-word")
    admin.create_user("deploy", "s3cret-word", is_super=True)
    assert admin.users() == {
        NAME: {
            "billing": ClusterUser("billing"),
            "deploy": ClusterUser("deploy", is_super=True),
            "operator": ClusterUser("operator", is_super=True),
        }
    }
    assert admin.user("deploy") == {NAME: ClusterUser("deploy", is_super=True)}
    assert "s3cret-word" not in repr(admin.users())


def test_user_that_exists_gets_the_password_and_type_of_a_repeated_creation(broker, admin, billing):
    admin.create_user(billing, "another")
    admin.create_user(billing, "another", is_super=True)
    assert admin.user(billing)[NAME].is_super
    with Admin(instance=client_of(broker, Credentials(billing, "another"))) as own:
        assert own.topics() is not None


def test_update_of_a_user_changes_only_what_is_given(admin, billing):
    admin.update_user(billing, is_enabled=False)
    assert admin.user(billing) == {NAME: ClusterUser(billing, is_enabled=False)}
    admin.update_user(billing, is_super=True)
    assert admin.user(billing) == {NAME: ClusterUser(billing, is_super=True, is_enabled=False)}
    with pytest.raises(MessageRejected, match="password, is_super or is_enabled"):
        admin.update_user(billing)
    with pytest.raises(NoPermission, match="not exist"):
        admin.update_user("nobody", is_super=True)


def test_deleted_user_is_gone_with_its_access_list(admin, billing):
    admin.create_acl(AclPolicy(billing, "Topic:orders", ("Pub",)))
    admin.delete_user(billing)
    admin.delete_user(billing)  # a second deletion is no error
    assert admin.acls() == {NAME: ()}
    with pytest.raises(NotFound, match="there is no user billing"):
        admin.user(billing)


def test_acl_entry_of_a_resource_is_replaced_and_deleted(admin, billing):
    entry = AclPolicy(billing, "Topic:orders*", ("Pub", "Sub"), sources=("10.0.0.0/8",))
    group = AclPolicy(billing, "Group:billing", ("Sub",))
    admin.create_acl(entry)
    admin.create_acl(group)
    assert set(admin.acls()[NAME]) == {entry, group}
    changed = AclPolicy(billing, "Topic:orders*", ("All",), is_allowed=False)
    admin.create_acl(changed)
    assert set(admin.acls(billing)[NAME]) == {
        changed,
        AclPolicy(billing, "Group:billing", ("Sub",)),
    }
    assert admin.delete_acl(billing, "Topic:orders*")
    assert admin.acls(billing) == {NAME: (group,)}
    assert admin.delete_acl(billing)
    assert not admin.delete_acl(billing)  # already deleted
    assert admin.acls("nobody") == {NAME: ()}


def test_actions_and_resources_are_read_without_regard_to_case(admin, billing):
    admin.create_acl(AclPolicy(billing, "topic:orders", ("sub", "PUB")))
    assert admin.acls(billing)[NAME] == (AclPolicy(billing, "Topic:orders", ("Pub", "Sub")),)


@pytest.mark.parametrize(
    ("resource", "actions", "sources", "said"),
    [
        ("orders", ("Pub",), (), "resource: needed Topic:NAME"),
        ("Topic:", ("Pub",), (), "resource: needed Topic:NAME"),
        ("Topic:a*b", ("Pub",), (), "resource: needed Topic:NAME"),
        ("Topic:a b", ("Pub",), (), "resource: needed Topic:NAME"),
        ("Topic:a", ("Publish",), (), "actions: needed one of Pub, Sub"),
        ("Topic:a", (), (), "actions: needed some of Pub"),
        ("Topic:a", ("Pub",), ("localhost",), "sources: needed an IP address, or a range"),
    ],
)
def test_malformed_acl_entries_are_rejected_before_sending(
    admin, billing, resource, actions, sources, said
):
    with pytest.raises(MessageRejected, match=said):
        admin.create_acl(AclPolicy(billing, resource, actions, sources))
    assert admin.acls(billing) == {NAME: ()}


@pytest.mark.parametrize("name", ["", "a b", "\ud800"])
def test_user_name_with_spaces_or_without_characters_is_rejected(admin, name):
    with pytest.raises(MessageRejected, match="name: needed"):
        admin.create_user(name, "password")


@pytest.mark.parametrize("password", ["", " x", "s3cret\ud800"])
def test_rejected_password_is_not_shown(admin, password):
    with pytest.raises(MessageRejected) as raised:
        admin.create_user("billing", password)
    assert "s3cret" not in str(raised.value)
    with pytest.raises(TypeError, match="password: needed a string"):
        admin.create_user("billing", 5)


def test_entry_of_a_user_that_does_not_exist_is_refused(admin):
    with pytest.raises(NoPermission, match="User:nobody is not exist"):
        admin.create_acl(AclPolicy("nobody", "Topic:orders", ("Pub",)))


def test_access_admin_names_an_unknown_broker_or_cluster(admin):
    with pytest.raises(BrokerNotFound, match="broker-z"):
        admin.users(broker_name="broker-z")
    with pytest.raises(BrokerNotFound, match="cluster nowhere has no broker"):
        admin.create_user("billing", "password", cluster="nowhere")
    with pytest.raises(BrokerNotFound, match="broker-z: the cluster has no such broker"):
        admin.delete_user("billing", broker_name="broker-z")


def test_broker_without_authentication_says_how_to_turn_it_on():
    with EmbeddedBroker() as broker, Admin(broker.address) as admin:
        for act in (admin.users, lambda: admin.create_user("billing", "password")):
            with pytest.raises(NoPermission, match="authenticationEnabled=false: set it to true"):
                act()


@pytest.mark.parametrize("text", ["*", "Topic:*", "Group:bill*", "Cluster:DefaultCluster"])
def test_acl_resources_keep_their_text(text):
    assert parse_resource(text) == text


def test_acl_actions_are_sorted_without_duplicates():
    assert parse_actions(["get", "Pub", "PUB"]) == ("Pub", "Get")


# ---- errors of a client whose user lacks a right


@pytest.fixture
def topic(admin):
    admin.create_topic("orders", 1)
    yield "orders"
    admin.delete_topic("orders")


def test_producer_of_an_unknown_user_logs_once_to_correct_the_access_key(broker, topic):
    nobody = client_of(broker, Credentials("nobody", "password"))
    with Producer("shop", instance=nobody) as producer, pytest.raises(AuthenticationFailed) as said:
        producer.send(Message(topic, b"x"))
    assert said.value.user == "nobody"
    assert "run rocketpoll user create nobody" in str(said.value)


def test_producer_error_for_a_wrong_secret_says_to_correct_it(broker, topic, billing):
    wrong = client_of(broker, Credentials(billing, "wrong"))
    with (
        Producer("shop", instance=wrong) as producer,
        pytest.raises(AuthenticationFailed, match="Correct the secret key"),
    ):
        producer.send(Message(topic, b"x"))


def test_client_without_credentials_gets_an_error_that_says_to_pass_some(broker, topic):
    with (
        Producer("shop", broker.address) as producer,
        pytest.raises(AuthenticationFailed, match="Pass the access key and the secret key"),
    ):
        producer.send(Message(topic, b"x"))


def test_producer_error_without_the_right_names_the_command_that_grants_it(
    broker, admin, topic, billing
):
    with Producer("shop", instance=client_of(broker, BILLING)) as producer:
        with pytest.raises(AccessDenied) as said:
            producer.send(Message(topic, b"x"))
        assert (said.value.user, said.value.resource) == (billing, f"Topic:{topic}")
        assert f"rocketpoll acl grant billing Topic:{topic} --actions Pub" in str(said.value)
        admin.create_acl(AclPolicy(billing, f"Topic:{topic}", ("Pub",)))
        assert producer.send(Message(topic, b"x")).queue_offset == 0


async def _users(broker):
    client = aio.Client(broker.address, credentials=OPERATOR)
    async with aio.Admin(client=client) as admin:
        await admin.create_user("billing", "password")
        await admin.create_acl(AclPolicy("billing", "Topic:orders", ("Pub",)))
        found = await admin.users(), await admin.acls("billing")
        await admin.delete_user("billing")
        return found


def test_asyncio_admin_has_users_and_access_lists(broker):
    import asyncio  # noqa: PLC0415  # for this test alone

    users, acls = asyncio.run(_users(broker))
    assert set(users[NAME]) == {"billing", "operator"}
    assert acls == {NAME: (AclPolicy("billing", "Topic:orders", ("Pub",)),)}
