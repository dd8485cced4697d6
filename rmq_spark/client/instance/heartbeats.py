"""HeartbeatSender: sends heartbeats with this client's groups to brokers, and unregisters it.

Each broker has an executor of its own that sends in order: a heartbeat that is on its way when the
client leaves a group arrives before the unregistration. A slow broker delays no other.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import Final

from rmq_spark.client.api.broker_api import BrokerApi
from rmq_spark.client.concurrency.fork_hooks import ForkAware
from rmq_spark.client.concurrency.scheduler import PerBrokerExecutor
from rmq_spark.client.errors import ClientError
from rmq_spark.client.failure_log import FailureLog
from rmq_spark.wire.bodies.clients import HeartbeatData

_log = logging.getLogger(__name__)

SEND_WAIT_MS: Final = 1_000
"""Milliseconds to wait for brokers; unfinished requests continue in the background."""

RETRY_MS: Final = 1_000
"""Milliseconds until a heartbeat that failed is sent again."""

RETRIES_MAX: Final = 30
"""Retries at that interval; after that, the heartbeat goes out in the regular rounds."""

_UNREGISTER_TIMEOUT_MS: Final = 500


class HeartbeatSender(ForkAware):
    """Sends the heartbeats of one client. All methods may be called from any thread."""

    def __init__(self, api: BrokerApi, data: Callable[[], HeartbeatData]) -> None:
        """Make a sender; ``data`` returns this client's present id and groups."""
        self._api = api
        self._data = data
        self._after_fork()
        ForkAware.__init__(self)

    def _after_fork(self) -> None:
        """Forget all brokers: they know the parent, and not this process."""
        self._executor = PerBrokerExecutor("rocketpoll heartbeat")
        self._failures: dict[str, int] = {}  # failures since each broker's last heartbeat
        self._failure_log = FailureLog()
        self._unregistered: dict[str, None] = {}  # brokers that do not know of this client
        self._change = 0  # counts the changes of this client's groups
        self._known_changes: dict[str, int] = {}  # the last change that each broker knows
        self.versions: dict[str, int] = {}
        """Version that each broker answered the last heartbeat with, by address."""

    def send(self, addresses: Iterable[str], wait_ms: int = SEND_WAIT_MS) -> None:
        """Send heartbeats to brokers; return when they have answered, or after a second.

        Brokers known to be silent get their heartbeat as soon as they are connected again.
        """
        reachable = [
            address for address in addresses if not self._api.connections.is_silent(address)
        ]
        self._executor.run_for_each(reachable, self._send, wait_ms)

    def on_groups_changed(self) -> None:
        """Note that no broker knows this client's groups as they are now."""
        self._change += 1

    def send_if_outdated(self, addresses: Iterable[str], timeout_ms: int) -> None:
        """Send heartbeats as `send` does, to brokers that do not know the present groups."""
        change = self._change
        outdated = [each for each in addresses if self._known_changes.get(each) != change]
        if outdated:
            self.send(outdated, min(timeout_ms, SEND_WAIT_MS))

    def resend(self, address: str) -> None:
        """Send a heartbeat soon to a broker that is now connected, if it does not know this client.

        Until the broker knows this client, other members of a group treat its queues as unassigned,
        and an operator's changes do not reach it. The broker may never have got a heartbeat: a
        client with assigned queues learns of brokers by pulling.
        """
        if self._is_unregistered_at(address):
            self._executor.for_broker(address).schedule(lambda: self._send_if_unregistered(address))

    def _is_unregistered_at(self, address: str) -> bool:
        return address in self._unregistered or address not in self.versions

    def on_connection_closed(self, address: str) -> None:
        """Note that a connection has ended: its broker has forgotten this client."""
        self.versions.pop(address, None)
        self._known_changes.pop(address, None)
        self._unregistered[address] = None

    def _send_if_unregistered(self, address: str) -> None:
        if self._is_unregistered_at(address):
            self._send(address)

    def _send(self, address: str) -> None:
        change, what = self._change, f"heartbeats to {address}"
        self._unregistered.pop(address, None)  # before sending: the connection may end again
        try:
            self.versions[address] = self._api.heartbeat(address, self._data())
            self._known_changes[address] = change
            self._failures.pop(address, None)
            self._failure_log.record_success(what, time.monotonic())
        except ClientError as error:
            if self._executor.is_stopped:  # the client is ending, and unregisters
                return
            self._unregistered[address] = None
            failures = self._failures[address] = self._failures.get(address, 0) + 1
            self._failure_log.record_failure(what, error, time.monotonic())
            if failures <= RETRIES_MAX:
                # A member without queues asks this broker for nothing,
                # and would not notice its return.
                self._executor.for_broker(address).schedule(
                    lambda: self._send_if_unregistered(address), RETRY_MS
                )

    def unregister(
        self, addresses: Iterable[str], producers: Iterable[str], consumers: Iterable[str]
    ) -> None:
        """Unregister this client from groups; return when all brokers know, or after a second."""
        groups: list[tuple[str | None, str | None]] = [(group, None) for group in producers]
        groups += [(None, group) for group in consumers]
        client_id = self._data().client_id
        deadline = time.monotonic() + SEND_WAIT_MS / 1000

        def leave(address: str) -> None:
            for producer_group, consumer_group in groups:
                if time.monotonic() > deadline:
                    return
                try:
                    self._api.unregister(
                        address, client_id, producer_group, consumer_group, _UNREGISTER_TIMEOUT_MS
                    )
                except ClientError as error:
                    _log.info("unregistering at a broker failed: %s", error)
                    return

        if groups:
            self._executor.run_for_each(addresses, leave, SEND_WAIT_MS)

    @property
    def thread_count(self) -> int:
        """Number of threads that send heartbeats."""
        return self._executor.thread_count

    def stop(self, wait_ms: int = 0) -> None:
        """Stop sending; wait for requests in flight, up to ``wait_ms``."""
        self._executor.stop(wait_ms)
