"""``rocketpoll topic copy``: which fields a copy keeps, where it continues, and what it refuses."""

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import pytest
from support.brokers.broker_kinds import wait_until
from support.messages.bad_messages import BadTopic
from support.servers.joining_name_server import JoiningNameServer

from rmq_spark.cli.cluster import topic_copy
from rmq_spark.cli.shell import parameter_types
from rmq_spark.client.errors import RequestTimeout
from rmq_spark.client.message import Message
from rmq_spark.client.producer.producer import Producer
from rmq_spark.client.reading import bulk_pull
from rmq_spark.wire.message_queue import MessageQueue
from rocketpoll import EmbeddedBroker

KEPT = ("queue", "id", "born", "tags", "keys", "sharding_key", "flag", "body")


def messages_of(run, topic, *more):
    return [json.loads(line) for line in run("consume", topic, "-o", "json", *more).lines]


def kept(messages):
    """Return the fields that a copy shares with its original, by queue and in order."""
    return sorted(
        (each["queue"], each["offset"], *(str(each[name]) for name in KEPT)) for each in messages
    )


def test_copy_keeps_all_but_store_times_and_says_where_each_message_was(run, cluster):
    topic = cluster.topic(queues=3)
    to = f"{topic}-copy"
    lines = [f"order {number}" for number in range(9)] + ["long " * 2_000]
    arguments = ["-t", "paid", "-k", "a", "-k", "b", "-p", "colour=red"]
    run("produce", topic, *arguments, stdin="\n".join(lines).encode())
    wait_until("all", lambda: len(messages_of(run, topic)) == 10)
    dry = run("topic", "copy", topic, to, "--dry-run", "-o", "json")
    assert sum(row["messages"] for row in dry.json) == 10
    assert "dry run: nothing was copied" in dry.err
    assert to not in run("topic", "list").out

    done = run("topic", "copy", topic, to, "-o", "json")
    assert (done.code, done.err) == (0, "")
    assert [(row["queue"], row["to_queue"], row["left_out"]) for row in done.json] == [
        (number, number, 0) for number in range(3)
    ]
    originals, copies = messages_of(run, topic), messages_of(run, to)
    assert kept(copies) == kept(originals)
    for each in copies:
        names = [name for name in each["properties"] if name.startswith("COPY_")]
        place = {name: each["properties"].pop(name) for name in names}
        assert each["properties"] == {"colour": "red"}
        assert place == {
            "COPY_ORIGIN_TOPIC": topic,
            "COPY_ORIGIN_BROKER": cluster.broker_name,
            "COPY_ORIGIN_QUEUE_ID": str(each["queue"]),
            "COPY_ORIGIN_QUEUE_OFFSET": str(each["offset"]),
        }
    # A second run copies the new message.
    run("produce", topic, stdin=b"one more")
    wait_until("all", lambda: len(messages_of(run, topic)) == 11)
    assert sum(row["copied"] for row in run("topic", "copy", topic, to, "-o", "json").json) == 1
    assert sum(row["copied"] for row in run("topic", "copy", topic, to, "-o", "json").json) == 0


@pytest.fixture
def brokers():
    """Run a source, whose topic has 40 messages in 2 queues, and an empty destination."""
    with EmbeddedBroker() as source, EmbeddedBroker() as destination:
        source.create_topic("T", 2)
        for number in range(40):
            source.send("T", f"m{number}")
        yield source, destination


def copied(run, brokers, *more, to="T"):
    source, destination = brokers
    addresses = ("--namesrv", source.address, "--to-namesrv", destination.address)
    return run("topic", "copy", "T", to, *addresses, "-o", "json", *more)


def bodies(broker, topic="T"):
    found = sorted(broker.messages(topic), key=lambda each: (each.queue, each.queue_offset))
    return [each.body.decode() for each in found]


def test_copy_between_positions_continues_past_the_copied_messages(run, brokers):
    source, destination = brokers
    first = copied(run, brokers, "--from", "+5", "--until", "+8")
    assert [(row["from"], row["until"], row["copied"]) for row in first.json] == [(5, 8, 3)] * 2
    # A queue is copied in order, so it never goes back.
    assert [row["copied"] for row in copied(run, brokers, "--from", "3").json] == [12, 12]
    assert Counter(bodies(destination)) == Counter(
        each.body.decode() for each in source.messages("T") if each.queue_offset >= 5
    )
    assert [row["copied"] for row in copied(run, brokers, "--until", "-1h").json] == [0, 0]


def test_destination_of_a_profile_has_its_settings(run, brokers, monkeypatch, tmp_path):
    source, destination = brokers
    file = tmp_path / "profiles.ini"
    file.write_text(f"[test]\nnamesrv = {destination.address}\n", encoding="utf-8")
    monkeypatch.setenv("ROCKETPOLL_PROFILES", str(file))
    done = run("topic", "copy", "T", "T", "--namesrv", source.address, "--to-profile", "test")
    assert done.code == 0
    assert bodies(destination) == bodies(source)


def test_copy_continues_past_messages_of_other_producers(run, brokers):
    source, destination = brokers
    copied(run, brokers)
    with destination.producer() as producer:
        for _ in range(100):
            producer.send(Message("T", b"own"), MessageQueue("T", "broker-a", 0))
    source.send("T", "m40")
    source.send("T", "m41")
    assert sum(row["copied"] for row in copied(run, brokers).json) == 2
    assert Counter(bodies(destination)) == Counter([*bodies(source), *["own"] * 100])


def test_queues_of_two_brokers_become_queues_of_one(run):
    with (
        EmbeddedBroker(brokerName="a") as a,
        EmbeddedBroker(brokerName="b") as b,
        JoiningNameServer(a, b) as name_server,
        EmbeddedBroker() as destination,
    ):
        for broker, name in ((a, "a"), (b, "b")):
            broker.create_topic("T", 2)
            with broker.producer() as producer:
                for number in range(4):
                    queue = MessageQueue("T", name, number % 2)
                    producer.send(Message("T", f"{name}{number}".encode()), queue)
        rows = copied(run, (name_server, destination)).json
        assert bodies(destination) == ["a0", "a2", "a1", "a3", "b0", "b2", "b1", "b3"]
    assert [(row["broker"], row["queue"], row["to_queue"], row["copied"]) for row in rows] == [
        ("a", 0, 0, 2),
        ("a", 1, 1, 2),
        ("b", 0, 2, 2),
        ("b", 1, 3, 2),
    ]


def test_lost_answer_is_not_copied_twice(run, brokers, monkeypatch):
    source, destination = brokers
    send, lost = Producer.send_async, []

    def send_and_lose(self, message, queue=None, timeout_ms=None):
        future = send(self, message, queue, timeout_ms)
        if message.body == b"m7" and not lost:
            lost.append(future.result())
            future = type(future)(None)
            future.set_exception(RequestTimeout("broker", 310, 1))
        return future

    monkeypatch.setattr(Producer, "send_async", send_and_lose)
    monkeypatch.setattr(topic_copy, "_PAUSE_SECONDS", 0)
    assert sum(row["copied"] for row in copied(run, brokers).json) == 40
    assert lost
    assert bodies(destination) == bodies(source)


def test_interrupted_copy_says_that_the_next_run_continues(run, brokers, monkeypatch):
    _, destination = brokers
    send = Producer.send_async

    def fail_at(self, message, queue=None, timeout_ms=None):
        if message.body == b"m30":
            destination.stop()
        return send(self, message, queue, timeout_ms)

    monkeypatch.setattr(Producer, "send_async", fail_at)
    monkeypatch.setattr(topic_copy, "_PAUSE_SECONDS", 0)
    done = copied(run, brokers)
    assert done.code == 1
    assert "was not copied: " in done.err
    assert "Run the same command again: it continues after the last copy" in done.err
    assert sum(row["copied"] for row in done.json) in (30, 31)


def test_messages_that_cannot_be_read_are_left_out_and_named(run, tmp_path):
    with EmbeddedBroker(tmp_path) as source, EmbeddedBroker() as destination:
        topic = BadTopic(source, tmp_path)
        done = copied(run, (source, destination))
        found = destination.messages("T")
    assert [each.body for each in found] == list(topic.sound.values())
    assert done.code == 1
    assert done.json[0]["left_out"] == len(topic.bad)
    assert f"{len(topic.bad)} messages were not copied, named above" in done.err
    for at in topic.bad:
        assert re.search(rf"the message of T at broker-a:0@{at} \(\w+\) cannot be read: ", done.err)


def test_empty_message_is_left_out_where_brokers_refuse_it(run, brokers, monkeypatch):
    """RocketMQ 4.9 accepts such messages; RocketMQ 5.5 and our broker do not."""
    real = bulk_pull.stored_messages

    def read(*arguments):
        for message in real(*arguments):
            yield replace(message, body=b"") if message.body == b"m3" else message

    monkeypatch.setattr(bulk_pull, "stored_messages", read)
    done = copied(run, brokers)
    assert (done.code, sum(row["copied"] for row in done.json)) == (1, 39)
    assert "cannot be copied: " in done.err
    assert "the message body is empty" in done.err


def test_messages_that_retention_took_before_they_were_copied_are_counted(
    run, brokers, monkeypatch
):
    copied(run, brokers, "--until", "+5")
    resolve = parameter_types.resolve_ranges

    def expired(instance, topic, position, name, end=None):
        spans = resolve(instance, topic, position, name, end)
        return [
            span._replace(start=max(span.start, 9)) if span.end == 20 else span for span in spans
        ]

    monkeypatch.setattr(topic_copy, "resolve_ranges", expired)
    done = copied(run, brokers)
    assert [row["from"] for row in done.json] == [9, 9]
    assert done.err.count("has lost 4 messages to retention before they were copied") == 2


@pytest.mark.parametrize(
    ("messages", "found"), [(1, "which ends at "), (60, "which has another message there")]
)
def test_topic_that_was_created_again_is_refused(run, brokers, messages, found):
    source, destination = brokers
    copied(run, brokers)
    source.delete_topic("T")
    source.create_topic("T", 2)
    source.send("T", *["new"] * messages)
    done = copied(run, brokers)
    assert done.code == 1
    assert "new" not in bodies(destination)
    assert "T has a copy of offset 19 of queue " in done.err
    assert found in done.err
    assert "T was deleted and created again since. Copy it to another topic" in done.err


def test_copy_mistakes_have_exact_messages(run, brokers):
    source, destination = brokers
    destination.create_topic("small", 1)
    for to, more, said in (
        ("T", ("--to-namesrv", source.address), "T would be copied to itself. Name another"),
        (
            "small",
            (),
            "small has 1 queue, and T has 2. Give it as many with rocketpoll",
        ),
        ("T", ("--to-namesrv", ""), "--to-namesrv is empty. Give HOST:PORT, or leave the option"),
        ("T", ("--to-profile", "nobody"), "--profile nobody: "),
        ("T", ("--rate", "0"), "--rate: 0 is not above 0"),
        (
            "T",
            ("--from", "x"),
            "'x' is not a position. Write start (or earliest), end (or latest), -10",
        ),
        ("a b", (), "topic: needed letters, digits"),
        ("SCHEDULE_TOPIC_XXXX", (), "copy: topic: needed a topic that the broker does not reserve"),
        (
            "TBW102",
            (),
            "copy: topic: needed a topic that neither RocketMQ nor a group's retries use",
        ),
        ("%RETRY%g", (), "copy: topic: needed a topic that neither RocketMQ nor a group's"),
    ):
        done = copied(run, brokers, *more, to=to)
        assert done.code in (1, 2)
        assert said in done.err, done.err
    missing = run("topic", "copy", "nowhere", "T", "--namesrv", source.address)
    assert "there is no topic nowhere" in missing.err
    assert destination.has_topic("T") is False


def test_rate_paces_items_by_their_size(monkeypatch):
    class Time:
        now = 0.0

        def monotonic(self):
            return self.now

        def sleep(self, seconds):
            self.now += seconds

    monkeypatch.setattr(parameter_types, "time", clock := Time())
    times = [clock.now for _ in parameter_types.rate_limited(["aa", "bbbb", "c", "d"], 2, len)]
    assert times == [0.0, 1.0, 3.0, 3.5]
    assert len(list(parameter_types.rate_limited(range(9), None))) == 9
    assert clock.now == 3.5


@pytest.mark.deep
def test_killed_copies_continue_and_copy_each_message_once(tmp_path, brokers):
    source, destination = brokers
    for number in range(40, 400):
        source.send("T", f"m{number}")
    destination.create_topic("T", 2)
    command = [
        *(sys.executable, "-m", "rocketpoll", "topic", "copy", "T", "T"),
        *("--namesrv", source.address, "--to-namesrv", destination.address, "--rate", "400"),
    ]
    for enough in (20, 90, 91, 200):
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            wait_until("some", lambda enough=enough: len(destination.messages("T")) >= enough)
            os.kill(process.pid, signal.SIGKILL)
    assert len(destination.messages("T")) < 400
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    assert bodies(destination) == bodies(source)
