"""``rocketpoll message`` displays one message: its position, its content, and the groups that
consumed it."""

import json
import threading

import pytest
from support.brokers.broker_kinds import wait_until

from rmq_spark.client.consumer.dispatch.listeners import ConsumeConcurrentlyStatus
from rocketpoll import (
    ConsumeFromWhere,
    Message,
    Producer,
    PushConsumer,
    PushSettings,
    TransactionProducer,
    TransactionState,
)


@pytest.fixture
def sent(run, cluster):
    """Send a message; return it as ``consume`` prints it."""
    topic = cluster.topic(queues=1)
    run("produce", topic, "-k", "k", "-p", "a=b", stdin=b"first\nsecond\n")
    return json.loads(run("consume", topic, "--offset", "1", "-o", "json").out)


def test_message_command_finds_message_by_either_id(run, sent):
    first = run("message", sent["id"], "--topic", sent["topic"], "-o", "json").json
    assert (first["body"], first["offset"], first["properties"]) == ("second", 1, {"a": "b"})
    assert first["system_properties"]["KEYS"] == "k"
    for command in ((sent["id"],), (first["offset_id"],)):
        assert run("message", *command, "-o", "json").json == first
    assert any(line.split() == ["body", "second"] for line in run("message", sent["id"]).lines)


def test_message_command_shows_which_groups_consumed_it(run, cluster, sent):
    done, behind = cluster.group(), cluster.group()
    cluster.store_offset(done, sent["topic"], 2)
    cluster.store_offset(behind, sent["topic"], 0)
    found = run("message", sent["id"], "--topic", sent["topic"], "-o", "json").json
    assert {row["group"]: row["state"] for row in found["groups"]} == {
        done: "consumed",
        behind: "waiting, 1 before it",
    }


def test_message_command_shows_how_often_a_group_sent_it_back(run, cluster, sent):
    group = cluster.group()
    seen = []

    def listen(messages, _):
        seen.extend(message.message_id for message in messages)
        is_new = seen.count(sent["id"]) == 1 and messages[0].message_id == sent["id"]
        return (
            ConsumeConcurrentlyStatus.RECONSUME_LATER
            if is_new
            else ConsumeConcurrentlyStatus.CONSUME_SUCCESS
        )

    settings = PushSettings(
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        persist_consumer_offset_interval_ms=100,
    )
    with PushConsumer(group, cluster.name_server, listener=listen, settings=settings) as consumer:
        consumer.subscribe(sent["topic"])
        wait_until("it comes again", lambda: seen.count(sent["id"]) == 2)
    found = run("message", sent["id"], "--topic", sent["topic"], "-o", "json").json
    [row] = [each for each in found["groups"] if each["group"] == group]
    assert (row["state"], row["given_back"]) == ("consumed", 1)


def test_message_command_shows_recorded_traces(run, cluster):
    topic, group = cluster.topic(queues=1), cluster.group()
    came, failures = threading.Event(), ["first"]

    def listen(_, __):
        if failures:
            raise ValueError(failures.pop())
        came.set()

    settings = PushSettings(enable_trace=True)
    listener = {"listener": listen, "settings": settings, "start": "earliest"}
    with (
        Producer("Traced", cluster.name_server, enable_trace=True) as producer,
        PushConsumer(group, cluster.name_server, **listener) as consumer,
    ):
        consumer.subscribe(topic)
        sent = producer.send(Message(topic, b"x"))
        assert came.wait(60)

    def shown():
        return run("message", sent.message_id, "--topic", topic, "-o", "json").json

    wait_until("all traces", lambda: len(shown().get("traces", ())) == 3)
    assert [(row["event"], row["group"], row["success"]) for row in shown()["traces"]] == [
        ("sent", "Traced", True),
        ("consumed", group, False),
        ("consumed", group, True),
    ]
    details = [row["detail"] for row in shown()["traces"]]
    assert details[0].endswith(f" ms to {cluster.address}")
    assert details[1].endswith(" ms, exception")
    assert details[2].endswith(" ms, retry 1")
    table = run("message", sent.message_id, "--topic", topic).out
    assert "traces" in table
    assert "exception" in table


def test_message_command_reports_a_missing_message(run, sent):
    strange = "0" * 32
    here = run("message", strange, "--topic", sent["topic"])
    assert here.code == 1
    assert f"{sent['topic']} does not have message {strange}" in here.err
    nowhere = run("message", strange)
    assert (nowhere.code, nowhere.out) == (1, "")
    assert f": none has message {strange}. Check the id" in nowhere.err
    assert "searching " in nowhere.err  # also if stderr is a file
    no_id = run("message", "order 1").err
    assert "none has message order 1, and ids have 32, 34 or 56 hexadecimal digits" in no_id
    assert "rocketpoll consume TOPIC --key 'order 1'" in no_id


def test_message_command_shows_the_state_of_a_transaction(run, cluster):
    topic = cluster.topic(queues=1)
    answers = {}

    def check(message):
        return answers.get(message.message_id, TransactionState.UNKNOWN)

    def shown(message_id):
        return run("message", message_id, "-o", "json").json

    instance = cluster.instance()
    with TransactionProducer("committers", instance=instance, check_listener=check) as producer:
        with producer.transaction(Message(topic, b"x")) as begun:
            begun.leave_open()
        expected = {"topic": topic, "producer_group": "committers"}
        state = shown(begun.message_id)["transaction"]
        assert state["state"] == "open, or ended since the last check"
        assert expected.items() <= state.items()
        wait_until("a check", lambda: shown(begun.message_id)["transaction"]["checks"])
        answers[begun.message_id] = TransactionState.ROLLBACK
        wait_until(
            "the end of the transaction",
            lambda: shown(begun.message_id)["transaction"]["state"] == "rolled back",
        )
        with producer.transaction(Message(topic, b"y")) as begun:
            pass
    found = shown(begun.message_id)  # the message that consumers get, not the half message
    assert (found["topic"], found["body"]) == (topic, "y")
    assert "transaction" not in found
