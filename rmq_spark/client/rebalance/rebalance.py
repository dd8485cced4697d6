"""Rebalance: this member's share of a topic's queues, from the topic's route and the group's members.

Who is a member, the brokers know; what a consumer does with its share, the consumer.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from rmq_spark.client.rebalance.strategies import (
    AllocateMessageQueueStrategy,
    in_java_order,
    in_queue_order,
)
from rmq_spark.wire.bodies.clients import MessageModel
from rmq_spark.wire.message_queue import MessageQueue


class GroupView(Protocol):
    """What is known of a group and its topics."""

    @property
    def client_id(self) -> str:
        """This member's name among the others."""

    def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """All queues of a topic that can be read; raises if there are none."""

    def consumer_ids(self, topic: str) -> tuple[str, ...]:
        """The members of the group, as a broker of the topic knows them."""


class Share(NamedTuple):
    """All queues of a topic, and this member's; whether the brokers know it as a member at all."""

    all: tuple[MessageQueue, ...]
    mine: tuple[MessageQueue, ...]
    is_known: bool = True


class Rebalance(NamedTuple):
    """One member's rule."""

    message_model: MessageModel
    strategy: AllocateMessageQueueStrategy

    def share(self, topic: str, view: GroupView) -> Share | None:
        """This member's share; None if the brokers know no member at all, as after their restart.

        Whoever is missing among members that are known has no queues: the others have them.
        """
        queues = in_queue_order(view.queues(topic))
        if self.message_model is MessageModel.BROADCASTING:
            return Share(tuple(queues), tuple(queues))
        members = in_java_order(view.consumer_ids(topic))
        if not members:
            return None
        mine = tuple(self.strategy.allocate(view.client_id, queues, members))
        return Share(tuple(queues), mine, view.client_id in members)
