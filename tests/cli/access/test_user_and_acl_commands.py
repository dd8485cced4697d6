"""``rocketpoll user`` and ``rocketpoll acl`` on a broker that authenticates its clients."""

import os
import subprocess
import sys
from contextlib import suppress

import pytest
from support.brokers.secured import OPERATOR, client_of, secured_broker
from support.programs.terminals import new_terminal, terminal_environment
from support.servers.fake_servers import FakeServer, answering

from rmq_spark.wire.bodies import encode_body
from rmq_spark.wire.bodies.operators import BrokerData, ClusterInfo, UserInfo
from rmq_spark.wire.codes import RequestCode, ResponseCode
from rocketpoll import Admin, EmbeddedBroker

SECRET = "corr3ct-horse"  # noqa: S105  # used by the tests only


@pytest.fixture(scope="module")
def broker():
    with secured_broker() as broker:
        yield broker


@pytest.fixture
def operator(run, broker, monkeypatch):
    """Run commands as the operator; delete the users that they create."""
    monkeypatch.setenv("NAMESRV_ADDR", broker.address)
    monkeypatch.setenv("ROCKETPOLL_ACCESS_KEY", OPERATOR.access_key)
    monkeypatch.setenv("ROCKETPOLL_SECRET_KEY", OPERATOR.secret_key)
    monkeypatch.delenv("ROCKETPOLL_USER_PASSWORD", raising=False)
    yield run
    for row in run("user", "list", "-o", "json").json:
        if row["user"] != OPERATOR.access_key:
            run("user", "delete", row["user"], "--yes")


@pytest.fixture
def billing(operator):
    ran = operator("user", "create", "billing", "--password-stdin", stdin=f"{SECRET}\n".encode())
    assert ran.code == 0, ran.err
    return "billing"


def entries(operator, *more):
    rows = operator("acl", "list", *more, "-o", "json").json
    return {row["resource"]: (row["actions"], row["decision"], row["sources"]) for row in rows}


def test_user_list_shows_type_and_status_and_never_a_password(operator, billing):
    operator("user", "create", "deploy", "--super", "--password-stdin", stdin=b"x-y-z\n")
    ran = operator("user", "list")
    assert ran.lines == [
        "user      type    status   brokers",
        "billing   Normal  enabled  broker-a",
        "deploy    Super   enabled  broker-a",
        "operator  Super   enabled  broker-a",
    ]
    for output in ("table", "json", "yaml", "csv"):
        ran = operator("user", "list", "-o", output)
        assert SECRET not in ran.out + ran.err


def test_user_create_says_what_to_do_next(operator):
    ran = operator("user", "create", "shop", "--password-stdin", stdin=b"secret\nmore\n")
    assert ran.out == (
        "created user shop on broker-a. Grant it rights with rocketpoll acl grant shop\n"
    )


def test_user_that_exists_is_not_created_again(operator, billing):
    ran = operator("user", "create", billing, "--password-stdin", stdin=b"other\n")
    assert ran.code == 1
    assert "there is a user billing already. Show it with rocketpoll user show billing" in ran.err


def test_password_comes_from_the_environment(operator, run, monkeypatch):
    monkeypatch.setenv("ROCKETPOLL_USER_PASSWORD", SECRET)
    assert operator("user", "create", "billing").code == 0
    monkeypatch.setenv("ROCKETPOLL_ACCESS_KEY", "billing")
    monkeypatch.setenv("ROCKETPOLL_SECRET_KEY", SECRET)
    assert run("topic", "list").code == 0
    monkeypatch.setenv("ROCKETPOLL_ACCESS_KEY", OPERATOR.access_key)
    monkeypatch.setenv("ROCKETPOLL_SECRET_KEY", OPERATOR.secret_key)


def test_password_as_an_option_is_warned_of(operator):
    ran = operator("user", "create", "billing", "--password", SECRET)
    assert ran.code == 0
    assert "other users of this machine can see --password. Prefer --password-stdin" in ran.err


@pytest.mark.parametrize(
    ("options", "stdin", "said"),
    [
        ((), b"", "there is no password, and stdin is not a terminal to ask on"),
        (("--password-stdin",), b"\n", "the first line of stdin is empty"),
        (("--password-stdin", "--password", "x"), b"y\n", "exclude each other"),
    ],
)
def test_missing_user_password_is_a_usage_error(operator, options, stdin, said):
    ran = operator("user", "create", "billing", *options, stdin=stdin)
    assert ran.code == 2
    assert said in ran.err
    assert len(ran.err.splitlines()) == 1


def test_user_update_changes_status_type_and_password(operator, run, billing, monkeypatch):
    assert operator("user", "update", billing, "--disable").out == (
        "billing is a normal user, disabled, on broker-a\n"
    )
    ran = operator("user", "update", billing, "--enable", "--super")
    assert ran.out == "billing is a super user, enabled, on broker-a\n"
    ran = operator("user", "update", billing, "--normal", "--password-stdin", stdin=b"n3w\n")
    assert ran.out.startswith("changed the password of billing\n")
    ran = run("topic", "list", "--access-key", billing, "--secret-key", SECRET)
    assert "check signature failed. Correct the secret key" in ran.err
    assert run("topic", "list", "--access-key", billing, "--secret-key", "n3w").code == 0


def test_user_update_without_a_change_is_a_usage_error(operator, billing):
    ran = operator("user", "update", billing)
    assert ran.code == 2
    assert "nothing to change. Give --new-password, --disable or --super" in ran.err


@pytest.mark.parametrize("verb", [("show",), ("update", "--disable"), ("delete", "--yes")])
def test_user_verbs_name_a_missing_user(operator, verb):
    ran = operator("user", verb[0], "nobody", *verb[1:])
    assert ran.code == 1
    assert "there is no user nobody. List all with rocketpoll user list" in ran.err


def test_user_delete_asks_first(operator, billing):
    ran = operator("user", "delete", billing)
    assert ran.code == 2
    assert "this would delete user billing on broker-a, and stdin is not a terminal" in ran.err
    assert operator("user", "delete", billing, "--yes").out == (
        "deleted user billing on broker-a\n"
    )


def test_user_show_has_its_entries(operator, billing):
    operator("acl", "grant", billing, "Topic:orders", "--actions", "Pub")
    shown = operator("user", "show", billing, "-o", "json").json
    assert shown == {
        "user": "billing",
        "type": "Normal",
        "status": "enabled",
        "brokers": ["broker-a"],
        "access_list": [
            {
                "resource": "Topic:orders",
                "actions": ["Pub"],
                "sources": [],
                "decision": "Allow",
                "brokers": ["broker-a"],
            }
        ],
    }


def test_acl_grant_adds_actions_to_those_of_the_resource(operator, billing):
    ran = operator("acl", "grant", billing, "topic:orders", "Group:billing", "--actions", "sub")
    assert ran.out == "billing is allowed Sub on Topic:orders, Group:billing\n"
    operator("acl", "grant", billing, "Topic:orders", "--actions", "Pub,Get")
    assert entries(operator) == {
        "Topic:orders": (["Pub", "Sub", "Get"], "Allow", []),
        "Group:billing": (["Sub"], "Allow", []),
    }


@pytest.mark.parametrize(
    "other",
    [
        ("deny", "--actions", "Sub"),
        ("grant", "--actions", "Sub", "--from", "10.0.0.0/8"),
    ],
)
def test_acl_grant_does_not_replace_a_different_entry(operator, billing, other):
    operator("acl", "grant", billing, "Topic:orders", "--actions", "Pub")
    ran = operator("acl", other[0], billing, "Topic:new", "Topic:orders", *other[1:])
    assert ran.code == 1
    assert "has an entry for Topic:orders already, and can have only one: allowed Pub" in ran.err
    assert "Revoke that first with rocketpoll acl revoke billing Topic:orders" in ran.err
    # nothing is changed partially
    assert entries(operator) == {"Topic:orders": (["Pub"], "Allow", [])}


def test_acl_revoke_removes_actions_entries_or_the_whole_list(operator, billing):
    operator("acl", "grant", billing, "Topic:orders", "Topic:pay*", "--actions", "Pub,Sub")
    operator("acl", "deny", billing, "Topic:payroll*", "--actions", "All")
    ran = operator("acl", "revoke", billing, "Topic:orders", "--actions", "Sub", "--yes")
    assert ran.out == "revoked Sub in 1 entry of billing\n"
    assert entries(operator)["Topic:orders"] == (["Pub"], "Allow", [])
    operator("acl", "revoke", billing, "Topic:orders", "--yes")
    assert set(entries(operator)) == {"Topic:pay*", "Topic:payroll*"}
    assert operator("acl", "revoke", billing, "--all", "--yes").out == (
        "revoked 2 entries of billing\n"
    )
    assert entries(operator) == {}


def test_revoke_asks_first_and_names_missing_entries(operator, billing):
    operator("acl", "grant", billing, "Topic:orders", "--actions", "Pub")
    assert "stdin is not a terminal" in operator("acl", "revoke", billing, "Topic:orders").err
    ran = operator("acl", "revoke", billing, "Topic:orders", "Topic:other", "--yes")
    assert "billing has no entry for Topic:other" in ran.err
    assert set(entries(operator)) == {"Topic:orders"}
    assert "no entries chosen" in operator("acl", "revoke", billing, "--yes").err


def test_acl_list_of_a_resource_shows_who_may_use_it(operator, billing):
    operator("acl", "grant", billing, "Topic:orders*", "Group:billing", "--actions", "Sub")
    assert set(entries(operator, "--resource", "Topic:orders-eu")) == {"Topic:orders*"}
    assert entries(operator, "--resource", "Topic:payments") == {}
    assert set(entries(operator, "--user", billing)) == {"Topic:orders*", "Group:billing"}
    assert entries(operator, "--user", "operator") == {}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("billing", "orders", "--actions", "Pub"), "'orders' is not Topic:NAME, Group:NAME or"),
        (
            ("billing", "Topic:orders", "--actions", "Publish"),
            "'Publish' is not one of Pub, Sub",
        ),
        (("billing", "--actions", "Pub"), "RESOURCE is missing"),
    ],
)
def test_wrong_acl_entries_are_usage_errors(operator, arguments, said):
    ran = operator("acl", "grant", *arguments)
    assert ran.code == 2
    assert said in ran.err


def test_entry_of_an_unknown_user_says_to_create_it_first(operator):
    ran = operator("acl", "grant", "nobody", "Topic:orders", "--actions", "Pub")
    assert ran.code == 1
    assert "Create the user first: rocketpoll user create NAME" in ran.err


def test_error_for_a_user_without_rights_names_the_needed_ones(operator, run, billing):
    ran = run("user", "list", "--access-key", billing, "--secret-key", SECRET)
    assert ran.code == 1
    assert "has no permission to access Cluster:DefaultCluster" in ran.err
    assert "run rocketpoll acl grant billing Cluster:DefaultCluster --actions Get" in ran.err


def test_user_who_manages_others_cannot_make_a_super_user(operator, run, billing):
    operator("acl", "grant", billing, "Cluster:DefaultCluster", "--actions", "Get,Update")
    keys = ("--access-key", billing, "--secret-key", SECRET)
    assert run("user", "create", "shop", "--password-stdin", *keys, stdin=b"x\n").code == 0
    ran = run("user", "create", "boss", "--super", "--password-stdin", *keys, stdin=b"x\n")
    assert ran.code == 1
    assert "The super user can only be create by super user. Use the keys of a super" in ran.err


def test_broker_without_authentication_says_how_to_turn_it_on(run):
    with EmbeddedBroker() as plain:
        ran = run("user", "list", "--namesrv", plain.address)
    assert ran.code == 1
    [line] = ran.err.splitlines()
    assert "there are no users with authenticationEnabled=false: set it to true" in line
    assert "Use keys" not in line


def test_user_names_from_brokers_never_control_the_terminal(operator, broker, monkeypatch):
    evil = UserInfo(username="\x1b[2Jowned\x9b5m", password="x", user_type="Normal")
    with Admin(instance=client_of(broker)) as admin:
        admin.instance.api.access.create_user(broker.address, evil)
        try:
            for output in ("table", "json", "yaml", "csv"):
                monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
                written = operator("user", "list", "-o", output).out
                assert "owned" in written
                assert "\x1b[2J" not in written
                assert "\x9b" not in written
        finally:
            admin.instance.api.access.delete_user(broker.address, evil.username)


def test_user_command_on_a_4_9_broker_gives_one_line_of_advice(run):
    def answer(request):
        if request.code != RequestCode.GET_BROKER_CLUSTER_INFO:
            return request.respond(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, " not supported")
        node = BrokerData(cluster="C", broker_name="a", broker_addrs={0: server.address})
        info = ClusterInfo(
            broker_addr_table={"a": node}, cluster_addr_table={"C": frozenset({"a"})}
        )
        return request.respond(ResponseCode.SUCCESS)._replace(body=encode_body(info))

    with FakeServer(answering(answer)) as server:
        for verb in (("user", "list"), ("acl", "list"), ("user", "delete", "x", "--yes")):
            ran = run(*verb, "--namesrv", server.address)
            assert ran.code == 1
            [line] = ran.err.splitlines()
            assert "has no users and access lists of RocketMQ 5" in line
            assert "Edit the accounts of RocketMQ 4.9 in its conf/plain_acl.yml" in line


def test_cluster_health_of_a_user_without_rights_is_not_healthy(operator, run, billing):
    ran = run("cluster", "health", "--access-key", billing, "--secret-key", SECRET)
    assert ran.code == 10
    assert "reports no figures: User:billing has no permission to access Cluster:" in ran.out
    assert "run rocketpoll acl grant billing Cluster:DefaultCluster --actions Get" in ran.out


def test_password_is_asked_for_twice_on_a_terminal_and_not_echoed(operator, broker):
    ours, its = new_terminal()
    keys = {
        "ROCKETPOLL_ACCESS_KEY": OPERATOR.access_key,
        "ROCKETPOLL_SECRET_KEY": OPERATOR.secret_key,
        "NAMESRV_ADDR": broker.address,
    }
    command = [sys.executable, "-m", "rocketpoll", "user", "create", "billing"]
    with open(ours, "r+b", buffering=0) as terminal:  # noqa: PTH123  # a file descriptor
        with subprocess.Popen(
            command,
            stdin=its,
            stdout=its,
            stderr=its,
            env=terminal_environment(**keys),
            start_new_session=True,  # without a controlling terminal it asks on stdin
        ) as program:
            os.close(its)
            written = b""
            for prompt in (b"password of billing: ", b"Repeat for confirmation: "):
                while prompt not in written:  # discard earlier output
                    written += terminal.read(65_536)
                terminal.write(b"s3cret-1\n")
            with suppress(OSError):  # the other end is closed
                while piece := terminal.read(65_536):
                    written += piece
        assert program.returncode == 0, written
    assert b"s3cret" not in written
    assert b"password of billing" in written
    assert b"created user billing on broker-a" in written
    ran = operator("topic", "list", "--access-key", "billing", "--secret-key", "s3cret-1")
    assert ran.code == 0
