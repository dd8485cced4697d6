"""PartialRequests: limits the memory of requests that have arrived in part.

A partial request is no reason to refuse a complete one, because a single client could begin one on
each of its connections and finish none. So partial requests have a limit of their own. Above it,
the server closes the connection with the oldest partial request of the address that holds most. An
honest request is complete within moments, and its address holds less, so it does not wait for
others either.

An attacker with thousands of addresses holds little with each, and an honest request more than any
of them. So an address that holds no more than the size of one request counts as modest: it never
waits, and if all are modest, the oldest partial request of all goes.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Generic, Protocol, TypeVar

from rmq_spark.wire.hosts import Host

_log = logging.getLogger(__name__)


class AddressedClient(Protocol):
    """A client, of which only the address is needed here."""

    @property
    def remote_host(self) -> Host:
        """The address and port of the client."""


_Client = TypeVar("_Client", bound=AddressedClient)


class PartialRequests(Generic[_Client]):
    """The bytes of partial requests, by address and by age."""

    def __init__(self) -> None:
        """Begin with none."""
        self.bytes = 0
        """The bytes of all half requests together."""
        self._bytes_of: Counter[bytes] = Counter()
        self._sizes_of: dict[bytes, dict[_Client, int]] = {}
        self._by_age: dict[_Client, None] = {}
        self._evicted = 0
        """The number of clients that had to go since there was room for all."""

    def record(self, client: _Client, size: int) -> None:
        """Record that a client's half request has ``size`` bytes now; 0: it has none."""
        address = client.remote_host.address
        sizes = self._sizes_of.setdefault(address, {})
        more = size - sizes.get(client, 0)
        if size:
            sizes[client] = size
            self._by_age[client] = None
        else:
            sizes.pop(client, None)
            self._by_age.pop(client, None)
        self.bytes += more
        self._bytes_of[address] += more
        if not sizes:
            del self._sizes_of[address], self._bytes_of[address]

    def is_over_fair_share(self, client: _Client, modest_bytes: int) -> bool:
        """Return whether a client's address holds as much as addresses do on average, or more.

        One that holds ``modest_bytes`` or less does not.
        """
        theirs = self._bytes_of.get(client.remote_host.address, 0)
        is_share = theirs * len(self._bytes_of) >= self.bytes
        return is_share and (theirs > modest_bytes or not self.bytes)

    def evict(self, bytes_max: int, modest_bytes: int) -> Iterator[_Client]:
        """Yield the clients that have to go for the others to fit; they are forgotten at once."""
        while self.bytes > bytes_max:
            address = max(self._bytes_of, key=self._bytes_of.__getitem__)
            is_modest = self._bytes_of[address] <= modest_bytes
            by_age: Iterable[_Client] = self._by_age if is_modest else self._sizes_of[address]
            client = next(iter(by_age))
            if not self._evicted:
                _log.warning(
                    "half requests of all clients take %d bytes: the oldest of the address that "
                    "holds most are closed (maxInFlightBytes)",
                    self.bytes,
                )
            self._evicted += 1
            self.record(client, 0)
            yield client

    def end_eviction(self) -> None:
        """Note that there is room for all again; it is logged if there was none."""
        if self._evicted:
            _log.warning("there is room for half requests again; %d were closed", self._evicted)
            self._evicted = 0
