"""Lag of queries, from their progress and from the brokers."""

import json
import urllib.request
from types import SimpleNamespace

import pytest
from support.spark.source_queries import query, queue_of, send

from rmq_spark.client.errors import MessageRejected
from rmq_spark.spark.errors import SetUpError
from rmq_spark.spark.monitoring.lag import (
    LagListener,
    QueryLag,
    QueueLag,
    lag_between,
    lag_now,
    lag_of,
)
from rmq_spark.spark.options.options import BatchLimits
from rmq_spark.spark.plan.micro_batch_planner import NO_LIMITS
from rmq_spark.spark.plan.source_offset import QueuePosition, SourceOffset, with_sizes
from rmq_spark.wire.message_queue import MessageQueue


@pytest.fixture
def half_read(rocketpoll_broker, rocketpoll_topic):
    """Return Spark's report of a batch of two out of five messages, and the store times."""
    send(rocketpoll_broker, rocketpoll_topic, 0, *"abcd")
    send(rocketpoll_broker, rocketpoll_topic, 1, "e")
    with query(rocketpoll_broker, rocketpoll_topic, startingOffsets="earliest") as batches:
        start = batches.initial_offset()
        end = batches.latest_offset(start, BatchLimits(rows_max=2))
        latest = with_sizes(batches.newest.to_json(), batches.sizes)
    stored = {
        (m.queue.queue_id, m.queue_offset): m.store_timestamp
        for m in rocketpoll_broker.messages(rocketpoll_topic)
    }
    progress = SimpleNamespace(
        id="0-1-2",
        name="q",
        sources=[
            SimpleNamespace(endOffset='{"rate": 5}', latestOffset="7"),
            SimpleNamespace(endOffset=json.dumps(end.to_json()), latestOffset=json.dumps(latest)),
        ],
    )
    return progress, end, stored


def test_batch_progress_contains_the_lag_per_queue(rocketpoll_topic, half_read):
    progress, _, stored = half_read
    lag = lag_of(progress)
    first = lag.queues[0]
    assert (first.queue, first.messages) == (queue_of(rocketpoll_topic), 3)
    assert first.ms == stored[0, 3] - stored[0, 0]
    assert 3 * 100 < first.bytes < 3 * 500
    assert lag.queues[1] == QueueLag(queue_of(rocketpoll_topic, 1), 0, 0, 0)
    assert (lag.messages, lag.ms) == (3, first.ms)
    assert lag.bytes == first.bytes


def test_lag_accepts_the_progress_as_parsed_json(half_read):
    progress, _, _ = half_read
    as_json = {"sources": [vars(source) for source in progress.sources]}
    assert lag_of(as_json) == lag_of(progress)


@pytest.mark.parametrize(
    "sources",
    [
        [],
        None,
        [{"endOffset": None, "latestOffset": None}],
        [{"endOffset": "{", "latestOffset": "{}"}],
    ],
)
def test_lag_without_source_progress_is_none(sources):
    assert lag_of({"sources": sources}) is None


def test_lag_can_be_queried_from_brokers_at_any_time(
    rocketpoll_broker, rocketpoll_topic, half_read
):
    _, end, _ = half_read
    send(rocketpoll_broker, rocketpoll_topic, 1, "f", "g")
    lag = lag_now(end.to_json(), rocketpoll_broker.address)
    assert [each.messages for each in lag.queues] == [3, 2, 0, 0]
    assert lag_now(end, rocketpoll_broker.address) == lag
    with query(rocketpoll_broker, rocketpoll_topic) as batches:
        assert (
            lag_now(batches.latest_offset(end, NO_LIMITS), rocketpoll_broker.address).messages == 0
        )
    assert lag_now({"v": 1, "offsets": {}}, rocketpoll_broker.address) == QueryLag(())


def positions(broker="a", **next_offsets):
    """Return an offset of topic T: the number of messages read of q0, q1 and so on."""
    return SourceOffset(
        {
            MessageQueue("T", broker, int(name[1:])): QueuePosition(number)
            for name, number in next_offsets.items()
        }
    )


def test_lag_of_a_new_queue_counts_all_messages():
    found = lag_between(positions(q0=3), positions(q0=5, q1=4), {MessageQueue("T", "a", 1): 10.0})
    assert [(each.messages, each.bytes, each.ms) for each in found] == [
        (2, None, None),
        (4, 40, None),
    ]


def test_lag_of_a_renamed_broker_continues_the_old_offsets(rocketpoll_broker, rocketpoll_topic):
    send(rocketpoll_broker, rocketpoll_topic, 0, *"abc")
    (name,) = {queue.broker_name for queue in [queue_of(rocketpoll_topic)]}
    before = SourceOffset({MessageQueue(rocketpoll_topic, "old", 0): QueuePosition(2)})
    names = json.dumps({"old": name})
    lag = lag_now(before, rocketpoll_broker.address, brokerNames=names)
    assert [each.messages for each in lag.queues if each.queue == queue_of(rocketpoll_topic)] == [1]


def test_lag_listener_reports_the_lag_of_each_query(half_read):
    progress, _, _ = half_read
    heard = []
    listener = LagListener(lambda name, lag: heard.append((name, lag.messages)))
    assert listener.lag("q") is None
    listener.onQueryProgress(SimpleNamespace(progress=progress))
    listener.onQueryProgress(
        SimpleNamespace(progress=SimpleNamespace(id="x", name=None, sources=[]))
    )
    assert listener.lag("q") == listener.lag("0-1-2") == lag_of(progress)
    assert heard == [("q", 3)]


def scraped(listener):
    with urllib.request.urlopen(listener.url, timeout=20) as answer:  # noqa: S310  # the listener's own address
        return [line for line in answer.read().decode().splitlines() if line[0] != "#"]


def test_lag_listener_with_a_port_shows_prometheus_the_running_queries(rocketpoll_topic, half_read):
    progress, _, _ = half_read
    lag = lag_of(progress)
    listener = LagListener(port=0)
    try:
        assert listener.url.startswith("http://127.0.0.1:")
        assert scraped(listener) == []
        listener.onQueryProgress(SimpleNamespace(progress=progress))
        of = f'{{query="q",topic="{rocketpoll_topic}"}}'
        assert scraped(listener) == [
            f"rocketpoll_query_lag_messages{of} 3.0",
            f"rocketpoll_query_lag_bytes{of} {float(lag.bytes)}",
            f"rocketpoll_query_lag_seconds{of} {lag.ms / 1000}",
        ]
        listener.onQueryTerminated(SimpleNamespace(id="0-1-2"))
        assert scraped(listener) == []
        taken = int(listener.url.rpartition(":")[2].partition("/")[0])
        with pytest.raises(SetUpError, match=f"cannot listen on 127.0.0.1:{taken}: .*Choose an"):
            LagListener(port=taken)
    finally:
        listener.close()
    assert listener.url is None
    assert listener.lag("q") == lag


@pytest.mark.parametrize("port", [-1, 65_536, "5557", True])
def test_lag_listener_refuses_a_wrong_port(port):
    with pytest.raises((MessageRejected, TypeError), match="port: needed"):
        LagListener(port=port)


def test_lag_listener_refuses_a_host_without_a_port():
    with pytest.raises(MessageRejected, match="port: needed a port to listen on together with ho"):
        LagListener(host="0.0.0.0")  # noqa: S104  # the port is not opened
