import json
from types import SimpleNamespace

import pytest
from source_parts import query, queue_of, send

from rmq_spark.spark.lag import Lag, LagListener, QueueLag, lag_now, lag_of
from rmq_spark.spark.micro_batches import NO_LIMITS
from rmq_spark.spark.options import Limits
from rmq_spark.spark.source_offset import with_sizes


@pytest.fixture
def half_read(rocketpoll_broker, rocketpoll_topic):
    """A batch of two of five messages, as Spark reports it, and the times of storing."""
    send(rocketpoll_broker, rocketpoll_topic, 0, *"abcd")
    send(rocketpoll_broker, rocketpoll_topic, 1, "e")
    with query(rocketpoll_broker, rocketpoll_topic, startingOffsets="earliest") as batches:
        start = batches.initial()
        end = batches.latest(start, Limits(rows=2))
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


def test_the_lag_of_a_batch_is_in_its_progress(rocketpoll_topic, half_read):
    progress, _, stored = half_read
    lag = lag_of(progress)
    first = lag.queues[0]
    assert (first.queue, first.messages) == (queue_of(rocketpoll_topic), 3)
    assert first.ms == stored[0, 3] - stored[0, 0]
    assert 3 * 100 < first.bytes < 3 * 500
    assert lag.queues[1] == QueueLag(queue_of(rocketpoll_topic, 1), 0, 0, 0)
    assert (lag.messages, lag.ms) == (3, first.ms)
    assert lag.bytes == first.bytes


def test_progress_may_be_what_its_json_holds(half_read):
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
def test_where_nothing_is_said_nothing_is_known(sources):
    assert lag_of({"sources": sources}) is None


def test_brokers_can_be_asked_at_any_time(rocketpoll_broker, rocketpoll_topic, half_read):
    _, end, _ = half_read
    send(rocketpoll_broker, rocketpoll_topic, 1, "f", "g")
    lag = lag_now(end.to_json(), rocketpoll_broker.address)
    assert [each.messages for each in lag.queues] == [3, 2, 0, 0]
    assert lag_now(end, rocketpoll_broker.address) == lag
    with query(rocketpoll_broker, rocketpoll_topic) as batches:
        assert lag_now(batches.latest(end, NO_LIMITS), rocketpoll_broker.address).messages == 0
    assert lag_now({"v": 1, "offsets": {}}, rocketpoll_broker.address) == Lag(())


def test_a_listener_knows_the_lag_of_each_query(half_read):
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
