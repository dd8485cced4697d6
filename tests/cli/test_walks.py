"""Walkthroughs of an operator who uses the command line alone, with the commands of its page."""

import json
import re
import shlex
import time
from functools import partial

import pytest
from support.brokers.broker_kinds import (
    START_SECONDS_MAX,
    RocketMQBroker,
    RocketPollBroker,
    wait_until,
)
from support.clients.conformance_clients import Clients, Listener
from support.programs.keystroke_model import Walk, check_told, commands

from rmq_spark.client.consumer.dispatch.listeners import ConsumeOrderlyStatus
from rocketpoll import Admin
from rocketpoll.broker.store.config import FlushDiskType

PAGE = "command-line.md"
STUCK = "A consumer is stuck: find out why and skip one message"
REWIND = "Rewind billing to 09:00"
FILLS = "Which topic fills the disk"
KILLED = "A broker was killed: is anything lost"


@pytest.fixture
def walk(run):
    """Run the commands of a section of the page; yield the output of each, in order. Names such as
    a directory are replaced."""

    def walked(title, words=()):
        steps = Walk()
        for line in commands(PAGE, title):
            steps.type(line)
            steps.read()
            yield run(*shlex.split(put_right(line, words))[1:])
        check_told(steps, PAGE, title)

    return walked


def put_right(line, words):
    for of_page, here in words:
        line = line.replace(of_page, str(here))
    return line


def test_stuck_consumer_is_diagnosed_and_one_message_skipped_by_commands(run, cluster, kind, walk):
    cluster.topic(queues=1, name="orders")
    run("produce", "orders", stdin=b"good\nfine\npoison\nbehind\n")
    taken = Listener()

    def listen(messages, context):
        if any(message.body == b"poison" for message in messages):
            return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
        return taken(messages, context)

    def start():
        return Clients(cluster).push(
            listen,
            "billing",
            "orders",
            orderly=True,
            consume_message_batch_max_size=1,
            persist_consumer_offset_interval_ms=200,
            broker_suspend_max_time_ms=1_000,
        )

    member = start()
    taken.wait_for(["good", "fine"])
    wait_until("its offset", lambda: cluster.stored_offset("billing", "orders") == 2)

    steps = walk(STUCK)
    [row] = [line for line in next(steps).lines if line.startswith("billing ")]
    state, members, behind, *_, topics = row.split()[1:]
    assert (members, behind, topics) == ("1", "2", "orders")
    assert state in {"behind", "stuck"}
    described = next(steps)
    assert described.lines[0].startswith("billing: 1 member online, 2 behind,")
    found = next(steps)
    assert json.loads(found.out)["body"] == "poison"
    if kind == "4.9.7":  # it can reset online members by time only, so the page stops them first
        member.shutdown()
        wait_until("nobody", lambda: not cluster.members("billing"))
    dry = next(steps)
    assert dry.err == "dry run: nothing was changed\n"
    assert cluster.stored_offset("billing", "orders") == 2
    moved = next(steps)
    assert (moved.code, moved.err) == (0, "moved\n")
    assert next(steps, None) is None
    if kind == "4.9.7":
        start()
    assert taken.wait_for(["behind"]) == ["good", "fine", "behind"]


def test_group_is_rewound_to_a_time_by_commands(run, cluster, walk):
    topic, group = cluster.topic(queues=1), cluster.group()
    run("produce", topic, stdin=b"early\n")
    wait_until("another millisecond", lambda: stored_ms(run, topic) < time.time() * 1_000 - 1)
    nine_ms = int(time.time() * 1_000)
    run("produce", topic, stdin=b"late 1\nlate 2\n")
    cluster.store_offset(group, topic, 3)
    here = (("09:00", f"@{nine_ms}"), ("billing-test", f"{group}-test"), ("billing", group))
    steps = walk(REWIND, words=here)
    dry = next(steps)
    assert (dry.code, dry.err) == (0, "dry run: nothing was changed\n")
    assert cluster.stored_offset(group, topic) == 3
    moved = next(steps)
    assert (moved.code, moved.err) == (0, "moved\n")
    assert cluster.stored_offset(group, topic) == 1
    assert next(steps).code == 0
    assert next(steps, None) is None
    assert cluster.stored_offset(f"{group}-test", topic) == 1


def stored_ms(run, topic):
    return int(run("consume", topic, "-n", 1, "-f", "%T").out)


def test_operator_walk_finds_the_topic_that_fills_the_disk(run, cluster, walk, broker_directory):
    small, great = cluster.topic(queues=1), cluster.topic(queues=1)
    run("produce", small, stdin=b"x\n" * 3)
    run("produce", great, "--batch", 10, stdin=b"y" * 5_000 + b"\n" + b"z\n" * 9)
    run("produce", great, "--batch", 10, stdin=(b"y" * 5_000 + b"\n") * 20)
    # RocketMQ has no statistics in its first second.
    wait_until("figures", lambda: "in use" in run("cluster", "health").out)
    steps = walk(FILLS, words=(("~/store", broker_directory / "store"),))
    listed = next(steps)
    assert listed.lines[1].startswith(f"{great} ")
    healthy = next(steps)
    assert healthy.code == 0
    assert "in use" in healthy.out
    counted = next(steps)
    assert counted.code == 0
    [first] = [line for line in counted.lines if line.startswith((great, small))][:1]
    assert first.startswith(great)
    assert next(steps, None) is None


@pytest.fixture
def broker(kind, tmp_path):
    """Run a broker that acknowledges after the flush."""
    if kind == "rocketpoll":
        made = RocketPollBroker("", tmp_path, FlushDiskType.SYNC_FLUSH)
    else:
        made = RocketMQBroker(kind, tmp_path, FlushDiskType.SYNC_FLUSH)
    yield made
    made.close()


def test_operator_walk_verifies_the_store_after_a_killed_broker(run, broker, walk, monkeypatch):
    monkeypatch.setenv("NAMESRV_ADDR", broker.name_server)
    for what, command in (
        ("a broker that is ready", ("topic", "create", "orders", "--queues", 2)),
        ("a group", ("produce", "orders", "--batch", 50)),
    ):
        asked = partial(run, *command, stdin=b"x\n" * 500)
        wait_until(what, lambda ask=asked: ask().code == 0, START_SECONDS_MAX)
    with Admin(broker.name_server) as admin:
        admin.create_group("billing")
        for queue, held in admin.topic_offsets("orders").items():
            admin.set_offset("billing", queue, held.max_offset - 1)
        wait_until("its offsets on the disk", lambda: are_stored(broker.root))
    broker.kill()
    down = run("cluster", "health", "-o", "json")
    assert down.code == 10
    found = " ".join(row["found"] for row in down.json)
    # the message of a 4.9 name server
    assert "Connection refused" in found or "none is known" in found
    broker.start()
    steps = walk(KILLED, words=(("~/store", broker.root),))
    well = next(steps)
    assert well.code == 0
    topic = next(steps)
    assert re.search("^messages +500$", topic.out, re.MULTILINE)
    group = next(steps)
    assert group.lines[0].startswith("billing: 0 members online, 2 behind,")
    verified = next(steps)
    assert (verified.code, verified.out) == (0, "no faults found\n")
    assert next(steps, None) is None


def are_stored(root):
    file = root / "config" / "consumerOffset.json"
    return file.exists() and "billing" in file.read_text(encoding="utf-8")
