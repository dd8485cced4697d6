"""``rocketpoll topic``: create, change, list, describe, delete."""

import csv
import io

from rmq_spark.client.api.admin_api import AdminApi


def test_topic_commands_create_update_list_and_delete(run, cluster):
    assert run("topic", "create", "orders", "--queues", 3).out == (
        f"created orders with 3 queues on {cluster.broker_name}\n"
    )
    again = run("topic", "create", "orders")
    assert (again.code, again.out) == (1, "")
    assert "orders exists already" in again.err

    before, after = run("topic", "alter", "orders", "--queues", 5, "--perm", "r", "-o", "json").json
    assert (before["read_queues"], before["perm"]) == (3, "rw")
    assert (after["read_queues"], after["write_queues"], after["perm"]) == (5, 5, "r")
    [only] = [row for row in run("topic", "list", "-o", "json").json if row["topic"] == "orders"]
    assert only == {
        "topic": "orders", "brokers": [cluster.broker_name], "queues": 5, "perm": "r",
    }  # fmt: skip

    refused = run("topic", "delete", "orders")
    assert refused.code == 2
    assert "Add --yes" in refused.err
    assert run("topic", "delete", "orders", "--yes").out == "deleted orders with 0 messages\n"
    assert "orders" not in run("topic", "list", "-o", "csv").out


def test_topic_create_of_one_topic_does_not_read_the_tables_of_all(run, cluster, monkeypatch):
    def refuse(*_):
        raise AssertionError("all topics were read")

    monkeypatch.setattr(AdminApi, "topic_configs", refuse)
    name = cluster.topic()
    assert f"{name} exists already" in run("topic", "create", name).err
    assert run("topic", "create", f"{name}-new").code == 0
    assert run("topic", "delete", f"{name}-new", "--yes").code == 0


def test_topic_create_makes_several_topics_or_none(run, cluster):
    names = [f"several-{number}" for number in range(3)]
    made = run("topic", "create", *names, names[0], "--queues", 2)
    assert made.out == f"created 3 topics with 2 queues each on {cluster.broker_name}\n"
    refused = run("topic", "create", "several-3", *names)
    assert (refused.code, refused.out) == (1, "")
    assert "several-0 exists already, and so do 2 more" in refused.err
    rows = run("topic", "list", "-o", "json").json
    found = {row["topic"]: row["queues"] for row in rows if row["topic"].startswith("several-")}
    assert found == dict.fromkeys(names, 2)
    for name in names:
        run("topic", "delete", name, "--yes")


def test_topic_alter_keeps_settings_that_are_not_given(run, cluster):
    topic = cluster.topic(queues=2)
    _, after = run("topic", "alter", topic, "--write-queues", 4, "-o", "json").json
    assert (after["read_queues"], after["write_queues"], after["perm"]) == (2, 4, "rw")
    nothing = run("topic", "alter", topic)
    assert nothing.code == 2
    assert "nothing to change. Give" in nothing.err


def test_topic_list_puts_the_largest_topic_first(run, cluster):
    small, big = cluster.topic(), cluster.topic()
    cluster.send(small, *"abcdef")
    cluster.send(big, "x" * 5_000, "y" * 5_000)
    rows = run("topic", "list", "--sizes", "-o", "json").json
    sizes = {row["topic"]: (row["messages"], row["bytes"]) for row in rows}
    assert sizes[small][0] == 6
    assert sizes[big][0] == 2
    assert 20_000 < sizes[big][1] < 22_000  # each id includes its body
    names = [row["topic"] for row in rows]
    assert names.index(big) < names.index(small)
    table = run("topic", "list", "--sizes").lines
    assert table[0].split() == [
        "topic", "brokers", "queues", "perm", "messages", "bytes", "last", "stored",
    ]  # fmt: skip
    assert any(line.startswith(big) and "KiB" in line for line in table)


def test_topic_list_all_includes_system_topics(run, cluster):
    cluster.topic(name="%RETRY%somebody")
    assert "%RETRY%somebody" not in run("topic", "list").out
    assert "%RETRY%somebody" in run("topic", "list", "--all").out


def test_topic_describe_shows_queues_and_groups(run, cluster):
    topic, group = cluster.topic(queues=2), cluster.group()
    cluster.send(topic, 1, 2, 3, queues=2)
    cluster.store_offset(group, topic, 1)
    found = run("topic", "describe", topic, "-o", "json").json
    assert (found["topic"], found["messages"]) == (topic, 3)
    assert [(row["queue"], row["first"], row["end"]) for row in found["queues"]] == [
        (0, 0, 2), (1, 0, 1),
    ]  # fmt: skip
    assert found["groups"] == [{"group": group, "behind": 2, "members": 0}]
    [row, _] = csv.DictReader(io.StringIO(run("topic", "describe", topic, "-o", "csv").out))
    assert row["end"] == "2"
    shown = run("topic", "describe", topic).lines
    assert shown[0].split() == ["topic", topic]
    assert "queues" in shown


def test_topic_attribute_without_a_value_is_a_usage_error(run, cluster):
    refused = run("topic", "create", "typed", "--attribute", "message.type")
    assert refused.code == 2
    assert "--attribute message.type has no name or no =" in refused.err
