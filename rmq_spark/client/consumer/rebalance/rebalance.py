"""Rebalance: computes a member's share of a topic's queues from the route and the group's members.

The brokers supply the list of members.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from rmq_spark.client.arguments import wrong_kind
from rmq_spark.client.consumer.rebalance.strategies import (
    AllocateMessageQueueStrategy,
    in_java_order,
    in_queue_order,
)
from rmq_spark.errors import excerpt
from rmq_spark.wire.bodies.clients import MessageModel
from rmq_spark.wire.message_queue import MessageQueue

_NEEDED = "some of the queues that it was given"


class GroupView(Protocol):
    """A group and its topics, as a member sees them."""

    @property
    def client_id(self) -> str:
        """Name of this member among the others."""

    def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return all queues of a topic that can be read; raise an error if there are none."""

    def consumer_ids(self, topic: str) -> tuple[str, ...]:
        """Return the members of the group, as a broker of the topic knows them."""


class TopicAssignment(NamedTuple):
    """All queues of a topic, and this member's; ``is_registered`` if brokers know the member."""

    all_queues: tuple[MessageQueue, ...]
    own: tuple[MessageQueue, ...]
    is_registered: bool = True


class Rebalance(NamedTuple):
    """The rule by which one member finds its share."""

    message_model: MessageModel
    strategy: AllocateMessageQueueStrategy

    def allocate(self, topic: str, view: GroupView) -> TopicAssignment | None:
        """Return this member's share; None if brokers know no member, as after a restart.

        A member that is missing from the list has no queues, because the others have them.

        Raises:
            TypeError: The strategy has returned something else than queues of the topic.
        """
        queues = tuple(in_queue_order(view.queues(topic)))
        if self.message_model is MessageModel.BROADCASTING:
            return TopicAssignment(queues, queues)
        members = in_java_order(view.consumer_ids(topic))
        if not members:
            return None
        is_known = view.client_id in members
        # Lists of its own: a strategy may be a user's, and take from them what it has shared out.
        mine = tuple(self.strategy.allocate(view.client_id, list(queues), members))
        known = frozenset(queues)
        for queue in mine:
            if queue not in known:
                raise wrong_kind("the result of allocate", _NEEDED, excerpt(queue), "queues[:2]")
        return TopicAssignment(queues, mine, is_known)
