"""Polling consumers on every kind of broker: each feature, and where consumption resumes.

Tests of the consumer alone are in tests/client/consumer.
"""

import time
from functools import partial

import pytest
from support.brokers.broker_kinds import wait_until
from support.clients.conformance_clients import Listener, bodies_of, messages, numbers, polled

from rmq_spark.client.errors import (
    NotAssigned,
    OffsetOutOfRange,
    RouteNotFound,
    SubscriptionRejected,
)
from rmq_spark.client.message import Message, decode_messages
from rmq_spark.client.results import PullStatus
from rmq_spark.client.subscriptions import by_sql
from rmq_spark.wire.bodies.clients import MessageModel
from rmq_spark.wire.codes import PullSysFlag
from rmq_spark.wire.headers.members import PullMessageRequestHeader


@pytest.fixture
def clients(both_clients):
    return both_clients


@pytest.fixture
def send(clients):
    """Return a function that sends bodies to a topic, in order, to one queue or round-robin."""
    producer = clients.producer()

    def send(topic, *bodies, queue=None, **more):
        return [producer.send(each, queue) for each in messages(topic, bodies, **more)]

    return send


def test_lite_consumer_gets_all_messages_once_in_queue_order(cluster, clients, send):
    topic = cluster.topic()
    results = send(topic, *numbers(200))
    consumer = clients.lite(topic=topic)
    found = polled(consumer, 200)
    assert sorted(found) == numbers(200)
    queue_of = {f"{number:03}": result.queue for number, result in enumerate(results)}
    for queue in set(queue_of.values()):
        assert [body for body in found if queue_of[body] == queue] == [
            body for body in numbers(200) if queue_of[body] == queue
        ]
    assert consumer.assignment() == {cluster.queue(topic, number) for number in range(4)}


def test_waiting_lite_consumer_gets_each_new_message(cluster, clients, send):
    topic = cluster.topic(queues=2)
    consumer = clients.lite(topic=topic)
    wait_until("queues", lambda: len(consumer.assignment()) == 2)
    for body in numbers(5):
        send(topic, body)
        assert polled(consumer, 1) == [body]
    assert consumer.poll(0) == []


@pytest.mark.parametrize("more", [{}, {"extensions": frozenset()}], ids=["extended", "plain"])
def test_held_pull_is_answered_when_a_message_arrives(cluster, send, more):
    topic = cluster.topic(queues=1)
    sys_flag = PullSysFlag.SUBSCRIPTION | PullSysFlag.SUSPEND
    header = PullMessageRequestHeader("G", topic, 0, 0, 32, sys_flag, 0, 20_000, 0, "*", "TAG")
    held = cluster.instance(**more).api.pull_async(cluster.address, header)
    send(topic, "new")
    found = held.result(30)
    assert found.pull_status is PullStatus.FOUND
    assert bodies_of(decode_messages(found.records, cluster.broker_name)) == ["new"]


def test_polled_message_equals_the_sent_one(cluster, clients):
    topic = cluster.topic(queues=1)
    sent = Message(topic, b"x" * 9_000, tags="t", keys=("a", "b"), properties={"p": "é"}, flag=3)
    result = clients.producer().send(sent)
    (found,) = clients.lite(topic=topic).poll(20_000)
    assert (found.topic, found.body, found.flag) == (topic, sent.body, 3)
    assert (found.tags, found.keys, found.properties["p"]) == ("t", ("a", "b"), "é")
    assert (found.message_id, found.queue) == (result.message_id, result.queue)


@pytest.mark.parametrize("assigned", [False, True])
def test_polled_messages_are_selected_by_tag_text(cluster, clients, send, assigned):
    topic = cluster.topic(queues=1)
    for tag in ("red", "BB", "green", "Aa", "blue", None):
        send(topic, tag or "none", tags=tag)
    where = {"queues": [cluster.queue(topic)]} if assigned else {"topic": topic}
    consumer = clients.lite(selector="red || blue||Aa", **where)
    assert polled(consumer, 3) == ["red", "Aa", "blue"]


SQL = {
    "n > 6": "789",
    "n BETWEEN 2 AND 4 OR n = 0": "0234",
    "place IN ('here', 'nowhere')": "02468",
    "place = 'there' AND NOT (n <= 5)": "79",
    "rare IS NOT NULL": "5",
    "TAGS IN ('t1', 't2') AND n > 3": "4589",
}


def test_sql_conditions_select_polled_messages(cluster, clients):
    topic = cluster.topic(queues=1)
    producer = clients.producer()
    for n in range(10):
        properties = {
            "n": str(n),
            "place": "there" if n % 2 else "here",
            **({"rare": "x"} if n == 5 else {}),
        }
        producer.send(Message(topic, b"%d" % n, tags=f"t{n % 4 + 1}", properties=properties))
    for condition, expected in SQL.items():
        consumer = clients.lite(topic=topic, selector=by_sql(condition))
        assert "".join(polled(consumer, len(expected))) == expected
        consumer.shutdown()


def test_invalid_sql_subscription_is_refused_at_start(cluster, clients):
    with pytest.raises(SubscriptionRejected):
        clients.lite(topic=cluster.topic(), selector=by_sql("n >"))


HELD_LONG = {"broker_suspend_max_time_ms": 90_000, "consumer_timeout_ms_when_suspend": 120_000}


def test_new_subscription_applies_while_a_pull_is_held(cluster, clients, send):
    topic = cluster.topic(queues=1)
    consumer = clients.lite(topic=topic, selector="old", **HELD_LONG)
    _follows(consumer, partial(send, topic), lambda: consumer.subscribe(topic, "new"))


def test_missing_topic_subscription_suggests_the_nearest(cluster, clients):
    topic = cluster.topic(queues=1)
    other = cluster.topic(queues=1)
    mistyped = f"{topic}e"
    meant = rf"no route to topic {mistyped}: .* \(did you mean {topic}\?\); create it, or check"
    with pytest.raises(RouteNotFound, match=meant):
        clients.lite(topic=mistyped)
    consumer = clients.lite(topic=other)
    with pytest.raises(RouteNotFound, match=meant):
        consumer.subscribe(mistyped)
    consumer.subscribe(topic)
    wait_until("both", lambda: {each.topic for each in consumer.assignment()} == {topic, other})


def test_new_filter_of_assigned_queues_applies_while_a_pull_is_held(cluster, clients, send):
    topic = cluster.topic(queues=1)
    queue = cluster.queue(topic)
    consumer = clients.lite(queues=[queue], selector="old", **HELD_LONG)
    _follows(consumer, partial(send, topic), lambda: consumer.assign([queue], "new"))


def _follows(consumer, send, choose_new):
    """Check that the consumer immediately gets what the new filter matches."""
    send("first", tags="old")
    assert polled(consumer, 1) == ["first"]
    choose_new()
    send("next", tags="new")
    assert polled(consumer, 1) == ["next"]
    send("no more", tags="old")
    send("last", tags="new")
    assert polled(consumer, 1) == ["last"]


def test_invalid_sql_for_assigned_queues_is_refused_without_change(cluster, clients, send):
    topic = cluster.topic(queues=1)
    queue = cluster.queue(topic)
    with pytest.raises(SubscriptionRejected):
        clients.lite(queues=[queue], selector=by_sql("n >"))
    consumer = clients.lite(queues=[queue])
    for queues in ([queue], []):
        with pytest.raises(SubscriptionRejected):
            consumer.assign([*queues, cluster.queue(cluster.topic())], by_sql("n >"))
    assert consumer.assignment() == {queue}
    send(topic, "still here")
    assert polled(consumer, 1) == ["still here"]


def test_assigned_consumer_reads_exactly_its_queues_until_reassigned(cluster, clients, send):
    topic = cluster.topic(queues=3)
    for number in range(3):
        send(topic, f"of {number}", queue=cluster.queue(topic, number))
    consumer = clients.lite(queues=[cluster.queue(topic, 0), cluster.queue(topic, 2)])
    assert sorted(polled(consumer, 2)) == ["of 0", "of 2"]
    consumer.assign([cluster.queue(topic, 1)])
    assert polled(consumer, 1) == ["of 1"]


def test_lite_consumer_seeks_to_an_offset_both_ends_and_a_time(cluster, clients, send):
    topic = cluster.topic(queues=1)
    queue = cluster.queue(topic)
    send(topic, *numbers(30))
    consumer = clients.lite(topic=topic)
    assert polled(consumer, 30) == numbers(30)
    for offset in (10, 0, 29):
        consumer.seek(queue, offset)
        assert polled(consumer, 30 - offset) == numbers(30)[offset:]
    consumer.seek_to_begin(queue)
    assert polled(consumer, 30) == numbers(30)
    last_ms = clients.read(topic, 30, queues=1)[-1].store_timestamp
    wait_until("another millisecond", lambda: time.time() * 1000 > last_ms + 2)
    send(topic, "new")
    (found,) = consumer.poll(20_000)
    assert found.body == b"new"
    consumer.seek_to_begin(queue)
    consumer.seek_to_end(queue)
    assert consumer.poll(100) == []
    consumer.seek_to_time(queue, found.store_timestamp)
    assert polled(consumer, 1) == ["new"]
    assert consumer.offset_for_timestamp(queue, found.store_timestamp) == 30
    assert consumer.offset_for_timestamp(queue, 1_000) == 0
    with pytest.raises(OffsetOutOfRange):
        consumer.seek(queue, 99)
    with pytest.raises(NotAssigned):
        consumer.seek(cluster.queue(topic, 5), 0)


def test_lite_consumer_gets_nothing_of_a_paused_queue_until_resumed(cluster, clients, send):
    topic = cluster.topic(queues=2)
    paused = [cluster.queue(topic, 0)]
    consumer = clients.lite(topic=topic)
    wait_until("both queues", lambda: len(consumer.assignment()) == 2)
    consumer.pause(paused)
    send(topic, "paused", queue=cluster.queue(topic, 0))
    send(topic, "not paused", queue=cluster.queue(topic, 1))
    assert polled(consumer, 1) == ["not paused"]
    assert consumer.poll(100) == []
    consumer.resume(paused)
    assert polled(consumer, 1) == ["paused"]


def test_next_member_starts_at_the_committed_offset(cluster, clients, send):
    topic, group = cluster.topic(queues=1), cluster.group()
    queue = cluster.queue(topic)
    send(topic, *numbers(30))
    first = clients.lite(group, topic, auto_commit=False)
    assert polled(first, 20) == numbers(20)
    first.commit()
    assert first.committed(queue) == cluster.stored_offset(group, topic) == 20
    assert polled(first, 10) == numbers(30)[20:]
    first.shutdown()
    assert cluster.stored_offset(group, topic) == 20
    second = clients.lite(group, topic, auto_commit=False)
    assert second.committed(queue) == 20
    assert polled(second, 10) == numbers(30)[20:]
    second.commit({queue: 7})
    assert cluster.stored_offset(group, topic) == 7
    assert polled(clients.lite(topic=topic), 30) == numbers(30)


def test_auto_commit_is_done_at_shutdown(cluster, clients, send):
    topic, group = cluster.topic(queues=1), cluster.group()
    send(topic, *numbers(10))
    first = clients.lite(group, topic)
    polled(first, 10)
    assert first.poll(0) == []  # a poll confirms the messages of the previous one
    first.shutdown()
    send(topic, "new")
    assert polled(clients.lite(group, topic), 1) == ["new"]


def test_broadcasting_members_each_get_all_and_resume(cluster, clients, send, tmp_path):
    topic, group = cluster.topic(queues=2), cluster.group()
    send(topic, *numbers(20))

    def started(name):
        return clients.lite(
            group,
            topic,
            instance={"client_id": f"10.0.0.1@{name}"},
            message_model=MessageModel.BROADCASTING,
            local_offset_directory=tmp_path,
        )

    for name in ("one", "two"):
        consumer = started(name)
        assert sorted(polled(consumer, 20)) == numbers(20)
        assert consumer.poll(0) == []
        consumer.shutdown()
    send(topic, "new")
    assert polled(started("one"), 1) == ["new"]
    assert polled(started("two"), 1) == ["new"]
    assert topic not in cluster.api.admin.groups_of_topic(cluster.address, topic)


def test_rebalance_shares_queues_of_two_lite_members_and_takes_over(cluster, clients, send):
    topic, group = cluster.topic(queues=4), cluster.group()
    first, second = clients.lite(group, topic), clients.lite(group, topic)
    wait_until(
        "two queues each", lambda: [len(each.assignment()) for each in (first, second)] == [2, 2]
    )
    assert first.assignment().isdisjoint(second.assignment())
    send(topic, *numbers(40))
    halves = [polled(each, 20) for each in (first, second)]
    assert sorted(halves[0] + halves[1]) == numbers(40)
    for each in (first, second):
        assert each.poll(0) == []
    second.shutdown()
    wait_until("all queues", lambda: len(first.assignment()) == 4)
    send(topic, *numbers(8, start=40))
    assert sorted(polled(first, 8)) == numbers(8, start=40)


@pytest.mark.parametrize("pull_batch_size", [32, 1_000])
def test_lite_consumer_reads_a_queue_in_order_across_many_pulls(cluster, clients, pull_batch_size):
    topic = cluster.topic(queues=1)
    producer = clients.producer()
    for start in range(0, 1_000, 250):
        producer.send_batch(messages(topic, numbers(250, start=start)))
    consumer = clients.lite(topic=topic, pull_batch_size=pull_batch_size)
    assert polled(consumer, 1_000) == numbers(1_000)
    assert bodies_of(clients.read(topic, 1_000, queues=1)) == numbers(1_000)


@pytest.mark.parametrize("pull_batch_size", [32, 1_000])
def test_filtered_messages_do_not_depend_on_the_pull_batch_size(cluster, clients, pull_batch_size):
    topic = cluster.topic(queues=1)
    producer = clients.producer()
    for start in range(0, 400, 2):
        producer.send_batch(messages(topic, numbers(1, start=start), tags="Aa"))
        producer.send_batch(
            messages(topic, numbers(1, start=start + 1), tags="BB")
        )  # a tag with the same hash
    listener = Listener()
    clients.push(listener, topic=topic, selector="Aa", pull_batch_size=pull_batch_size)
    consumer = clients.lite(topic=topic, selector="Aa", pull_batch_size=pull_batch_size)
    assert polled(consumer, 200) == numbers(400)[::2]
    listener.wait_for(numbers(400)[::2])
    producer.send(messages(topic, ["late"], tags="Aa")[0])
    assert polled(consumer, 1) == ["late"]
    listener.wait_for(["late"])
    assert len(listener.bodies) == 201
