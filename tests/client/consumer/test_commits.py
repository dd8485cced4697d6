"""Offsets that a member stores at once: of queues that are others by now, none."""

from __future__ import annotations

import pytest

from rocketpoll import (
    Admin,
    ConsumeFromWhere,
    EmbeddedBroker,
    LitePullConsumer,
    LitePullSettings,
)

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
