"""The command line on a cluster of two brokers, with a topic, a group and its members on both.

Each number is a sum over the brokers, or listed by broker; a member counts once, however many
brokers it is connected to.
"""

import json
import re

import pytest
from support.brokers.broker_kinds import wait_until
from support.programs.web_console import served
from support.servers.joining_name_server import JoiningNameServer

from rmq_spark.client.admin.admin import Admin
from rmq_spark.wire.message_queue import MessageQueue
from rocketpoll import EmbeddedBroker, LitePullConsumer, Message

GROUP, TOPIC = "billing", "orders"
A, B = "broker-a", "broker-b"
READ = {(A, 0): 2, (A, 1): 1, (B, 0): 3, (B, 1): 1}
UNREAD = {(A, 0): 1, (A, 1): 2, (B, 0): 4, (B, 1): 0}
ENDS = {queue: READ[queue] + UNREAD[queue] for queue in READ}
TOTAL, LEFT = sum(READ.values()) + sum(UNREAD.values()), sum(UNREAD.values())


def send(brokers, counts):
    for (name, queue_id), count in counts.items():
        with brokers[name].producer() as producer:
            for _ in range(count):
                producer.send(Message(TOPIC, b"x"), MessageQueue(TOPIC, name, queue_id))


@pytest.fixture(scope="module")
def two():
    """Return the name server of two brokers, and a group member that has consumed some messages."""
    with (
        EmbeddedBroker(brokerName=A) as a,
        EmbeddedBroker(brokerName=B) as b,
        JoiningNameServer(a, b) as names,
    ):
        brokers = {A: a, B: b}
        with Admin(names.address) as admin:
            admin.create_topic(TOPIC, 2)
        send(brokers, READ)
        with LitePullConsumer(GROUP, names.address) as consumer:
            consumer.subscribe(TOPIC)
            seen = []
            wait_until(
                "all",
                lambda: seen.extend(consumer.poll(50)) or len(seen) == sum(READ.values()),
            )
            consumer.commit()
            send(brokers, UNREAD)
            yield names.address


def shown(run, address, *arguments):
    ran = run(*arguments, "--namesrv", address)
    assert ran.code == 0, ran.err
    return json.loads(ran.out)


def test_top_adds_up_topics_and_groups_of_all_brokers_and_counts_a_member_once(run, two):
    tables = shown(run, two, "top", "-n", 1, "--interval", 0.1, "-o", "json")
    assert sorted(row["broker"] for row in tables["brokers"]) == [A, B]
    [topic] = [row for row in tables["topics"] if row["topic"] == TOPIC]
    assert topic["messages"] == TOTAL
    [group] = [row for row in tables["groups"] if row["group"] == GROUP]
    assert (group["members"], group["behind"]) == (1, LEFT)


def test_groups_are_listed_once_with_the_lag_of_all_brokers(run, two):
    [listed] = shown(run, two, "group", "list", "-o", "json")
    assert (listed["group"], listed["members"], listed["behind"]) == (GROUP, 1, LEFT)
    found = shown(run, two, "group", "describe", GROUP, "-o", "json")
    assert (found["members"], found["behind"]) == (1, LEFT)
    assert {(each["broker"], each["queue"]): each["committed"] for each in found["queues"]} == READ
    assert {(each["broker"], each["queue"]): each["behind"] for each in found["queues"]} == UNREAD
    assert [each["queues"] for each in found["online"]] == [len(READ)]


def test_topics_are_listed_once_with_the_messages_of_all_brokers(run, two):
    [listed] = shown(run, two, "topic", "list", "-o", "json")
    assert (listed["topic"], listed["brokers"], listed["queues"]) == (TOPIC, [A, B], len(READ))
    found = shown(run, two, "topic", "describe", TOPIC, "-o", "json")
    assert found["messages"] == TOTAL
    assert {(each["broker"], each["queue"]): each["end"] for each in found["queues"]} == ENDS
    [group] = found["groups"]
    assert (group["group"], group["behind"], group["members"]) == (GROUP, LEFT, 1)


def test_pages_of_the_console_have_each_queue_of_both_brokers_and_sums_of_all(two):
    with served(two) as console:
        groups, group, topics, topic, overview = (
            console.read(path).text
            for path in ("/groups", f"/groups/{GROUP}", "/topics", f"/topics/{TOPIC}", "/")
        )
    assert f"{GROUP} online 1 {LEFT} " in groups
    assert f"Behind {LEFT} In flight 0 Members 1 " in group
    for (name, queue_id), read in READ.items():
        left = UNREAD[name, queue_id]
        assert f"{TOPIC} {name}:{queue_id} {read} {read + left} {left} " in group
    assert f"{TOPIC} {len(READ)} {TOTAL} " in topics
    assert f"Messages {TOTAL} Queues {len(READ)} " in topic
    assert "Brokers 2 of 2 Topics 1 " in overview
    assert re.search(rf"{GROUP} .*{LEFT} ", overview)
