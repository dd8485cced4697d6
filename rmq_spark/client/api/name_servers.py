"""NameServers: asks a client's name servers for routes, in turn until one answers.

`instance.routes` caches the routes. The requests of operators are in `NameServers.admin`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from rmq_spark.client.arguments import check_kind
from rmq_spark.client.errors import (
    CONNECTION_FAULTS,
    ClientError,
    MessageRejected,
    NoNameServer,
    RouteNotFound,
    TopicNotFound,
)
from rmq_spark.client.transport.address_overrides import NO_ADDRESS_OVERRIDES, AddressOverrides
from rmq_spark.client.transport.remoting_client import RequestFunction, TypedRequests
from rmq_spark.wire.bodies.clients import TopicRouteData
from rmq_spark.wire.codes import RequestCode
from rmq_spark.wire.headers.members import GetRouteInfoRequestHeader

if TYPE_CHECKING:
    from rmq_spark.client.api.admin_api import NameServerApi

_Found = TypeVar("_Found")


def parse_addresses(text: str | Iterable[str] | None) -> tuple[str, ...]:
    """Return the addresses in ``a:9876;b:9876``; commas and spaces separate them as well."""
    texts = (text or "",) if isinstance(text, (str, bytes)) or text is None else text
    name, needed, example = (
        "namesrv",
        "addresses (str, or several; a ClientInstance goes to instance=, a Client to client=)",
        "'localhost:9876;other:9876'",
    )
    check_kind(name, texts, Iterable, needed, example)
    texts = tuple(texts)
    for each in texts:
        check_kind(name, each, str, needed, example)
    found = [address for each in texts for address in re.split(r"[;,\s]+", each) if address]
    for address in found:
        _check_without_scheme(name, address)
    return tuple(dict.fromkeys(found))


def check_ports(addresses: Iterable[str]) -> None:
    """Refuse an address without a port: it may be a topic or a group, passed as ``namesrv``."""
    for address in addresses:
        if ":" not in address:
            raise MessageRejected("namesrv", "host:port, as in localhost:9876", address)


def _check_without_scheme(name: str, address: str) -> None:
    scheme, separator, rest = address.partition("://")
    if separator:
        raise MessageRejected(
            name,
            f"host:port without a scheme ({scheme}://), because name servers speak RocketMQ's own "
            f"protocol. Write {rest.rstrip('/')}, with the name server's port, as in "
            "localhost:9876",
            address,
        )


class NameServers:
    """The name servers of one client; any of them can answer a lookup."""

    def __init__(
        self,
        addresses: str | Iterable[str] | None,
        request: RequestFunction,
        timeout_ms: int,
        address_overrides: AddressOverrides = NO_ADDRESS_OVERRIDES,
    ) -> None:
        self.address_overrides = address_overrides
        self.addresses = parse_addresses(addresses)
        self.requests = TypedRequests(request, timeout_ms)
        self._preferred_index = 0

    def route(self, topic: str) -> TopicRouteData:
        """Return the brokers and queues of a topic."""
        header = GetRouteInfoRequestHeader(topic)
        try:
            found = self.ask_any(
                lambda address: self.requests.body(
                    TopicRouteData, address, RequestCode.GET_ROUTEINFO_BY_TOPIC, header
                )
            )
        except TopicNotFound as error:
            raise RouteNotFound(topic) from error
        return self.address_overrides.apply_to_route(found)

    @cached_property
    def admin(self) -> NameServerApi:
        """Requests of operators; a program that only sends or consumes never loads them."""
        from rmq_spark.client.api.admin_api import NameServerApi  # noqa: PLC0415  # for operators only

        return NameServerApi(self)

    def ask_any(self, call: Callable[[str], _Found]) -> _Found:
        """Return the response of the first name server that answers; the next call begins there."""
        tries: list[ClientError] = []
        count = len(self.addresses)
        first = self._preferred_index
        for step in range(count):
            at = (first + step) % count
            try:
                return call(self.addresses[at])
            except CONNECTION_FAULTS as error:
                tries.append(error)
                if self._preferred_index == at:
                    self._preferred_index = (at + 1) % count
        raise NoNameServer(tries)
