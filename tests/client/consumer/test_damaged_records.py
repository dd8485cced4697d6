"""A damaged record in the store of a running broker: the group consumes all other messages.

The record becomes a dead letter that an operator can find.
"""

import os
from collections import Counter

import pytest
from support.brokers.broker_kinds import wait_until
from support.suite.selection import spread

from rocketpoll import (
    Admin,
    EmbeddedBroker,
    LitePullConsumer,
    LitePullSettings,
    PushConsumer,
    PushSettings,
)
from rocketpoll import ConsumeFromWhere as From

COUNT, DAMAGED = 10, 5
BODIES = [f"body number {number}" for number in range(COUNT)]
FIRST = From.CONSUME_FROM_FIRST_OFFSET
PATIENCE_S = 30
STORED_EVERY_MS = 200

# Offset in the record, and the bytes written there; negative offsets count from the body.
DAMAGES = {
    "the body": (0, b"B"),
    "the magic": (4, b"\xa7\xa7"),
    "the length of the body": (-4, b"\x7f"),
    "the length of the topic": (len(BODIES[0]), b"\xff"),
}


def damage(directory, name):
    """Overwrite a part of a record in the log of a running broker."""
    [path] = (directory / "commitlog").iterdir()
    at, noise = DAMAGES[name]
    with path.open("r+b") as log:
        data = log.read(1 << 20)
        body_at = data.index(BODIES[DAMAGED].encode())
        record_at = data.rindex(b"\xda\xa3\x20\xa7", 0, body_at) - 4
        from_body = at <= 0 or name == "the length of the topic"
        os.pwrite(log.fileno(), noise, (body_at if from_body else record_at) + at)


def push(broker, seen, *, orderly):
    def listen(messages, _):
        seen.extend(message.body.decode() for message in messages)

    name = "orderly_listener" if orderly else "listener"
    settings = PushSettings(
        consume_from_where=FIRST, persist_consumer_offset_interval_ms=STORED_EVERY_MS
    )
    consumer = PushConsumer("G", broker.address, **{name: listen}, settings=settings)
    consumer.subscribe("T")
    return consumer


def lite(broker):
    settings = LitePullSettings(
        consume_from_where=FIRST,
        persist_consumer_offset_interval_ms=STORED_EVERY_MS,
        auto_commit_interval_ms=1_000,
    )
    consumer = LitePullConsumer("G", broker.address, settings)
    consumer.subscribe("T")
    return consumer


@pytest.mark.parametrize("kind", ["concurrently", "orderly", "lite"])
@pytest.mark.parametrize("name", spread(2, DAMAGES))
def test_damaged_record_becomes_a_dead_letter_and_others_are_consumed(tmp_path, kind, name):
    seen = []
    with EmbeddedBroker(tmp_path) as broker, Admin(broker.address) as admin:
        broker.create_topic("T", queues=1)
        broker.send("T", *BODIES)
        damage(tmp_path, name)

        def is_done():
            if kind == "lite":
                seen.extend(message.body.decode() for message in consumer.poll(100))
            [lag] = admin.lag("G", "T")
            return lag.consumer_offset == COUNT

        with (
            lite(broker)
            if kind == "lite"
            else push(broker, seen, orderly=kind == "orderly") as consumer
        ):
            wait_until("all is committed", is_done, PATIENCE_S)
        assert Counter(seen) == Counter(body for body in BODIES if body != BODIES[DAMAGED])
        assert len(broker.messages("%DLQ%G")) == 1
