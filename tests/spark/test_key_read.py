"""Reads by key, bounded by time."""

from contextlib import ExitStack
from datetime import timedelta
from types import SimpleNamespace

import pytest
from support.spark.source_queries import options_for, queues_of, schema_of, send
from support.suite.clocks import Clock

from rmq_spark.client.concurrency import retry_timer
from rmq_spark.spark.errors import BrokersAway, OptionError, SparkError
from rmq_spark.spark.read import key_reader
from rmq_spark.spark.schemas.columns import arrow_schema_of
from rocketpoll import EmbeddedBroker, Message

SCHEMA = arrow_schema_of(schema_of("body binary, keys string"))


def bodies(broker, topic, **more):
    options = options_for(broker, topic, **more)
    with queues_of(broker, topic, **more) as queues:
        found = key_reader.plan_key_lookups(options, queues)
    batches = [
        batch for piece in found for batch in key_reader.read_key_lookup(options, SCHEMA, piece)
    ]
    return [body for batch in batches for body in batch.column("body").to_pylist()]


def test_key_read_finds_messages_of_all_queues_in_stored_order(rocketpoll_broker, rocketpoll_topic):
    send(rocketpoll_broker, rocketpoll_topic, 3, "first", keys="k1 k2")
    send(rocketpoll_broker, rocketpoll_topic, 0, "second", "third", keys="k1")
    send(rocketpoll_broker, rocketpoll_topic, 0, "other", keys="k11")
    assert bodies(rocketpoll_broker, rocketpoll_topic, key="k1") == [b"first", b"second", b"third"]
    assert bodies(rocketpoll_broker, rocketpoll_topic, key="k2") == [b"first"]
    assert bodies(rocketpoll_broker, rocketpoll_topic, key="k") == []


@pytest.mark.parametrize("key", ["a\tb", "no\u00a0break", "line\nfeed", "\x1funit"])
def test_keys_are_separated_by_spaces_only(rocketpoll_broker, rocketpoll_topic, key):
    send(rocketpoll_broker, rocketpoll_topic, 0, "it", keys=f"other {key}")
    assert bodies(rocketpoll_broker, rocketpoll_topic, key=key) == [b"it"]


def test_key_read_over_the_query_limit_is_split_by_time(monkeypatch):
    monkeypatch.setattr(key_reader, "QUERY_MESSAGES_LIMIT", 8)
    monkeypatch.setattr(key_reader, "FULL_PAGE", 8)
    texts = [f"m{n}" for n in range(12)]
    with EmbeddedBroker() as broker:  # its clock can be moved
        broker.create_topic("orders", queues=1)
        for text in texts:
            send(broker, "orders", 0, text, keys="k")
            broker.clock.advance(timedelta(milliseconds=250))
        found = bodies(broker, "orders", key="k")
    assert found == [text.encode() for text in texts]


def test_key_read_includes_messages_with_future_store_time():
    with EmbeddedBroker() as broker:
        broker.clock.advance(timedelta(hours=1))
        broker.send("orders", "a", keys="k")
        assert bodies(broker, "orders", key="k") == [b"a"]


def test_key_read_with_too_many_messages_of_one_time_raises(
    rocketpoll_broker, rocketpoll_topic, monkeypatch
):
    monkeypatch.setattr(key_reader, "QUERY_MESSAGES_LIMIT", 8)
    monkeypatch.setattr(key_reader, "FULL_PAGE", 8)
    with rocketpoll_broker.producer() as producer:  # all messages of one batch have the same time
        producer.send_batch([Message(rocketpoll_topic, b"x", keys="k") for _ in range(40)])
    with pytest.raises(SparkError, match="are from the same second"):
        bodies(rocketpoll_broker, rocketpoll_topic, key="k")


def test_key_read_is_bounded_by_times(rocketpoll_broker, rocketpoll_topic):
    send(rocketpoll_broker, rocketpoll_topic, 0, "a", keys="k")
    stored = rocketpoll_broker.messages(rocketpoll_topic)[0].store_timestamp
    more = {"key": "k"}
    assert bodies(rocketpoll_broker, rocketpoll_topic, startingTimestamp=str(stored), **more) == [
        b"a"
    ]
    assert bodies(rocketpoll_broker, rocketpoll_topic, endingTimestamp=str(stored), **more) == []
    assert bodies(rocketpoll_broker, rocketpoll_topic, endingTimestamp=str(stored + 1), **more) == [
        b"a"
    ]
    assert bodies(rocketpoll_broker, rocketpoll_topic, startingOffsets="-1h", **more) == [b"a"]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"tags": "a"}, "option tags: it cannot be given together with key"),
        ({"minPartitions": "3"}, "option minPartitions: it cannot be given together with key"),
        ({"maxPartitions": "3"}, "option maxPartitions: it cannot be given together with key"),
        (
            {"startingOffsets": "earliest"},
            "option startingOffsets: together with key it must be a time",
        ),
    ],
)
def test_options_without_meaning_for_a_key_read_are_refused(
    rocketpoll_broker, rocketpoll_topic, more, said
):
    with pytest.raises(OptionError, match=said):
        bodies(rocketpoll_broker, rocketpoll_topic, key="k", **more)


def test_key_read_waits_for_a_broker_until_the_timeout(monkeypatch):
    clock, away = Clock(), ExitStack()

    def sleep(seconds):
        clock.now += seconds
        if clock.now > 1_002:
            away.close()

    monkeypatch.setattr(retry_timer, "time", SimpleNamespace(monotonic=clock, sleep=sleep))
    with EmbeddedBroker() as broker, away:
        broker.send("orders", "it", keys="k")
        options = options_for(broker, "orders", key="k")
        with queues_of(broker, "orders", key="k") as queues:
            (piece,) = key_reader.plan_key_lookups(options, queues)
        away.enter_context(broker.away())
        (rows,) = key_reader.read_key_lookup(options, SCHEMA, piece)
        assert rows.column("body").to_pylist() == [b"it"]
        away.enter_context(broker.away())
        clock.now = 0.0
        with pytest.raises(BrokersAway, match="broker broker-a has not answered for 60000 ms"):
            list(key_reader.read_key_lookup(options, SCHEMA, piece))
