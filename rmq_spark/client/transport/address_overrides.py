"""AddressOverrides: replaces addresses from name servers at which brokers cannot be reached.

A broker behind a NAT, or in a container, registers an address that only its neighbors can use. The
overrides are applied to name servers' responses before anything else reads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import NoneType
from typing import TYPE_CHECKING, Final

from rmq_spark.client.arguments import check_kind
from rmq_spark.client.errors import ConnectionFailed, MessageRejected
from rmq_spark.client.transport.connection import parse_address
from rmq_spark.wire.codes import MASTER_ID

if TYPE_CHECKING:
    from rmq_spark.wire.bodies.clients import BrokerData, TopicRouteData
    from rmq_spark.wire.bodies.operators import ClusterInfo

_NAME: Final = "broker_addresses"
_EXAMPLE: Final = "{'broker-a': 'localhost:10911'}"


class AddressOverrides:
    """Addresses to use, by a broker's name (which stands for its master) or its given address."""

    def __init__(self, overrides: Mapping[str, str] | None = None) -> None:
        """Take the addresses to use, by the names or addresses that they replace."""
        check_kind(_NAME, overrides, (Mapping, NoneType), "a mapping of strings", _EXAMPLE)
        self._overrides = dict(overrides or {})
        for each in (*self._overrides, *self._overrides.values()):
            check_kind(_NAME, each, str, "a mapping of strings", _EXAMPLE)
        try:
            for address in self._overrides.values():
                parse_address(address)
        except ConnectionFailed as error:
            raise MessageRejected(
                _NAME, f"addresses to use, as in {_EXAMPLE}", error.address
            ) from error

    def apply_to_route(self, route: TopicRouteData) -> TopicRouteData:
        """Return a topic's route with the overrides applied."""
        if not self._overrides:
            return route
        return replace(route, broker_datas=tuple(map(self._apply_to_broker, route.broker_datas)))

    def apply_to_cluster(self, cluster_info: ClusterInfo) -> ClusterInfo:
        """Return all brokers with the overrides applied."""
        if not self._overrides:
            return cluster_info
        brokers = {
            name: self._apply_to_broker(broker)
            for name, broker in cluster_info.broker_addr_table.items()
        }
        return replace(cluster_info, broker_addr_table=brokers)

    def _apply_to_broker(self, broker: BrokerData) -> BrokerData:
        addresses = {
            number: self._overrides.get(address, address)
            for number, address in broker.broker_addrs.items()
        }
        if MASTER_ID in addresses:
            addresses[MASTER_ID] = self._overrides.get(broker.broker_name, addresses[MASTER_ID])
        return replace(broker, broker_addrs=addresses)


NO_ADDRESS_OVERRIDES: Final = AddressOverrides()
"""Overrides that change no address."""
