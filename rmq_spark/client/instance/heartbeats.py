"""Heartbeats: brokers are told that this client lives, its groups, and those that it leaves.

Each broker is told in a lane of its own, in order: a heartbeat that was on its way when the client
left a group arrives before the leaving. One that takes long keeps no other from hearing of it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import Final

from rmq_spark.client.api.broker_api import BrokerApi
from rmq_spark.client.concurrency.fork_aware import ProcessBound
from rmq_spark.client.concurrency.per_broker_executor import Lanes
from rmq_spark.client.errors import ClientError
from rmq_spark.wire.bodies.clients import HeartbeatData

_log = logging.getLogger(__name__)

TELL_MS: Final = 1_000
"""Milliseconds that brokers are waited for; the rest is done in the background."""

AGAIN_MS: Final = 1_000
"""Milliseconds until a broker is told again that did not take a heartbeat."""

AGAIN_TIMES_MAX: Final = 30
"""Times that it is told so, one after the other; from then on, with all others."""

_LEAVE_REQUEST_MS: Final = 500


class Heartbeats(ProcessBound):
    """Sends the heartbeats of one client. All methods may be called from any thread."""

    def __init__(self, api: BrokerApi, data: Callable[[], HeartbeatData]) -> None:
        """Make a sender; ``data`` returns this client's id and groups at the moment."""
        self._api = api
        self._data = data
        self._lanes = Lanes("rocketpoll heartbeat")
        self._failures: dict[str, int] = {}  # since each broker last took a heartbeat
        self._untold: dict[str, None] = {}  # brokers that do not know of this client
        self.versions: dict[str, int] = {}
        """Version that each broker answered the last heartbeat with, by address."""

        ProcessBound.__init__(self)

    def tell(self, addresses: Iterable[str]) -> None:
        """Tell brokers that this client lives; return when they have answered, or after a second.

        Brokers that are known not to answer are told as soon as they are connected again.
        """
        reachable = [
            address for address in addresses if not self._api.connections.is_silent(address)
        ]
        self._lanes.at_each(reachable, self._tell, TELL_MS)

    def tell_again(self, address: str) -> None:
        """Tell a broker that is connected now, if it does not know of this client.

        Come back at once.

        Until it does, other members of a group take this client's queues for nobody's, and what
        operators do with the group is told to nobody. It may never have been told: who has assigned
        queues itself comes to know of brokers by pulling.
        """
        if self._is_untold(address):
            self._lanes.of(address).schedule(lambda: self._tell_untold(address))

    def _is_untold(self, address: str) -> bool:
        return address in self._untold or address not in self.versions

    def forgotten_by(self, address: str) -> None:
        """Note that the connection to a broker has ended, which forgets this client with it."""
        self.versions.pop(address, None)
        self._untold[address] = None

    def _tell_untold(self, address: str) -> None:
        if self._is_untold(address):
            self._tell(address)

    def _tell(self, address: str) -> None:
        self._untold.pop(address, None)  # first: the connection may end again meanwhile
        try:
            self.versions[address] = self._api.heartbeat(address, self._data())
            self._failures.pop(address, None)
        except ClientError as error:
            if self._lanes.is_stopped:  # the client ends, of which brokers are told otherwise
                return
            self._untold[address] = None
            failures = self._failures[address] = self._failures.get(address, 0) + 1
            if failures == 1:
                _log.warning("heartbeat: %s", error)
            if failures <= AGAIN_TIMES_MAX:
                # A member without queues asks this broker for nothing,
                # and would not notice its return.
                self._lanes.of(address).schedule(lambda: self._tell_untold(address), AGAIN_MS)

    def leave(
        self, addresses: Iterable[str], producers: Iterable[str], consumers: Iterable[str]
    ) -> None:
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

    @property
    def thread_count(self) -> int:
        """Number of threads that tell brokers."""
        return self._lanes.thread_count

    def stop(self, wait_ms: int = 0) -> None:
        """Tell brokers nothing any more; wait at most so long for what is under way."""
        self._lanes.stop(wait_ms)

    def _forked(self) -> None:
        """Forget the brokers: they know the parent, and not this process."""
        self._lanes = Lanes("rocketpoll heartbeat")
        self._failures = {}
        self._untold = {}
        self.versions = {}
