"""``rocketpoll dlq``: groups with dead letters, their content, and resending."""

import base64
import json

import pytest
from support.brokers.broker_kinds import NAME, wait_until
from support.clients.conformance_clients import Clients

from rmq_spark.client.consumer.dispatch.listeners import ConsumeConcurrentlyStatus
from rmq_spark.client.damaged_records import BadRecord
from rmq_spark.client.forwarding import dead_letter_of
from rmq_spark.wire.codes import MessageSysFlag
from rmq_spark.wire.message.record import StoredMessage, encode_record
from rmq_spark.wire.message_queue import MessageQueue


@pytest.fixture
def buried(run, cluster):
    """Create a group with two dead letters of a topic; it has consumed a third message."""
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


def test_dead_letters_are_selected_by_tag_and_time_and_go_to_another_topic_at_a_rate(run, buried):
    group, topic = buried
    letters = [json.loads(line) for line in run("dlq", "show", group, "-o", "json").lines]
    assert run("dlq", "show", group, "--tags", "blue").out == ""
    assert len(run("dlq", "show", group, "--tags", "blue || red").lines) == 2
    assert run("dlq", "show", group, "--until", "@-1h").out == ""
    assert run("dlq", "show", group, "--from", "end").out == ""
    assert run("dlq", "show", group).out.count("  failures=1  bad ") == 2
    assert run("dlq", "show", group, "-f", "%r ").out == "1 1 "

    other = f"{topic}-fixed"
    run("topic", "create", other, "--queues", 1)
    plan = run("dlq", "resend", group, "--all", "--from", "@-1h", "--to", other, "--dry-run")
    assert plan.out.count(other) == 2
    assert plan.out.split()[:3] == ["dead", "letter", "failures"]
    sent = run(
        *("dlq", "resend", group, "--all", "--yes", "--to", other, "--rate", "50", "-o", "json")
    )
    assert [(row["topic"], row["failures"]) for row in sent.json] == [(other, 1)] * 2
    assert sorted(run("consume", other, "-f", "%s\\n").lines) == ["bad 1", "bad 2"]
    assert len(run("consume", topic).lines) == 3
    none = run("dlq", "resend", group, "--all", "--yes", "--until", letters[0]["offset"])
    assert none.code == 0
    assert "has no such dead letters" in none.out + none.err


def stored_letter(cluster, dead, topic, body=b"no JSON", *, sends=1, offset=7, **more):
    """Send the dead letter of a message as a Spark query does."""
    stored = StoredMessage(
        topic, body, "TAGS\x01red\x02KEYS\x01k\x02a\x01b\x02", 0, offset, flag=3, **more
    )
    bad = BadRecord(MessageQueue(topic, NAME, 0), offset, "it is no JSON", encode_record(stored))
    letter = dead_letter_of(bad, dead)
    for _ in range(sends):
        Clients(cluster).producer().send(letter)
    return letter


def test_dead_letters_of_spark_are_shown_and_sent_once_each(run, cluster):
    topic, dead = cluster.topic(queues=1), cluster.topic(queues=1)
    letter = stored_letter(cluster, dead, topic, sends=2)
    rows = {row["topic"]: row for row in run("dlq", "list", "--topic", dead, "-o", "json").json}
    assert (rows[dead]["group"], rows[dead]["dead_letters"]) == (None, 2)
    shown = run("dlq", "show", "--topic", dead)
    assert shown.out.count("error=it is no JSON") == 2
    [sent] = run("dlq", "resend", "--topic", dead, "--all", "--yes", "-o", "json").json
    assert (sent["dead_letter"], sent["topic"]) == (letter.message_id, topic)
    again = json.loads(run("consume", topic, "-o", "json").out)
    assert (again["body"], again["tags"], again["keys"]) == ("no JSON", "red", ["k"])
    assert again["flag"] == 3
    assert again["properties"] == {"a": "b"}
    [by_id] = run("dlq", "resend", "--topic", dead, letter.message_id, "-o", "json").json
    assert by_id["sent_as"] is not None


LZ4 = int(MessageSysFlag.COMPRESSED | MessageSysFlag.COMPRESSION_LZ4)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"body_crc": 1}, "has a damaged body: it is no JSON"),
        ({"body": b""}, "has an empty body: it is no JSON"),
        ({"body": b"no stream", "sys_flag": LZ4}, None),
    ],
)
def test_dead_letter_of_spark_with_a_damaged_body_is_refused_and_a_stored_one_is_as_it_was(
    run, cluster, more, said
):
    topic, dead = cluster.topic(queues=1), cluster.topic(queues=1)
    stored_letter(cluster, dead, topic, **more)
    done = run("dlq", "resend", "--topic", dead, "--all", "--yes", "-o", "json")
    if said is not None:
        assert said in done.json[0]["fault"]
        assert done.code == 1
        return
    again = json.loads(run("consume", topic, "-o", "json").out)
    assert base64.b64decode(again["body_base64"]) == b"no stream"
    assert "LZ4" in again["fault"]
    assert again["tags"] == "red"


def test_message_in_the_record_of_a_dead_letter_is_sent_with_its_properties(run, cluster):
    topic, dead = cluster.topic(queues=1), cluster.topic(queues=1)
    text = f"p\x01{'x' * 32_000}\x02TAGS\x01red\x02"
    stored = StoredMessage(topic, b"no JSON", text, 0, 7)
    bad = BadRecord(MessageQueue(topic, NAME, 0), 7, "it is no JSON", encode_record(stored))
    letter = dead_letter_of(bad, dead)
    assert letter.properties["DLQ_BODY"] == "record"
    Clients(cluster).producer().send(letter)
    assert run("dlq", "resend", "--topic", dead, "--all", "--yes").code == 0
    again = json.loads(run("consume", topic, "-o", "json").out)
    assert (again["body"], again["tags"]) == ("no JSON", "red")
    assert again["properties"] == {"p": "x" * 32_000}


def test_copy_of_a_dead_letter_is_sent_to_the_original_topic(run, cluster):
    topic, dead = cluster.topic(queues=1), cluster.topic(queues=1)
    record = encode_record(StoredMessage(topic, b"no JSON", "", 0, 7))
    bad = BadRecord(MessageQueue(topic, NAME, 0), 7, "it is no JSON", record)
    Clients(cluster).producer().send(dead_letter_of(bad, dead))
    assert run("topic", "copy", dead, f"{dead}-copy").code == 0
    assert run("dlq", "resend", "--topic", f"{dead}-copy", "--all", "--yes").code == 0
    assert run("consume", topic, "-f", "%s\\n").lines == ["no JSON"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["show"], "no group. Give the group of the dead letters, or a topic with --topic"),
        (["show", "G", "--topic", "T"], "GROUP and --topic exclude each other. Give one"),
        (
            ["resend", "--all"],
            "no group. Give the group of the dead letters, or a topic with --topic",
        ),
        (["resend", "G"], "no dead letters chosen. Give their ids, or --all for all"),
        (["resend", "G", "ID", "--all"], "--all excludes ID. Leave out --all, or the id"),
        (["resend", "--topic", "T", "G", "--all"], "--all excludes G. Leave out --all, or the g"),
        (["resend", "G", "--all", "--to", "%DLQ%G"], "%DLQ%G is a retry or dead-letter topic"),
        (["resend", "G", "--all", "--rate", "0"], "--rate: 0 is not above 0"),
        (
            ["show", "G", "--from", "yesterday"],
            "'yesterday' is not a position. Write start (or earliest), end",
        ),
    ],
)
def test_dlq_mistakes_have_exact_messages(run, arguments, said):
    done = run("dlq", *arguments)
    assert (done.code, done.out) == (2, "")
    assert said in done.err


def test_message_that_is_no_dead_letter_is_not_sent_to_its_own_topic(run, cluster):
    topic = cluster.topic(queues=1)
    run("produce", topic, stdin=b"an order")
    done = run("dlq", "resend", "--topic", topic, "--all", "--yes", "-o", "json")
    assert done.code == 1
    assert "does not name its original topic" in done.json[0]["fault"]
    assert run("consume", topic, "-f", "%s\\n").lines == ["an order"]


def test_unknown_dead_letter_topic_is_named(run, cluster):
    done = run("dlq", "show", "--topic", "nowhere-dead")
    assert done.code == 1
    assert "there is no topic nowhere-dead" in done.err
