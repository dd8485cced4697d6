"""Topics read as tables on every kind of broker, with and without extensions, match a consumer's
messages."""

import time

import pytest

from rmq_spark.client.errors import RouteNotFound
from rmq_spark.client.message import Message

COUNT = 200
QUEUES = 2
SAME_HASH = ("AaAa", "BBBB")


@pytest.fixture
def clients(both_clients):
    return both_clients


@pytest.fixture
def topic(cluster, clients):
    """Create a topic with messages of every kind in two queues."""
    topic = cluster.topic(QUEUES)
    producer = clients.producer()
    for number in range(COUNT // 2):
        message = Message(
            topic, b"%d" % number, tags=SAME_HASH[number % 2], properties={"n": str(number)}
        )
        producer.send(message, cluster.queue(topic, number % QUEUES))
    producer.send_batch(
        Message(topic, b"b%d" % number, tags="batch") for number in range(COUNT // 2 - 1)
    )
    producer.send(Message(topic, b"compressed" * 1_000, keys="k"))
    clients.read(topic, COUNT, QUEUES)
    return topic


@pytest.fixture(params=["all extensions", "none"])
def admin(request, clients):
    more = {"none": {"extensions": frozenset()}}
    return clients.admin(**more.get(request.param, {}))


def places(table):
    return list(zip(table["queueId"].to_pylist(), table["queueOffset"].to_pylist(), strict=True))


def test_read_table_returns_all_messages_in_queue_order(cluster, clients, admin, topic):
    expected = sorted(
        (
            each.queue.queue_id,
            each.queue_offset,
            each.body,
            each.tags,
            dict(each.properties),
            each.message_id,
        )
        for each in clients.read(topic, COUNT, QUEUES)
    )
    names = ["queueId", "queueOffset", "body", "tags", "properties", "msgId"]
    rows = admin.read_table(topic, columns=names).to_pylist()
    found = [
        tuple(dict(row[name]) if name == "properties" else row[name] for name in names)
        for row in rows
    ]
    assert [row[:3] for row in found] == [row[:3] for row in expected]
    assert found == expected
    assert set(admin.read_table(topic, columns=["brokerName"])["brokerName"].to_pylist()) == {
        cluster.broker_name
    }


def test_read_table_distinguishes_tags_of_equal_hash(admin, topic):
    for tags, count in (
        ("AaAa", COUNT // 4),
        ("BBBB || batch", COUNT // 4 + COUNT // 2 - 1),
        ("none", 0),
    ):
        table = admin.read_table(topic, tags=tags, columns=["tags"])
        assert table.num_rows == count
        assert set(table["tags"].to_pylist()) <= set(tags.split(" || "))


def test_read_table_start_and_end_by_time_or_offset(cluster, clients, admin, topic):
    table = admin.read_table(topic)
    stored = [round(each.timestamp() * 1000) for each in table["storeTimestamp"].to_pylist()]
    middle = sorted(stored)[COUNT // 2]
    before, after = admin.read_table(topic, end=middle), admin.read_table(topic, start=middle)
    assert before.num_rows == sum(each < middle for each in stored)
    assert sorted(places(before) + places(after)) == places(table)
    assert admin.read_table(topic, start=time.time_ns() // 1_000_000 + 60_000).num_rows == 0
    queue = cluster.queue(topic, 1)
    assert places(admin.read_table(topic, start={queue: 3}, end={queue: 40})) == [
        (1, n) for n in range(3, 40)
    ]


def test_read_table_of_an_empty_and_of_a_missing_topic(cluster, admin):
    assert admin.read_table(cluster.topic(QUEUES)).num_rows == 0
    with pytest.raises(RouteNotFound, match="nowhere"):
        admin.read_table("nowhere")
