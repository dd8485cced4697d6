"""AcceptLimits: which new clients may stay, by number, address and rate.

    maxConnections              all clients
    maxConnectionsPerAddress    those of an address; of IPv6, of the first 64 bits
    maxAcceptsPerSecond         new clients; when there are many, half of this number is divided
                                equally among addresses

So an address that keeps opening and resetting connections leaves room for others. Another tenth of
this number is only for addresses that have no client and have not tried to connect lately; it is
small, because an attacker may have many such addresses.

All programs of a machine share its loopback address, and a broker usually listens on nothing else.
So a full loopback address has some extra places: each new client gets one, and the client that has
had such a place for longest is disconnected. An operator's command gets through even if a program
has left thousands of connections open.

Refused clients are counted, and logged in one line a minute.
"""

import logging
from collections import Counter
from typing import Final, Generic

from rmq_spark.wire.message.hosts import Host

from ..common.log_limit import LogLimit
from ..settings.config import ServerLimits
from .limits import ClientT

_log = logging.getLogger(__name__)
_WINDOW_SECONDS: Final = 1.0
_SHARED_DIVISOR: Final = 2
"""Addresses have equal shares of 1/2 of maxAcceptsPerSecond when there are many new clients."""
_RESERVE_DIVISOR: Final = 10
"""1/10 of maxAcceptsPerSecond is added for addresses that have no client."""
LOOPBACK_RESERVE_DIVISOR: Final = 64
"""A loopback address has 1/64 of maxConnectionsPerAddress as extra places."""


class AcceptRate:
    """The rate of new clients: a bucket of tokens, half of which addresses share equally."""

    def __init__(self, per_second: int) -> None:
        self._tokens = float(per_second)
        self._reserve = per_second / _RESERVE_DIVISOR
        self._refilled_at = self._window_at = 0.0
        self._admitted: Counter[bytes] = Counter()
        """The number of clients admitted in this window, for each address that has tried."""
        self._admitted_before: Counter[bytes] = Counter()

    def skip_time(self, seconds: float) -> None:
        """Ignore a jump of the clock."""
        self._refilled_at += seconds
        self._window_at += seconds

    def admit(self, network: bytes, now: float, per_second: int, *, is_first: bool) -> bool:
        """Return whether a new client may stay; ``is_first``: its address has no other."""
        self._refill(now, float(per_second))
        admitted = self._admitted[network]
        self._admitted[network] = admitted  # an address that tries gets a share
        active = max(len(self._admitted), len(self._admitted_before))
        shared = per_second / _SHARED_DIVISOR
        has_share = active == 1 or admitted < max(shared // active, 1)
        if self._tokens >= 1 and (has_share or self._tokens > shared):
            self._tokens -= 1
        elif is_first and self._reserve >= 1 and not (admitted or self._admitted_before[network]):
            self._reserve -= 1
        else:
            return False
        self._admitted[network] += 1
        return True

    def _refill(self, now: float, per_second: float) -> None:
        more = (now - self._refilled_at) * per_second
        self._refilled_at = now
        self._tokens = min(self._tokens + more, per_second)
        reserve_max = per_second / _RESERVE_DIVISOR
        self._reserve = min(self._reserve + more / _RESERVE_DIVISOR, reserve_max)
        if now - self._window_at >= _WINDOW_SECONDS:
            is_next = now - self._window_at < 2 * _WINDOW_SECONDS
            self._admitted_before = self._admitted if is_next else Counter()
            self._admitted = Counter()
            self._window_at = now


class AcceptLimits(Generic[ClientT]):
    """The clients by address, and those that only keep a place until another client needs it."""

    def __init__(self, limits: ServerLimits) -> None:
        self._rate = AcceptRate(limits.max_accepts_per_second)
        self._count = 0
        self._per_network: Counter[bytes] = Counter()
        self._replaceable: dict[ClientT, None] = {}
        """Clients of full loopback addresses, the oldest first."""
        self.refused: Counter[str] = Counter()
        """The number of refused clients, by the setting that limits them."""
        self._logged: Counter[str] = Counter()
        self._log_limit = LogLimit()
        self._last_refused = Host(bytes(4), 0)

    def skip_time(self, seconds: float) -> None:
        """Ignore a jump of the clock."""
        self._rate.skip_time(seconds)

    def register(self, client: ClientT, now: float, limits: ServerLimits) -> bool:
        """Register a new client; return whether it may stay, or count it as refused."""
        network = client.remote_host.network
        self._count += 1
        self._per_network[network] += 1
        count, most = self._per_network[network], limits.max_connections_per_address
        reserve = most // LOOPBACK_RESERVE_DIVISOR
        setting = None
        if self._count > limits.max_connections:
            setting = "maxConnections"
        elif count > most and not (reserve and client.remote_host.is_loopback):
            setting = "maxConnectionsPerAddress"
        elif not self._rate.admit(network, now, limits.max_accepts_per_second, is_first=count == 1):
            setting = "maxAcceptsPerSecond"
        if setting is not None:
            self.refused[setting] += 1
            self._last_refused = client.remote_host
            self.log_refused(now)
            return False
        if count > most:
            self._replaceable[client] = None
            if len(self._replaceable) > reserve:
                oldest = next(iter(self._replaceable))
                del self._replaceable[oldest]
                self.refused["maxConnectionsPerAddress"] += 1
                self._last_refused = oldest.remote_host
                oldest.abort()
                self.log_refused(now)
        return True

    def unregister(self, client: ClientT) -> None:
        """Unregister a disconnected client, even one that was refused."""
        network = client.remote_host.network
        self._count -= 1
        self._per_network[network] -= 1
        if not self._per_network[network]:
            del self._per_network[network]
        self._replaceable.pop(client, None)

    def log_refused(self, now: float) -> None:
        """Log how many clients were refused, at once and then once a minute."""
        new = self.refused - self._logged
        if new and self._log_limit.admit(None, now) is not None:
            _log.warning(
                "refused new clients: %s; the last was %s. Find what connects so often, or raise "
                "the setting",
                ", ".join(f"{setting} {count}" for setting, count in sorted(new.items())),
                self._last_refused,
            )
            self._logged = self.refused.copy()
