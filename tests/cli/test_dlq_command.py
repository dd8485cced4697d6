"""``rocketpoll dlq``: which groups have dead letters, what they contain, how they are resent."""

from __future__ import annotations

import json

import pytest
from support.brokers.broker_kinds import wait_until
from support.clients.conformance_clients import Clients

from rmq_spark.client.consumer.dispatch.listeners import ConsumeConcurrentlyStatus


@pytest.fixture
def buried(run, cluster):
    """A group that has failed two messages of a topic, and has taken a third."""
    clients = Clients(cluster)
    topic, group = cluster.topic(queues=1), cluster.group()
    run("produce", topic, "-t", "red", "-k", "k", "-p", "a=b", stdin=b"bad 1\ngood\nbad 2\n")

    def listen(messages, _):
        if any(message.body.startswith(b"bad") for message in messages):
            return ConsumeConcurrentlyStatus.RECONSUME_LATER
        return None

    consumer = clients.push(
        listen, group, topic, max_reconsume_times=0, persist_consumer_offset_interval_ms=200
    )
    wait_until("two dead letters", lambda: cluster.dead_letters(group) == 2)
    wait_until("the offset behind all", lambda: cluster.stored_offset(group, topic) == 3)
    consumer.shutdown()
    return group, topic


def test_dead_letters_are_listed_shown_and_sent_once_more(run, buried):
    group, topic = buried
    [row] = [each for each in run("dlq", "list", "-o", "json").json if each["group"] == group]
    assert row["dead_letters"] == 2
    letters = [json.loads(line) for line in run("dlq", "show", group, "-o", "json").lines]
    assert sorted(letter["body"] for letter in letters) == ["bad 1", "bad 2"]
    assert len(run("dlq", "show", group, "-n", 1, "-f", "%s\\n").lines) == 1

    one = letters[0]
    [dry] = run("dlq", "resend", group, one["id"], "--dry-run", "-o", "json").json
    assert (dry["dead_letter"], dry["topic"], dry["sent_as"]) == (one["id"], topic, None)
    assert len(run("consume", topic).lines) == 3
    [sent] = run("dlq", "resend", group, one["id"], "-o", "json").json
    again = json.loads(run("consume", topic, "--offset", "3", "-o", "json").out)
    assert (again["id"], again["body"]) == (sent["sent_as"], one["body"])
    assert (again["tags"], again["keys"], again["properties"]) == ("red", ["k"], {"a": "b"})

    refused = run("dlq", "resend", group, "--all")
    assert refused.code == 2
    assert (
        "this would send 2 messages again, and stdin is not a terminal to confirm on. Add --yes"
        in refused.err
    )
    assert len(run("dlq", "resend", group, "--all", "--yes", "-o", "json").json) == 2
    assert len(run("consume", topic).lines) == 6


def test_failed_resend_does_not_block_other_dead_letters(run, cluster):
    clients = Clients(cluster)
    topics, group = [cluster.topic(queues=1) for _ in range(2)], cluster.group()
    consumer = clients.push(
        lambda *_: ConsumeConcurrentlyStatus.RECONSUME_LATER,
        group,
        topics[0],
        max_reconsume_times=0,
    )
    consumer.subscribe(topics[1])
    for number, topic in enumerate((topics[0], topics[1], topics[0]), 1):
        run("produce", topic, stdin=b"bad")
        wait_until("a dead letter", lambda number=number: cluster.dead_letters(group) == number)
    consumer.shutdown()
    run("topic", "alter", topics[1], "--perm", "r")
    done = run("dlq", "resend", group, "--all", "--yes", "-o", "json")
    rows = {(row["topic"], row["sent_as"] is None, row["fault"] is None) for row in done.json}
    assert rows == {(topics[0], False, True), (topics[1], True, False)}
    assert len(done.json) == 3
    assert done.code == 1
    assert "2 of 3 dead letters were sent again" in done.err
    assert len(run("consume", topics[0]).lines) == 4


def test_message_with_a_dead_letter_is_shown_with_its_dlq_command(run, buried):
    group, topic = buried
    bad, good = (json.loads(line) for line in run("consume", topic, "-n", 2, "-o", "json").lines)
    states = [
        run("message", each["id"], "--topic", topic, "-o", "json").json["groups"][0]["state"]
        for each in (bad, good)
    ]
    assert states == [f"dead letter: rocketpoll dlq show {group}", "consumed"]


def test_dlq_command_reports_unknown_group_and_message(run, buried):
    group, _ = buried
    nobody = run("dlq", "show", "nobody")
    assert (nobody.code, nobody.out) == (1, "")
    assert "there is no group nobody. List all with rocketpoll group list" in nobody.err
    assert f"Did you mean {group}? " in run("dlq", "show", f"%DLQ%{group}").err
    assert "has no dead letter 00" in run("dlq", "resend", group, "00").err
    assert run("dlq", "resend", group).code == 2
