"""Detours: the addresses of brokers that are not reached where name servers say.

A broker behind a NAT, or in a container, tells name servers an address that only its neighbours can
use. Answers of name servers are changed here before anybody sees them; how they are got is not
known here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import NoneType
from typing import TYPE_CHECKING, Final

from rmq_spark.client.arguments import check_kind
from rmq_spark.client.errors import ConnectionFailed, MessageRejected
from rmq_spark.client.transport.connection import parse_address

if TYPE_CHECKING:
    from rmq_spark.wire.bodies.lists import ClusterInfo
    from rmq_spark.wire.bodies.routes import BrokerData, TopicRouteData

_NAME: Final = "broker_addresses"
_EXAMPLE: Final = "{'broker-a': 'localhost:10911'}"
_MASTER_ID: Final = 0


class Detours:
    """Addresses to use, by a broker's name (which stands for its master) or its given address."""

    def __init__(self, instead: Mapping[str, str] | None = None) -> None:
        """Take the addresses to use, by the names or addresses that they replace.

        Raises:
            TypeError: The argument is not a mapping of texts.
            MessageRejected: An address to use is not valid.
        """
        check_kind(_NAME, instead, (Mapping, NoneType), "a mapping of texts", _EXAMPLE)
        self._instead = dict(instead or {})
        for each in (*self._instead, *self._instead.values()):
            check_kind(_NAME, each, str, "a mapping of texts", _EXAMPLE)
        try:
            for address in self._instead.values():
                parse_address(address)
        except ConnectionFailed as error:
            raise MessageRejected(
                _NAME, f"addresses to use, as in {_EXAMPLE}", error.address
            ) from error

    def route(self, found: TopicRouteData) -> TopicRouteData:
        """Return a topic's route with the addresses to use."""
        if not self._instead:
            return found
        return replace(found, broker_datas=tuple(map(self._broker, found.broker_datas)))

    def cluster(self, found: ClusterInfo) -> ClusterInfo:
        """Return all brokers with the addresses to use."""
        if not self._instead:
            return found
        brokers = {name: self._broker(broker) for name, broker in found.broker_addr_table.items()}
        return replace(found, broker_addr_table=brokers)

    def _broker(self, broker: BrokerData) -> BrokerData:
        addresses = {
            number: self._instead.get(address, address)
            for number, address in broker.broker_addrs.items()
        }
        if _MASTER_ID in addresses:
            addresses[_MASTER_ID] = self._instead.get(broker.broker_name, addresses[_MASTER_ID])
        return replace(broker, broker_addrs=addresses)


NO_DETOURS: Final = Detours()
"""Leaves all brokers where name servers say."""
