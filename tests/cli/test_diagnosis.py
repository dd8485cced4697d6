"""The diagnosis of a group, from its state and from two surveys."""

import pytest
from support.brokers.broker_kinds import wait_until
from support.clients.conformance_clients import Clients

from rmq_spark.cli.groups.diagnosis import (
    STILL_MS,
    WAIT_MS,
    GroupCondition,
    OffsetWatch,
    current_time_ms,
    diagnose_group,
    examine_group,
    examine_groups,
)
from rmq_spark.client.admin.lag import GroupState, Lag, QueueState
from rmq_spark.client.consumer.dispatch.listeners import ConsumeOrderlyStatus
from rmq_spark.wire.bodies.operators import Connection
from rmq_spark.wire.message_queue import MessageQueue
from rocketpoll import Admin, Message, Producer

NOW = 1_800_000_000_000
MEMBER = Connection(client_id="worker", client_addr="127.0.0.1:1", language="PYTHON", version=1)


def queue_state(queue_id=0, behind=5, waited=0, member="worker", tried=None):
    lag = Lag(MessageQueue("orders", "broker-a", queue_id), 10, 10 - behind, 0)
    tried_ms = None if tried is None else NOW - tried
    return QueueState(lag, lag.consumer_offset, NOW - waited, member, tried_ms)


def group_state(*queues, members=(MEMBER,), retries=0):
    return GroupState("billing", queues, members, {}, retries, 0)


def popping_state(*queues, in_flight=3):
    return GroupState("billing", queues, (MEMBER,), {}, 0, 0, in_flight, is_popping=True)


@pytest.mark.parametrize(
    ("state", "is_moving", "condition", "words"),
    [
        (group_state(queue_state(behind=0)), None, "ok", "A failed message is redelivered"),
        (group_state(queue_state(behind=0), members=()), None, "offline", "No consumer is online"),
        (
            group_state(queue_state(behind=0), members=(), retries=100),
            None,
            "offline",
            "Due for another try: 100 failed messages.",
        ),
        (group_state(queue_state(), members=()), None, "offline", "Start the group's consumers"),
        (group_state(queue_state(member=None)), None, "unassigned", "reports broker-a:0. A member"),
        (group_state(queue_state(waited=WAIT_MS - 1)), False, "behind", "Nearly up to date"),
        (group_state(queue_state(waited=WAIT_MS)), True, "behind", "offset moves"),
        (group_state(queue_state(waited=WAIT_MS)), None, "behind", "Furthest behind: orders"),
        (group_state(queue_state(waited=WAIT_MS)), False, "stuck", "does not move there"),
        (group_state(queue_state(waited=WAIT_MS, tried=1)), None, "behind", "the listener fails"),
        (group_state(queue_state(waited=WAIT_MS, tried=1)), False, "stuck", "the listener fails"),
        (group_state(queue_state(waited=WAIT_MS, tried=60_000)), None, "stuck", "last tried"),
        (
            group_state(queue_state(0, waited=WAIT_MS), queue_state(1, waited=60_000, tried=1)),
            False,
            "stuck",
            "Stuck: orders broker-a:1 Its next message was stored 1 min ago",
        ),
        (popping_state(queue_state(behind=0)), None, "ok", "3 messages are in flight"),
        (popping_state(queue_state(member=None)), None, "behind", "Nearly up to date"),
        (popping_state(queue_state(waited=WAIT_MS, member=None)), None, "behind", "3 messages are"),
        (
            popping_state(queue_state(waited=WAIT_MS, member=None), in_flight=0),
            False,
            "stuck",
            "Members pop nothing there",
        ),
    ],
)  # fmt: skip
def test_diagnosis_names_the_condition_and_explains_it(state, is_moving, condition, words):
    found = diagnose_group(state, NOW, is_moving=is_moving)
    assert found.condition.value == condition
    assert words in f"{found.title} {found.text}"


def test_offset_watch_needs_two_checks_to_say_whether_a_group_moves():
    queue, now = MessageQueue("orders", "broker-a", 0), [NOW]
    watch = OffsetWatch(lambda: now[0])

    def look(offset, later_ms):
        now[0] += later_ms
        watch.observe("billing", [Lag(queue, 10, offset, 0)])
        return watch.is_moving("billing", queue)

    assert watch.is_moving("billing", queue) is None
    assert look(3, 0) is None
    assert look(3, STILL_MS - 1) is None
    assert look(3, 1) is False
    assert look(4, 1) is True
    assert look(4, STILL_MS - 1) is True
    assert look(4, 1) is False
    assert look(10, 1) is None  # no lag, so nothing to diagnose
    assert look(10, STILL_MS) is None


def test_examination_calls_a_group_stuck_only_if_its_offset_stands_still(cluster, monkeypatch):
    clock = [0]
    monkeypatch.setattr(
        "rmq_spark.cli.groups.diagnosis.current_time_ms", lambda: NOW * 2 + clock[0]
    )
    topic, stuck, moving, offline = cluster.topic(queues=1), *(cluster.group() for _ in range(3))

    def fail(_, __):
        return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT

    clients = Clients(cluster)
    clients.push(fail, stuck, topic, orderly=True)
    reader = clients.lite(moving, topic, auto_commit=False)
    wait_until("its queue", lambda: len(reader.assignment()) == 1)
    cluster.send(topic, *"abc", queues=1)
    for group in (stuck, moving, offline):
        cluster.store_offset(group, topic, 0)

    def sleep(seconds):
        clock[0] += int(seconds * 1_000)
        cluster.store_offset(moving, topic, 2)

    groups = (stuck, moving, offline)
    with Admin(cluster.name_server) as admin:
        found = examine_groups(admin, groups, OffsetWatch(), sleep)
    assert [found[group].condition for group in groups] == [
        GroupCondition.STUCK, GroupCondition.BEHIND, GroupCondition.OFFLINE,
    ]  # fmt: skip
    assert found[stuck].queue == cluster.queue(topic)
    assert found[stuck].waiting_since_ms
    assert found[offline].waiting_since_ms == found[stuck].waiting_since_ms


def test_examination_and_diagnosis_name_the_queue_that_has_waited_longest(cluster):
    queues = 5
    topic, group = cluster.topic(queues=queues), cluster.group()
    reader = Clients(cluster).lite(group, topic, auto_commit=False)
    wait_until("its queues", lambda: len(reader.assignment()) == queues)
    with Admin(cluster.name_server) as admin, Producer("P", cluster.name_server) as producer:
        for number in reversed(range(queues)):  # the last queue first, each in its own millisecond
            queue = cluster.queue(topic, number)
            producer.send(Message(topic, b"x"), queue)
            admin.set_offset(group, queue, 0)
            sent_at = current_time_ms()
            wait_until("the next millisecond", lambda: current_time_ms() > sent_at + 1)  # noqa: B023  # needed before the next send
        state = admin.describe_group(group)
        later = current_time_ms() + WAIT_MS
        examined = examine_group(admin, group, OffsetWatch(), later)
    diagnosed = diagnose_group(state, later, is_moving=False)
    assert examined.queue == diagnosed.queue.lag.queue == cluster.queue(topic, queues - 1)
    assert examined.waiting_since_ms == diagnosed.queue.waiting_since_ms
