"""BrokerAddresses: resolves a queue to the address of its broker.

    known routes ──> the topic's route, asked for once ──> the name servers' list of all brokers

The last step is for brokers to which no route leads: of a deleted topic, or while a name server has
just started. After a broker has not answered, it comes first, because the broker may have another
address by then. The list is cached until `refresh`.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from rmq_spark.client.errors import BrokerNotFound, BrokerRefused, ClientError, RouteNotFound
from rmq_spark.client.instance.instance import ClientInstance
from rmq_spark.spark.options.access import BrokerAccess
from rmq_spark.wire.message_queue import MessageQueue


def instance_for(access: BrokerAccess) -> ClientInstance:
    """Return a client that runs no threads of its own: it fetches routes only when needed."""
    return ClientInstance(
        access.name_servers,
        credentials=access.credentials,
        tls=access.tls,
        broker_addresses=dict(access.broker_addresses),
        request_timeout_ms=access.request_timeout_ms,
    )


class BrokerAddresses:
    """The addresses at which queues are read, including topics that name servers no longer know."""

    def __init__(self, instance: ClientInstance) -> None:
        self.instance = instance
        self._is_stale = False
        self._refreshed_topics: set[str] = set()  # topics
        self._all_addresses: Mapping[str, str] | None = None

    def resolve(self, queue: MessageQueue) -> str:
        """Return the address at which to read a queue.

        Raises:
            BrokerNotFound: No route leads to its broker, and no name server knows the broker.
            NoNameServer: No name server answers.
        """
        if self._is_stale:
            with suppress(ClientError):
                return self._resolve_by_name(queue.broker_name)
        routes = self.instance.routes
        with suppress(BrokerNotFound):
            return routes.address_for_read(queue.broker_name)
        if queue.topic not in routes.topics and queue.topic not in self._refreshed_topics:
            self._refreshed_topics.add(queue.topic)
            with suppress(RouteNotFound, BrokerNotFound):
                routes.refresh(queue.topic)
                return routes.address_for_read(queue.broker_name)
        return self._resolve_by_name(queue.broker_name)

    def all_addresses(self) -> Mapping[str, str]:
        """Return the address of each broker by name, including brokers to which no route leads.

        Raises:
            NoNameServer: No name server answers.
        """
        if self._all_addresses is None:
            brokers = self.instance.name_servers.admin.cluster_info().broker_addr_table
            self._all_addresses = {
                name: min(broker.broker_addrs.items())[1]
                for name, broker in brokers.items()
                if broker.broker_addrs
            }
        return self._all_addresses

    def refresh(self) -> None:
        """Ask the name servers again, because a broker did not answer and may have moved."""
        self._is_stale = True
        self._refreshed_topics.clear()
        self._all_addresses = None

    def _resolve_by_name(self, broker_name: str) -> str:
        try:
            address = self.all_addresses().get(broker_name)
        except BrokerRefused as error:
            raise BrokerNotFound(broker_name, f"no route names it, and {error}") from error
        if address is None:
            raise BrokerNotFound(broker_name, "no name server knows a broker of that name")
        return address
