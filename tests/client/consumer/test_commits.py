"""Offsets that a member stores at once: of queues that are others by now, none."""

from __future__ import annotations

import threading

import pytest

from rmq_spark.client.consumer.commits import store_offsets
from rmq_spark.client.errors import ConnectionClosed
from rocketpoll import (
    Admin,
    ConsumeFromWhere,
    EmbeddedBroker,
    LitePullConsumer,
    LitePullSettings,
    MessageQueue,
)

PATIENCE_S = 60
FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET


@pytest.mark.parametrize("auto_commit", [False, True])
@pytest.mark.parametrize("is_paused", [False, True], ids=["polling", "paused"])
def test_a_commit_behind_a_topic_that_was_made_again_takes_nothing_of_the_new_one(
    is_paused, auto_commit
):
    settings = LitePullSettings(auto_commit=auto_commit, consume_from_where=FIRST)
    with EmbeddedBroker() as broker, Admin(broker.address) as admin:
        broker.create_topic("T", queues=1)
        broker.send("T", *[f"old {number}" for number in range(10)])
        with LitePullConsumer("G", broker.address, settings) as consumer:
            consumer.subscribe("T")
            found = []
            while len(found) < 10:
                found += consumer.poll(1_000)
            if is_paused:
                consumer.pause(consumer.assignment())
            broker.delete_topic("T")
            broker.create_topic("T", queues=1)
            broker.send("T", *[f"new {number}" for number in range(20)])
            consumer.commit()
        [lag] = admin.lag("G", "T")
        assert lag.consumer_offset in (None, 0)
        with LitePullConsumer("G", broker.address, settings) as consumer:
            consumer.subscribe("T")
            found = []
            while len(found) < 20:
                found += consumer.poll(1_000)
        assert found[0].body == b"new 0"


class FarBroker:
    """Stores offsets, so many at a time as it is asked for, each taking a round trip."""

    def __init__(self, at_once):
        self._together = threading.Barrier(at_once)
        self.stored, self.remembered = {}, {}

    def update_offset(self, queue, offset, *, increase_only):
        assert not increase_only
        self.remembered[queue] = offset

    def persist(self, queue, offset):
        self._together.wait(PATIENCE_S)
        self.stored[queue] = offset


@pytest.mark.parametrize(("count", "at_once"), [(1, 1), (7, 1), (32, 8), (64, 16), (256, 16)])
def test_many_queues_of_a_broker_are_stored_some_at_a_time_and_few_in_turn(count, at_once):
    store = FarBroker(at_once)
    offsets = {MessageQueue("T", "broker-a", number): number for number in range(count)}
    store_offsets(store, offsets, {}, lambda *_: None)
    assert store.stored == offsets


def test_a_broker_that_is_away_keeps_no_other_from_its_offsets_and_is_asked_no_more():
    class Half(FarBroker):
        asked = 0

        def persist(self, queue, offset):
            if queue.broker_name == "away":
                self.asked += 1
                raise ConnectionClosed("b:1", "gone")
            super().persist(queue, offset)

    store = Half(1)
    offsets = {
        MessageQueue("T", broker, number): 7 for broker in ("away", "here") for number in range(3)
    }
    with pytest.raises(ConnectionClosed):
        store_offsets(store, offsets, {}, lambda *_: None)
    assert store.asked == 1
    assert {each.broker_name for each in store.stored} == {"here"}
    assert len(store.stored) == 3
    assert store.remembered == offsets  # what was not stored is with the next ones
