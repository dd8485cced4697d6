"""A reset that the broker reports only once, in its response to any pull, as RocketMQ 5 does.

That pull may be one by which a member only checks a queue's identity.
"""

import threading

import pytest
from support.brokers.broker_kinds import wait_until

from rmq_spark.client.api.broker_api import BrokerApi
from rmq_spark.client.results import PullStatus
from rocketpoll import (
    ConsumeFromWhere,
    EmbeddedBroker,
    LitePullConsumer,
    LitePullSettings,
    PushConsumer,
    PushSettings,
)

SETTINGS = {
    "consume_from_where": ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
    "persist_consumer_offset_interval_ms": 200,
}


@pytest.fixture
def told_once(monkeypatch):
    """Return a switch: while on, the next lookup of a message is answered with an offset to resume
    at."""
    moves, peek = threading.Event(), BrokerApi.peek

    def answered(self, *arguments):
        found = peek(self, *arguments)
        if not moves.is_set():
            return found
        moves.clear()
        return found._replace(
            pull_status=PullStatus.OFFSET_ILLEGAL, next_begin_offset=0, records=b""
        )

    monkeypatch.setattr(BrokerApi, "peek", answered)
    return moves


@pytest.mark.parametrize("kind", ["concurrent", "orderly"])
def test_push_member_applies_a_reset_reported_once_in_a_pull(kind, told_once):
    had = []
    listener = "orderly_listener" if kind == "orderly" else "listener"

    def listen(messages, _):
        had.extend(message.body.decode() for message in messages)

    with EmbeddedBroker() as broker:
        broker.create_topic("T", queues=1)
        broker.send("T", "one", "two")
        consumer = PushConsumer(
            "G", broker.address, **{listener: listen}, settings=PushSettings(**SETTINGS)
        )
        consumer.subscribe("T")
        with consumer:
            wait_until("both", lambda: had == ["one", "two"])
            told_once.set()
            wait_until("both once more", lambda: had == ["one", "two"] * 2)


def test_polling_member_applies_a_reset_reported_once_in_a_pull(told_once):
    had = []
    with EmbeddedBroker() as broker:
        broker.create_topic("T", queues=1)
        broker.send("T", "one", "two")
        settings = LitePullSettings(**SETTINGS, auto_commit_interval_ms=1_000)
        consumer = LitePullConsumer("G", broker.address, settings)
        consumer.subscribe("T")
        with consumer:

            def has(bodies):
                had.extend(message.body.decode() for message in consumer.poll(100))
                return had == bodies

            wait_until("both", lambda: has(["one", "two"]))
            told_once.set()
            wait_until("both once more", lambda: has(["one", "two"] * 2))
