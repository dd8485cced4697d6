"""A topic that is deleted and made again under a group that runs:
of the new one nothing is passed over."""

from __future__ import annotations

import pytest
from broker_kinds import wait_until

from rocketpoll import (
    Admin,
    ConsumeFromWhere,
    EmbeddedBroker,
    LitePullConsumer,
    LitePullSettings,
    PushConsumer,
    PushSettings,
)

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
OLD = [f"old {number}" for number in range(20)]
PATIENCE_S = 30


class Member:
    """A consumer of the topic, and all that it has had."""

    def __init__(self, kind, address):
        self.had = []
        if kind == "lite":
            self.consumer = LitePullConsumer(
                "G", address, LitePullSettings(consume_from_where=FIRST)
            )
        else:
            name = "orderly_listener" if kind == "orderly" else "listener"
            settings = PushSettings(consume_from_where=FIRST)
            self.consumer = PushConsumer("G", address, **{name: self.listen}, settings=settings)
        self.consumer.subscribe("T")

    def listen(self, messages, _):
        self.had += [message.body.decode() for message in messages]

    def has(self, bodies):
        if isinstance(self.consumer, LitePullConsumer):
            self.listen(self.consumer.poll(50), None)
        return set(bodies) <= set(self.had)


@pytest.mark.parametrize("kind", ["concurrently", "orderly", "lite"])
@pytest.mark.parametrize("count", [5, 40], ids=["shorter", "longer"])
def test_a_member_goes_on_with_the_first_message_of_the_new_one(kind, count):
    new = [f"new {number}" for number in range(count)]
    with EmbeddedBroker() as broker, Admin(broker.address) as admin:
        broker.create_topic("T", queues=1)
        broker.send("T", *OLD)
        member = Member(kind, broker.address)
        with member.consumer:
            wait_until("the old ones are there", lambda: member.has(OLD), PATIENCE_S)
            broker.delete_topic("T")
            broker.create_topic("T", queues=1)
            broker.send("T", *new)
            wait_until("the new ones are there", lambda: member.has(new), PATIENCE_S)

            def is_committed():
                member.has([])
                [lag] = admin.lag("G", "T")
                return lag.consumer_offset == count

            wait_until("they are committed", is_committed, PATIENCE_S)
