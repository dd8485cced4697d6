"""Heartbeats: brokers are told that this client lives, its groups, and those that it leaves.

Each broker is told in a lane of its own, in order: a heartbeat that was on its way when the client
left a group arrives before the leaving. One that takes long keeps no other from hearing of it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import Final

from rmq_spark.client.broker_api import BrokerApi
from rmq_spark.client.errors import ClientError
from rmq_spark.client.lanes import Lanes
from rmq_spark.client.process_bound import ProcessBound
from rmq_spark.wire.bodies.clients import HeartbeatData

_log = logging.getLogger(__name__)

TELL_MS: Final = 1_000
"""Milliseconds that brokers are waited for; the rest is done in the background."""

_LEAVE_REQUEST_MS: Final = 500


class Heartbeats(ProcessBound):
    """Sends the heartbeats of one client. All methods may be called from any thread."""

    def __init__(self, api: BrokerApi, data: Callable[[], HeartbeatData]) -> None:
        """Make a sender; ``data`` returns this client's id and groups at the moment."""
        self._api = api
        self._data = data
        self._lanes = Lanes("rocketpoll heartbeat")
        self._failing: dict[str, None] = {}  # brokers that were warned of already
        self.versions: dict[str, int] = {}
        """Version that each broker answered the last heartbeat with, by address."""

        ProcessBound.__init__(self)

    def tell(self, addresses: Iterable[str]) -> None:
        """Tell brokers that this client lives; return when they have answered, or after a second.

        Brokers that are known not to answer are told when they do again.
        """
        reachable = [address for address in addresses if not self._api.connections.is_silent(address)]
        self._lanes.at_each(reachable, self._tell, TELL_MS)

    def _tell(self, address: str) -> None:
        try:
            self.versions[address] = self._api.heartbeat(address, self._data())
            self._failing.pop(address, None)
        except ClientError as error:
            if address not in self._failing:
                _log.warning("heartbeat: %s", error)
            self._failing[address] = None

    def version(self, address: str) -> int:
        """Return the version that a broker answered the last heartbeat with, or send one now."""
        if address not in self.versions:
            self.versions[address] = self._api.heartbeat(address, self._data())
        return self.versions[address]

    def leave(self, addresses: Iterable[str], producers: Iterable[str], consumers: Iterable[str]) -> None:
        """Tell brokers that this client leaves groups; return when all know, or after a second."""
        groups: list[tuple[str | None, str | None]] = [(group, None) for group in producers]
        groups += [(None, group) for group in consumers]
        client_id = self._data().client_id
        deadline = time.monotonic() + TELL_MS / 1000

        def leave(address: str) -> None:
            for producer_group, consumer_group in groups:
                if time.monotonic() > deadline:
                    return
                try:
                    self._api.unregister(
                        address, client_id, producer_group, consumer_group, _LEAVE_REQUEST_MS
                    )
                except ClientError as error:
                    _log.info("leaving: %s", error)
                    return

        if groups:
            self._lanes.at_each(addresses, leave, TELL_MS)

    def stop(self) -> None:
        """Tell brokers nothing any more."""
        self._lanes.stop()

    def forked(self) -> None:
        """Forget the brokers: they know the parent, and not this process."""
        self._lanes = Lanes("rocketpoll heartbeat")
        self._failing = {}
        self.versions = {}
