"""Commands within a namespace show and take short names; commands for a whole cluster full ones."""

import json

import pytest

from rmq_spark.client.message import Message
from rmq_spark.client.producer.producer import Producer

IN = ("--namespace", "eu")


@pytest.fixture
def topic(cluster):
    """Return a topic's name in the namespace."""
    name = f"T{cluster.group()}"
    cluster.topic(1, f"eu%{name}")
    return name


def documents(ran):
    assert ran.code == 0, ran.err
    found = [json.loads(line) for line in ran.out.splitlines() if line[:1] == "{"]
    return found or json.loads(ran.out)


def test_topics_of_a_namespace_are_created_listed_changed_and_deleted(run, cluster):
    name, other = f"T{cluster.group()}", cluster.topic()
    assert run("topic", "create", name, *IN, "--queues", 2).out.startswith(f"created {name} ")
    assert f"eu%{name}" in cluster.api.admin.topic_configs(cluster.address)
    listed = run("topic", "list", *IN).out
    assert name in listed
    assert other not in listed
    assert f"eu%{name}" in run("topic", "list").out
    assert "exists already" in run("topic", "create", name, *IN).err
    altered = run("topic", "alter", name, "--queues", 4, "-o", "json", *IN)
    assert [each["read_queues"] for each in documents(altered)] == [2, 4]
    assert '"read_queues": 4' in json.dumps(
        json.loads(run("topic", "describe", name, "-o", "json", *IN).out)
    )
    assert run("topic", "delete", name, "--yes", *IN).code == 0
    assert f"eu%{name}" not in cluster.api.admin.topic_configs(cluster.address)
    missing = run("topic", "describe", other, *IN)
    assert missing.code != 0
    assert f"there is no topic eu%{other}" in missing.err
    assert f"rocketpoll topic create {other}" in missing.err


def test_messages_of_a_namespace_are_sent_printed_and_found(run, cluster, topic):
    sent = run("produce", topic, "-k", "k", *IN, stdin=b"one\ntwo\n")
    assert f"2 messages were sent to {topic}" in sent.out
    for more in ((), ("--key", "k"), ("--sql", "a is null"), ("--group", cluster.group())):
        found = documents(run("consume", topic, "-n", 2, "-o", "json", *more, *IN))
        assert sorted((each["topic"], each["body"]) for each in found) == [
            (topic, "one"),
            (topic, "two"),
        ], more
    (second,) = documents(run("consume", topic, "-o", "json", "--offset", "+1", *IN))
    assert second["body"] == "two"
    assert [each["topic"] for each in documents(run("consume", f"eu%{topic}", "-o", "json"))] == [
        f"eu%{topic}"
    ] * 2
    shown = run("message", found[0]["id"], "-o", "json", *IN)
    assert json.loads(shown.out)["topic"] == topic
    assert json.loads(run("message", found[0]["id"], "--topic", topic, "-o", "json", *IN).out)


def test_groups_of_a_namespace_are_described_moved_copied_and_deleted(run, cluster, topic):
    group, outside = cluster.group(), cluster.group()
    run("produce", topic, *IN, stdin=b"one\ntwo\n")
    assert run("consume", topic, "--group", group, "-n", 2, *IN).code == 0
    cluster.topic(1, topic)
    run("produce", topic, stdin=b"one\n")
    assert run("consume", topic, "--group", outside, "-n", 1).code == 0
    listed = run("group", "list", *IN).out
    assert group in listed
    assert outside not in listed
    described = json.loads(run("group", "describe", group, "-o", "json", *IN).out)
    assert described["group"] == group
    assert [(each["topic"], each["committed"]) for each in described["queues"]] == [(topic, 2)]
    moved = run("group", "seek", group, "--to", "-1", "--yes", "-o", "json", *IN)
    assert [(each["topic"], each["to"]) for each in documents(moved)] == [(topic, 1)]
    moved = run("group", "seek", f"eu%{group}", "--topic", topic, "--to", "start", "--yes", *IN)
    assert moved.code == 0, moved.err
    copied = run("group", "clone", group, f"{group}-2", "-o", "json", *IN)
    assert [(each["topic"], each["committed"]) for each in documents(copied)] == [(topic, 0)]
    assert "eu%" not in run("topic", "describe", topic, *IN).out
    assert run("group", "delete", f"{group}-2", "--yes", *IN).code == 0
    assert f"eu%{group}-2" not in cluster.api.admin.group_configs(cluster.address)


def test_dead_letters_of_a_namespace_are_listed_shown_and_resent(run, cluster, topic):
    group = cluster.group()
    cluster.topic(1, f"%DLQ%eu%{group}")
    with Producer("P", cluster.name_server) as producer:
        producer.send(Message(f"%DLQ%eu%{group}", b"late"))
    listed = documents(run("dlq", "list", "-o", "json", *IN))
    assert [each["dead_letters"] for each in listed if each["group"] == group] == [1]
    (shown,) = documents(run("dlq", "show", group, "-o", "json", *IN))
    assert (shown["topic"], shown["body"]) == (f"%DLQ%{group}", "late")
    more = ("--to", topic, "--all", "--yes", "-o", "json")
    assert [each["topic"] for each in documents(run("dlq", "resend", group, *more, *IN))] == [topic]


@pytest.mark.parametrize(
    "words",
    ["acl list", "cluster info", "cluster health", "console", "exporter", "top", "user list"],
)
def test_command_of_a_whole_cluster_refuses_the_option(run, words):
    ran = run(*words.split(), *IN)
    assert "acts on all namespaces, by full names. Leave out --namespace" in ran.err


@pytest.mark.parametrize(
    "words",
    ["bench produce orders", "lake orders /x", "sink list", "sql init orders", "topic copy a b"],
)
def test_command_that_takes_full_names_refuses_a_namespace(run, words, monkeypatch):
    ran = run(*words.split(), *IN)
    assert "takes full names, such as eu%orders, and no namespace. Leave out" in ran.err
    monkeypatch.setenv("ROCKETPOLL_NAMESPACE", "eu")
    assert "Unset ROCKETPOLL_NAMESPACE, or use a profile without" in run(*words.split()).err
