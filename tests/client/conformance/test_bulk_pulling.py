"""Bulk pulls return every record of a range once and in order, whatever the size of a response."""

import itertools

import pytest
from support.clients.conformance_clients import messages, numbers

from rmq_spark.client.errors import BrokerRefused, OffsetMoved
from rmq_spark.client.message import Message, decode_messages
from rmq_spark.client.reading.bulk_pull import BulkPull, PullRules
from rmq_spark.client.subscriptions import by_sql

COUNT = 1_000


@pytest.fixture
def topic(cluster, clients):
    """Create a topic with one queue of a thousand messages."""
    topic = cluster.topic(queues=1)
    producer = clients.producer()
    for start in range(0, COUNT, 250):
        producer.send_batch(
            Message(topic, b"%03d" % n, tags=f"t{n % 10}", properties={"n": str(n)})
            for n in range(start, start + 250)
        )
    clients.read(topic, COUNT, queues=1)
    return topic


@pytest.fixture(params=["all extensions", "none", "who waits reads"])
def api(request, cluster):
    """Return an API with our extensions, and one without, as for RocketMQ."""
    more = {"none": {"extensions": frozenset()}, "who waits reads": {"reads_itself": True}}
    return cluster.instance(**more.get(request.param, {})).api


def found(cluster, chunks):
    return [m for chunk in chunks for m in decode_messages(chunk.records, cluster.broker_name)]


@pytest.mark.parametrize(("start", "end"), [(0, COUNT), (17, 18), (100, 733), (5, 5)])
def test_bulk_pull_returns_each_offset_once_in_order(cluster, api, topic, start, end):
    pull = BulkPull(api, cluster.address, "G", cluster.queue(topic), start, end)
    chunks = list(pull)
    came = found(cluster, chunks)
    assert [each.queue_offset for each in came] == list(range(start, end))
    assert [each.body for each in came] == [b"%03d" % n for n in range(start, end)]
    assert all(
        after.next_offset > before.next_offset for before, after in itertools.pairwise(chunks)
    )
    assert not chunks or chunks[-1].next_offset == end
    for chunk in chunks:
        assert chunk.sizes is None or sum(chunk.sizes) == len(chunk.records)


def test_bulk_pull_by_tags_filters_at_the_broker_and_ends_at_its_bound(cluster, api, topic):
    rules = PullRules(subscription="t3 || t7")
    pull = BulkPull(api, cluster.address, "G", cluster.queue(topic), 5, 505, rules)
    assert [each.queue_offset for each in found(cluster, pull)] == [
        n for n in range(5, 505) if n % 10 in (3, 7)
    ]


def test_bulk_pull_by_sql_filters_at_the_broker(cluster, api, topic):
    condition = by_sql("n > 996 OR n = 3")
    rules = PullRules(subscription=condition.expression, expression_type=condition.expression_type)
    pull = BulkPull(api, cluster.address, "G", cluster.queue(topic), 0, COUNT, rules)
    assert [each.queue_offset for each in found(cluster, pull)] == [3, 997, 998, 999]


def test_bulk_pull_waits_for_arriving_messages_and_times_out(cluster, clients, api, topic):
    producer, queue = clients.producer(), cluster.queue(topic)
    pull = iter(
        BulkPull(api, cluster.address, "G", queue, COUNT - 1, COUNT + 5, PullRules(wait_ms=20_000))
    )
    came = found(cluster, [next(pull)])
    for each in messages(topic, numbers(5)):
        producer.send(each)
    came += found(cluster, pull)
    assert [each.queue_offset for each in came] == list(range(COUNT - 1, COUNT + 5))
    with pytest.raises(OffsetMoved) as moved:
        list(BulkPull(api, cluster.address, "G", queue, COUNT, COUNT + 50, PullRules(wait_ms=50)))
    assert str(COUNT + 5) in str(moved.value)
    with pytest.raises(OffsetMoved):
        list(
            BulkPull(api, cluster.address, "G", queue, 2 * COUNT, 3 * COUNT, PullRules(wait_ms=50))
        )


def test_bulk_pull_of_a_missing_queue_is_refused(cluster, api, topic):
    with pytest.raises(BrokerRefused):
        list(BulkPull(api, cluster.address, "G", cluster.queue("Nowhere"), 0, 1))
