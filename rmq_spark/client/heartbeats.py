"""Heartbeats: what brokers are told of this client: that it lives, in which groups, and that it leaves one.

Each broker is told in a lane of its own, in order: a heartbeat that was on its way when the client left a
group arrives before the leaving. One that takes long keeps no other from hearing of it.
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
"""So long brokers are waited for when they are told something; then it goes on in the background."""

_LEAVE_REQUEST_MS: Final = 500


class Heartbeats(ProcessBound):
    """Tells brokers of one client. All methods may be called from any thread."""

    def __init__(self, api: BrokerApi, data: Callable[[], HeartbeatData]) -> None:
        """``data`` says who this client is, and in which groups, at this moment."""
        self._api = api
        self._data = data
        self._lanes = Lanes("rocketpoll heartbeat")
        self._failing: dict[str, None] = {}  # of whom it was said already
        self.versions: dict[str, int] = {}
        """What brokers have answered to the last heartbeat, by address."""

        ProcessBound.__init__(self)

    def tell(self, addresses: Iterable[str]) -> None:
        """Tell brokers that this client lives; comes back when they have answered, or after a second.

        One where nobody answers, for all that is known, is told when somebody does again.
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
        """What a broker has answered to the last heartbeat; asked now if there was none."""
        if address not in self.versions:
            self.versions[address] = self._api.heartbeat(address, self._data())
        return self.versions[address]

    def leave(self, addresses: Iterable[str], producers: Iterable[str], consumers: Iterable[str]) -> None:
        """Tell brokers that this client leaves groups; comes back when all have heard, or after a second."""
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
        """Tell nobody anything any more."""
        self._lanes.stop()

    def forked(self) -> None:
        """Know nothing of brokers yet: what they know is the parent."""
        self._lanes = Lanes("rocketpoll heartbeat")
        self._failing = {}
        self.versions = {}
