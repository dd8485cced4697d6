"""``rocketpoll cluster``: the brokers and name servers, and whether they are healthy."""

import threading
import time
from contextlib import ExitStack

import pytest
from support.brokers.broker_kinds import wait_until
from support.clients.conformance_clients import Clients
from support.servers.joining_name_server import JoiningNameServer

from rocketpoll import EmbeddedBroker


@pytest.fixture
def two_brokers():
    """Run a name server and two brokers."""
    with ExitStack() as stack:
        first = stack.enter_context(EmbeddedBroker(brokerName="broker-a"))
        second = stack.enter_context(EmbeddedBroker(own_process=True, brokerName="b"))
        servers = stack.enter_context(JoiningNameServer(first, second))
        yield servers.address, first, second


def test_cluster_info_shows_all_brokers(run, cluster):
    def row_with_figures():
        [row] = run("cluster", "info", "-o", "json").json
        return row if row["version"] else None

    row = wait_until("figures, which RocketMQ has after a second", row_with_figures)
    assert (row["broker"], row["role"], row["address"], row["state"]) == (
        cluster.broker_name, "master", cluster.address, "answers",
    )  # fmt: skip
    assert row["version"].startswith("V")
    assert row["disk"].endswith("%")


def test_cluster_health_of_a_healthy_cluster_exits_with_0(run, cluster):
    ran = run("cluster", "health", "-o", "json")
    assert ran.code == 0
    assert {row["state"] for row in ran.json} <= {"ok", "warning"}
    assert run("cluster", "health", "--watch", "--exit-when-healthy").code == 0


def test_cluster_health_fails_for_stuck_groups_and_warns_of_dead_letters(run, cluster, monkeypatch):
    clock = [time.time()]
    monkeypatch.setattr(
        "rmq_spark.cli.groups.diagnosis.current_time_ms", lambda: int(clock[0] * 1_000)
    )
    monkeypatch.setattr(
        "rmq_spark.cli.cluster.cluster_command.wait_for_moves",
        lambda seconds: clock.append(clock.pop() + seconds),
    )
    topic, stuck, idle = cluster.topic(queues=1), cluster.group(), cluster.group()
    cluster.topic(1, f"%DLQ%{idle}")
    cluster.send(f"%DLQ%{idle}", "x", "y", queues=1)
    cluster.send(topic, "a", "b", queues=1)
    for group in (stuck, idle):
        cluster.store_offset(group, topic, 1)
    warned = run("cluster", "health", "-o", "json")
    warnings = {row["check"]: row for row in warned.json if row["state"] == "warning"}
    assert warned.code == 0
    assert stuck in warnings["groups without consumers"]["found"]
    assert warnings["dead letters"]["found"] == f"2 dead letters: {idle} (2)"
    assert warnings["dead letters"]["fix"] == f"run rocketpoll dlq show {idle}"

    Clients(cluster).lite(stuck, topic, auto_commit=False)  # a member that commits nothing
    wait_until("the member", lambda: cluster.members(stuck))
    assert run("cluster", "health").code == 0
    clock[0] += 60
    found = run("cluster", "health", "-o", "json")
    [bad] = [row for row in found.json if row["state"] == "FAIL"]
    assert (found.code, bad["check"]) == (10, f"group {stuck}")
    assert f"stuck in {topic} {cluster.broker_name}:0, whose next message" in bad["found"]
    assert bad["fix"] == f"run rocketpoll group describe {stuck}"
    assert run("cluster", "health", "--no-groups").code == 0
    [row] = [each for each in run("group", "list", "-o", "json").json if each["group"] == stuck]
    assert row["members"] == 1


def test_cluster_health_finds_an_unreachable_name_server(run, cluster):
    ran = run("cluster", "health", "--namesrv", f"{cluster.name_server};127.0.0.1:1", "-o", "json")
    assert ran.code == 10
    [bad] = [row for row in ran.json if row["state"] == "FAIL"]
    assert bad["check"] == "name server 127.0.0.1:1"
    assert bad["fix"] == "start it, or correct the address"


def test_cluster_health_finds_a_killed_broker(run, two_brokers):
    address, _, second = two_brokers
    second.kill()
    ran = run("cluster", "health", "--namesrv", address, "-o", "json")
    assert ran.code == 10
    [bad] = [row for row in ran.json if row["state"] == "FAIL"]
    assert bad["check"] == "broker b"
    assert "Connection refused" in bad["found"]
    [row] = [
        row
        for row in run("cluster", "info", "--namesrv", address, "-o", "json").json
        if row["broker"] == "b"
    ]
    assert "Connection refused" in row["state"]
    starting = threading.Timer(0.3, second.restart)
    starting.start()
    back = run("cluster", "health", "--namesrv", address, "--exit-when-healthy", "--interval", 0.1)
    starting.join()
    assert back.code == 0
    assert "FAIL" in back.out  # as before
