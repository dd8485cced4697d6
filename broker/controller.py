"""BrokerController: builds the rooms, connects them, starts and stops them in order.

    start   state tables, store (which recovers), processors, timers; the port last
    stop    the port first; waiting pulls are answered; sends that wait for the disk are acknowledged;
            connections; state tables; the store, which removes its abort file

Everything but housekeeping on files happens on the loop's thread. It is imported by whoever runs a broker,
and by no room; what each room needs is handed to it here.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from ipaddress import ip_address

from broker.client_connection import ClientConnection
from broker.config import BrokerConfig
from broker.connection import Connection
from broker.longpolling.notify_message_arriving_listener import NotifyMessageArrivingListener
from broker.longpolling.pull_request import PullRequest
from broker.longpolling.pull_request_hold_service import PullRequestHoldService
from broker.processors import Processors
from broker.schedule.schedule_message_service import ScheduleMessageService
from broker.server import RemotingServer
from broker.state_tables import StateTables
from broker.store.commit_log import FULL
from broker.store.disk import Disk, LocalDisk
from broker.store.dispatch import SCHEDULE_TOPIC
from broker.store.message_store import MessageStore
from rmq_spark.wire.hosts import Host

_log = logging.getLogger(__name__)
_HOLD_SWEEP_MS = 5_000
_STATS_SAMPLE_MS = 10_000
_CLIENT_SCAN_MS = 10_000
_DELIVERY_CHECK_MAX_MS = 1_000
_ACKNOWLEDGE_SECONDS = 5.0


class BrokerController:
    """One broker, on the loop that calls `start`."""

    def __init__(self, config: BrokerConfig, disk: Disk | None = None) -> None:
        """Touches nothing before it is started."""
        self._config = config
        self._disk = disk or LocalDisk()
        self._is_stopping = False
        self._reput_is_due = False
        self._delivery: asyncio.TimerHandle | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self.port = 0

    # ---- life

    async def start(self) -> int:
        """Recover what is there, and serve; the port.

        Raises:
            StoreError: The directory is in use, or not to be read. Nothing was changed.
            CannotListen: The port is in use.
        """
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._housekeeper = ThreadPoolExecutor(1, "BrokerHousekeeping")
        config = self._config
        self.hold_service = PullRequestHoldService(
            config.holds, self._max_offset_in_queue, self._is_matched_by_commit_log, self._wake
        )
        listener = NotifyMessageArrivingListener(self.hold_service, self._has_arrived)
        self.store = MessageStore(config.store, self._disk, _now_ms, listener, self._wake_reput)
        try:
            self.tables = StateTables.load(config, self._disk, _now_ms)
            self.schedule = ScheduleMessageService(
                self.store,
                self.tables.delay_offset_table,
                config.store.message_delay_level_ms,
                self.store.put_message,
                _now_ms,
            )
            self.server = RemotingServer(config.server, self._dispatch, self._client_has_gone)
            self.processors = Processors(self)
            self.port = await self.server.start(config.bind_address, config.listen_port)
        except BaseException:
            self.store.shutdown()
            self._housekeeper.shutdown()
            raise
        self._start_timers()
        self._deliver()
        return self.port

    async def stop(self) -> None:
        """End in order: nobody is left without an answer, nothing that was acknowledged is lost."""
        self._is_stopping = True
        self.server.stop_listening()
        for timer in (*self._timers.values(), self._delivery, self._deadline):
            if timer is not None:
                timer.cancel()
        self.hold_service.release_all()
        deadline = self._loop.time() + _ACKNOWLEDGE_SECONDS
        while self.processors.acknowledger.waiting and self._loop.time() < deadline:
            await asyncio.sleep(0.001)
        await self.server.stop()
        await self._loop.run_in_executor(self._housekeeper, self._save_and_close)
        self._housekeeper.shutdown()

    def _save_and_close(self) -> None:
        try:
            self.tables.save()
            self.schedule.save()
        finally:
            self.store.shutdown()

    # ---- requests

    def _dispatch(self, connection: Connection, request: RemotingCommand) -> RemotingCommand | None:
        return self.processors.dispatch(connection, request)

    def advertised_host(self, connection: Connection) -> Host:
        """Where a client is to find this broker: at the address that it has dialled, or a fixed one."""
        if self._fixed_address is not None:
            return Host(self._fixed_address, self.port)
        return connection.local_host

    def why_busy(self) -> str | None:
        """Why no sends are taken now, if so."""
        if self.server.is_short_of_memory:
            return f"[REJECTREQUEST]system busy, {self.server.in_flight_bytes} bytes are in flight"
        return self.processors.acknowledger.why_busy()

    def _client_has_gone(self, connection: ClientConnection) -> None:
        self.hold_service.forget(connection)
        self.processors.client_has_gone(connection)
