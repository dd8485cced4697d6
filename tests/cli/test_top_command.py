"""``rocketpoll top`` displays rates and lags live."""

import json
import sys
from collections import Counter
from collections.abc import Mapping

import pytest
from support.clients.conformance_clients import Clients
from support.programs.terminals import written_to_a_terminal
from support.programs.web_console import with_topics

from rmq_spark.cli.cluster.top_command import ClusterSample, rate_tables
from rmq_spark.client.transport.remoting_client import RemotingClient, TypedRequests
from rmq_spark.wire.codes import RequestCode
from rocketpoll import EmbeddedBroker


def test_top_rates_are_differences_of_two_samples():
    before = ClusterSample(10.0, (), {"a": (5, 5), "b": (5, 5)}, {"g": (3, 9, 1), "h": (0, 20, 0)})
    now = ClusterSample(
        12.0, (), {"a": (5, 5), "b": (15, 12), "new": (7, 7)}, {"g": (7, 5, 1), "h": (0, 20, 0)}
    )
    tables = rate_tables(before, now, rows_max=2)
    assert tables["topics"] == [
        {"topic": "b", "in_per_s": 5.0, "messages": 12},
        {"topic": "a", "in_per_s": 0.0, "messages": 5},
    ]
    assert tables["groups"] == [
        {"group": "h", "members": 0, "out_per_s": 0.0, "behind": 20},
        {"group": "g", "members": 1, "out_per_s": 2.0, "behind": 5},
    ]


def test_top_command_prints_each_sample(run, cluster):
    topic, group = cluster.topic(), cluster.group()
    cluster.send(topic, 1, 2, 3)
    cluster.store_offset(group, topic, 0)
    ran = run("top", "-n", 2, "--interval", 0.1, "-o", "json")
    first, _ = (json.loads(line) for line in ran.lines)
    assert first["brokers"][0]["broker"] == cluster.broker_name
    [shown] = [row for row in first["groups"] if row["group"] == group]
    assert shown["behind"] == 3
    assert {row["topic"] for row in first["topics"]} >= {topic}
    lines = run("top", "-n", 1, "--interval", 0.1).lines
    assert lines[0] == "brokers"
    assert {"topics", "groups"} <= set(lines)


def test_top_counts_members_and_consumed_messages(run, cluster):
    topic, group = cluster.topic(queues=2), cluster.group()
    cluster.send(topic, *range(6), queues=2)
    consumer = Clients(cluster).lite(group, topic, auto_commit=False)
    taken = 0
    while taken < 6:
        taken += len(consumer.poll(100))
    consumer.commit()
    ran = run("top", "-n", 1, "--interval", 0.1, "--rows", 1_000, "-o", "json")
    [shown] = [row for row in ran.json["groups"] if row["group"] == group]
    assert (shown["members"], shown["behind"]) == (1, 0)


def test_top_command_restores_the_terminal_screen(cluster):
    topic = cluster.topic()
    cluster.send(topic, *"abc")
    command = [sys.executable, "-m", "rocketpoll", "top", "-n", "2", "--interval", "0.1"]
    text = written_to_a_terminal(command, NAMESRV_ADDR=cluster.name_server, LINES="400")
    taken, given_back = text.index("\x1b[?1049h"), text.rindex("\x1b[?1049l")
    assert taken < text.index("brokers") < text.index("groups") < given_back
    assert cluster.broker_name in text


TOPICS, QUEUES, GROUPS = 1_000, 4, 1_000


@pytest.fixture
def asked(monkeypatch):
    """Count the requests by code."""
    counts, request = Counter(), RemotingClient.request

    def counted(self, address, command, *arguments, **more):
        counts[command.code] += 1
        return request(self, address, command, *arguments, **more)

    monkeypatch.setattr(RemotingClient, "request", counted)
    return counts


@pytest.fixture
def rows(monkeypatch):
    """Count the offsets in the answers about topics and groups."""
    counts, body = [], TypedRequests.body

    def counted(self, kind, *arguments, **more):
        found = body(self, kind, *arguments, **more)
        table = getattr(found, "offset_table", {})
        counts.append(sum(len(each) if isinstance(each, Mapping) else 1 for each in table.values()))
        return found

    monkeypatch.setattr(TypedRequests, "body", counted)
    return counts


@pytest.mark.deep
def test_thousands_of_queues_and_groups_cost_a_request_each(run, tmp_path, asked):
    store = with_topics(tmp_path / "store", TOPICS, queues=QUEUES, groups=GROUPS)
    with EmbeddedBroker(store) as broker:
        at = ("--namesrv", broker.address)
        ran = run("top", "-n", 1, "--interval", 0.1, "--rows", 10_000, "-o", "json", *at)
    assert len({row["topic"] for row in ran.json["topics"]}) == TOPICS
    behind = {row["group"]: row["behind"] for row in ran.json["groups"]}
    assert (len(behind), set(behind.values())) == (GROUPS, {0})
    looks = 2
    assert asked[RequestCode.GET_TOPIC_STATS_INFO] < looks * (TOPICS + 100)
    assert sum(asked.values()) < looks * (TOPICS + GROUPS + 300)


def test_top_cost_of_a_group_grows_with_its_commits_not_with_queues(run, tmp_path, asked, rows):
    groups = 1_000
    store = with_topics(tmp_path / "store", 1, queues=1_000, groups=groups, committed=[7, 70])
    with EmbeddedBroker(store) as broker:
        broker.send("topic-00000", *map(str, range(100)))
        at = ("--namesrv", broker.address)
        ran = run("top", "-n", 1, "--interval", 0.1, "--rows", 10_000, "-o", "json", *at)
    behind = {row["group"]: row["behind"] for row in ran.json["groups"]}
    assert (len(behind), set(behind.values())) == (groups, {100})
    looks = 2
    assert sum(asked.values()) < looks * (groups + 300)
    assert sum(rows) < looks * (1_000 + 2 * groups + 2_000)
