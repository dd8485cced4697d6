"""Callbacks: the methods that a `ClientInstance` calls on its consumers and producers.

Brokers send requests to clients; the instance passes each to one of these methods. Threads that
read from a connection call only `request_rebalance` and `on_connection_closed`, which must return
at once.
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


class RegisteredConsumer(Protocol):
    """A consumer that is registered with a client instance."""

    def consumer_data(self) -> ConsumerData:
        """Return the description of the consumer that heartbeats carry."""

    def request_rebalance(self) -> None:
        """Rebalance soon, because the members of the group have changed (40)."""

    def on_connection_closed(self, address: str) -> None:
        """Note that a broker may have forgotten this consumer, and the locks that it granted."""

    def stop_threads(self) -> None:
        """Stop all threads, because the instance has stopped and no broker can be asked."""

    def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Resume at offsets that an operator has set (220)."""

    def consume_status(self, topic: str) -> Mapping[MessageQueue, int]:
        """Return the offset that the consumer has reached in each queue of a topic (221)."""

    def running_info(self) -> ConsumerRunningInfo:
        """Return the consumer's report on itself (307)."""

    def consume_directly(
        self, message: MessageExt, broker_name: str
    ) -> ConsumeMessageDirectlyResult:
        """Consume this message now (309)."""


class RegisteredProducer(Protocol):
    """A producer that is registered with a client instance."""

    def check_transaction_state(
        self, address: str, message: MessageExt, header: CheckTransactionStateRequestHeader
    ) -> None:
        """Tell the broker at ``address`` to commit a half message, or to roll it back (39)."""
