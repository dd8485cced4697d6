"""What an operator walks through with the command line alone, as its page tells it."""

from __future__ import annotations

import json
import time

import pytest
from broker_kinds import wait_until
from conforming_clients import Clients, Listener

from rmq_spark.client.consumer.listeners import ConsumeOrderlyStatus
from rocketpoll import EmbeddedBroker


def test_a_consumer_is_stuck_and_one_message_is_skipped(run, cluster, kind):
    topic, group = cluster.topic(queues=1), cluster.group()
    if kind == "4.9.7":
        pytest.skip("it can tell members only of times: its consumers have to be stopped first")
    run("produce", topic, stdin=b"good\npoison\nbehind\n")

    def listen(messages, _):
        stuck = any(message.body == b"poison" for message in messages)
        return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT if stuck else None

    taken = Listener()
    Clients(cluster).push(
        lambda messages, context: listen(messages, context) or taken(messages, context),
        group,
        topic,
        orderly=True,
        consume_message_batch_max_size=1,
        persist_consumer_offset_interval_ms=200,
    )
    taken.wait_for(["good"])
    wait_until("its offset", lambda: cluster.stored_offset(group, topic) == 1)

    found = run("group", "describe", group, "-o", "json").json
    [queue] = found["queues"]
    assert (queue["committed"], queue["behind"], found["members"]) == (1, 2, 1)
    assert queue["member"] == found["online"][0]["client"]
    at = run("consume", topic, "--queue", 0, "--offset", queue["committed"], "-n", 1, "-o", "json")
    assert json.loads(at.out)["body"] == "poison"

    seek = ("group", "seek", group, "--topic", topic, "--queue", 0, "--to", "+1")
    [dry] = run(*seek, "--dry-run", "-o", "json").json
    assert (dry["committed"], dry["to"], dry["behind"]) == (1, 2, 1)
    assert run(*seek).code == 0
    assert taken.wait_for(["behind"]) == ["good", "behind"]


def test_a_group_is_rewound_to_a_time(run, cluster):
    topic, group = cluster.topic(queues=1), cluster.group()
    run("produce", topic, stdin=b"early\n")
    wait_until("another millisecond", lambda: stored_ms(run, topic) < time.time() * 1_000 - 1)
    nine_ms = int(time.time() * 1_000)
    run("produce", topic, stdin=b"late 1\nlate 2\n")
    cluster.store_offset(group, topic, 3)
    [moved] = run("group", "seek", group, "--to", f"@{nine_ms}", "-o", "json").json
    assert (moved["committed"], moved["to"], moved["behind"]) == (3, 1, 2)
    assert cluster.stored_offset(group, topic) == 1


def stored_ms(run, topic):
    return int(run("consume", topic, "-n", 1, "-f", "%T").out)


def test_a_broker_was_killed_and_nothing_is_lost(run, tmp_path):
    with EmbeddedBroker(tmp_path / "store", own_process=True) as broker:
        at = ("--namesrv", broker.address)
        run("topic", "create", "orders", "--queues", 2, *at)
        run("produce", "orders", "--batch", 50, *at, stdin=b"x\n" * 500)
        broker.kill()
        down = run("cluster", "health", *at, "-o", "json")
        assert down.code == 10
        assert "Connection refused" in down.json[0]["found"]
        broker.restart()
        assert run("cluster", "health", "--exit-when-healthy", *at).code == 0
        assert run("topic", "describe", "orders", *at, "-o", "json").json["messages"] == 500
    assert run("store", "verify", tmp_path / "store").out == "all is well\n"
