"""What a `ClientInstance` expects of the consumers and producers that are registered with it.

Brokers ask clients things; these are the methods that such requests end in. None of them is called by a
thread that reads from a connection, except `rebalance_soon`, which must come back at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from rmq_spark.client.message import MessageExt
from rmq_spark.wire.bodies.clients import ConsumerData
from rmq_spark.wire.headers.send import CheckTransactionStateRequestHeader
from rmq_spark.wire.message_queue import MessageQueue

if TYPE_CHECKING:
    from rmq_spark.wire.bodies.client_info import ConsumeMessageDirectlyResult, ConsumerRunningInfo


class ConsumerMember(Protocol):
    """A consumer."""

    def consumer_data(self) -> ConsumerData:
        """What heartbeats say of it."""

    def rebalance_soon(self) -> None:
        """The members of its group have changed (40)."""

    def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """An operator wants it to go on from there (220)."""

    def consume_status(self, topic: str) -> Mapping[MessageQueue, int]:
        """How far it is in each of its queues (221)."""

    def running_info(self) -> ConsumerRunningInfo:
        """What it is doing (307)."""

    def consume_directly(self, message: MessageExt, broker_name: str) -> ConsumeMessageDirectlyResult:
        """Consume this message now (309)."""


class ProducerMember(Protocol):
    """A producer."""

    def check_transaction_state(
        self, address: str, message: MessageExt, header: CheckTransactionStateRequestHeader
    ) -> None:
        """What became of this half message? The broker at ``address`` wants to hear its end (39)."""
