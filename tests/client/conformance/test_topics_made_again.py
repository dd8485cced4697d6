"""A recreated topic is consumed completely, also by held pulls and members with local offsets.

RocketMQ's brokers keep holding the pull, and answer it from the new queue when that is longer than
the old one was, or when the hold times out; ours answers at once that the topic is gone.
"""

import time

import pytest
from support.brokers.broker_kinds import wait_until
from support.clients.conformance_clients import Listener, bodies_of, numbers

from rmq_spark.client.consumer.queues.queue_identity import UNVERIFIED_MS_MAX
from rmq_spark.client.errors import ClientError
from rmq_spark.wire.bodies.clients import MessageModel

OLD, SHORTER, AS_LONG, LONGER = 8, 4, 8, 12
PATIENCE_S = 60  # brokers hold a pull for 20 s
OFTEN = {"persist_consumer_offset_interval_ms": 200}
KINDS = ("polling", "assigned", "concurrent", "orderly")


class Member:
    """A member of a group, and the messages that it received."""

    def __init__(self, kind, clients, group, topic, **settings):
        self._had, self._listener = [], Listener()
        self._is_polling = kind in {"polling", "assigned"}
        settings = {**OFTEN, **settings}
        if self._is_polling:
            queues = [clients.cluster.queue(topic)]
            where = {"topic": topic} if kind == "polling" else {"queues": queues}
            self.consumer = clients.lite(group, **where, auto_commit_interval_ms=1_000, **settings)
        else:
            is_orderly = kind == "orderly"
            self.consumer = clients.push(
                self._listener, group, topic, orderly=is_orderly, **settings
            )

    def had(self):
        if not self._is_polling:
            return self._listener.bodies
        self._had += bodies_of(self.consumer.poll(50))
        return self._had


@pytest.mark.deep
@pytest.mark.parametrize("count", [SHORTER, AS_LONG, LONGER], ids=["shorter", "as long", "longer"])
@pytest.mark.parametrize("kind", KINDS)
def test_topic_recreated_during_a_held_pull_is_consumed_completely(cluster, clients, kind, count):
    check(cluster, clients, kind, count)


@pytest.mark.deep
@pytest.mark.parametrize("count", [AS_LONG, LONGER], ids=["as long", "longer"])
def test_topic_recreated_during_a_held_pull_is_consumed_by_asyncio(cluster, both_clients, count):
    check(cluster, both_clients, "polling", count)


def check(cluster, clients, kind, count):
    """Recreate the topic while a broker holds a member's pull; the member must get all new
    messages."""
    topic, group = cluster.topic(1), cluster.group()
    cluster.send(topic, *numbers(OLD), queues=1)
    member, new = Member(kind, clients, group, topic), numbers(count, 100)
    wait_until("the old ones", lambda: set(numbers(OLD)) <= set(member.had()))
    held_until = time.monotonic() + 2 * UNVERIFIED_MS_MAX / 1_000
    wait_until("a pull that is held for a while", lambda: time.monotonic() > held_until)
    cluster.api.admin.delete_topic(cluster.address, topic)
    cluster.topic(1, topic)
    cluster.send(topic, *new, queues=1)
    wait_until("the new ones", lambda: set(new) <= set(member.had()), PATIENCE_S)

    def is_committed():
        member.had()
        try:
            return cluster.stored_offset(group, topic) == count
        except ClientError:
            return False

    wait_until("their commit", is_committed, PATIENCE_S)


@pytest.mark.deep
@pytest.mark.parametrize("count", [SHORTER, AS_LONG, LONGER], ids=["shorter", "as long", "longer"])
@pytest.mark.parametrize("kind", ["polling", "concurrent", "orderly"])
@pytest.mark.parametrize("away", ["not subscribed", "not running"])
def test_topic_recreated_while_a_broadcasting_member_is_away_is_consumed(
    cluster, clients, tmp_path, away, kind, count
):
    topic, group = cluster.topic(1), cluster.group()
    cluster.send(topic, *numbers(OLD), queues=1)

    def started():
        return Member(
            kind,
            clients,
            group,
            topic,
            message_model=MessageModel.BROADCASTING,
            local_offset_directory=tmp_path,
            instance={"client_id": "10.0.0.1@away"},
        )

    member, new = started(), numbers(count, 100)
    wait_until("the old ones", lambda: set(numbers(OLD)) <= set(member.had()))
    if away == "not running":
        if kind == "polling":
            member.consumer.commit()
        member.consumer.shutdown()
    else:
        member.consumer.unsubscribe(topic)
    cluster.api.admin.delete_topic(cluster.address, topic)
    cluster.topic(1, topic)
    cluster.send(topic, *new, queues=1)
    if away == "not running":
        member = started()
    else:
        member.consumer.subscribe(topic)
    wait_until("the new ones", lambda: set(new) <= set(member.had()), PATIENCE_S)
    assert away == "not subscribed" or not set(numbers(OLD)) & set(member.had())
