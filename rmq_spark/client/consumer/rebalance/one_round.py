"""OneRound: a group as one round of rebalancing sees it, in which many topics may be shared out.

The members of a group are the same for all topics, by the word of any broker. So they are asked for
once for all topics that the same brokers have, and with the next round again.
"""

from __future__ import annotations

from typing import Protocol

from rmq_spark.client.consumer.rebalance.rebalance import GroupView
from rmq_spark.client.errors import ClientError
from rmq_spark.wire.message_queue import MessageQueue


class GroupOnBrokers(GroupView, Protocol):
    """A group and its topics, and where these are."""

    def names(self, topic: str) -> frozenset[str]:
        """Return the names of a topic's brokers."""

    def topics_of_group(self, topic: str) -> frozenset[str]:
        """Return the topics that a topic's broker knows the group to subscribe to."""


class OneRound:
    """A `GroupView` that remembers what brokers have said of members. For use by one thread."""

    def __init__(self, group: GroupOnBrokers) -> None:
        self._group = group
        self._said: dict[frozenset[str], tuple[str, ...] | ClientError] = {}

    @property
    def client_id(self) -> str:
        """Name of this member among the others."""
        return self._group.client_id

    def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return all queues of a topic that can be read; raise an error if there are none."""
        return self._group.queues(topic)

    def consumer_ids(self, topic: str) -> tuple[str, ...]:
        """Return the members of the group, as a broker of the topic knows them.

        Raises:
            ClientError: None of the topic's brokers has answered in this round.
        """
        names = self._group.names(topic)
        said = self._said.get(names)
        if said is None:
            try:
                said = self._group.consumer_ids(topic)
            except ClientError as error:
                said = error
            self._said[names] = said
        if isinstance(said, ClientError):
            raise said
        return said

    def ask_again(self) -> None:
        """Forget what brokers have said: they have been told of a member meanwhile."""
        self._said.clear()
