"""BrokerController: builds the rooms, connects them, starts and stops them in order.

    start   store (which recovers), state tables, processors, timers; the port last
    stop    the port first; no more messages are taken; waiting pulls are answered, sends that wait for the
            disk acknowledged, requests that wait for a file answered; only then connections are closed;
            state tables; the store, which removes its abort file

Everything but housekeeping on files happens on the loop's thread. It is imported by whoever runs a broker,
and by no room; what each room needs is handed to it here.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import threading
import time
from functools import partial
from ipaddress import ip_address
from pathlib import Path

from broker.client_connection import ClientConnection
from broker.config import BrokerConfig
from broker.connection import Connection
from broker.housekeeping import Housekeeping
from broker.longpolling.notify_message_arriving_listener import NotifyMessageArrivingListener
from broker.longpolling.pull_request import PullRequest
from broker.longpolling.pull_request_hold_service import PullRequestHoldService
from broker.loop_turn import LoopTurn
from broker.processor.request import reply
from broker.processor.runtime_info import DiskUsage
from broker.processors import Processors, Surroundings
from broker.schedule.schedule_message_service import ScheduleMessageService
from broker.server import RemotingServer
from broker.state.topic_config import QUEUE_NUMS_MAX
from broker.state_tables import StateTables
from broker.store.disk import Disk, LocalDisk
from broker.store.message_store import MessageStore
from rmq_spark.wire.hosts import Host
from rmq_spark.wire.names import SCHEDULE_TOPIC, topic_fault

_log = logging.getLogger(__name__)
_DELIVERY_CHECK_MAX_MS = 1_000
_ANSWER_SECONDS = 5.0
_REPUT_AGAIN_SECONDS = 1.0
_USUAL_QUEUE_NUMS = 4
"""What Java's producers ask for."""


class BrokerController:
    """One broker, on the loop that calls `start`."""

    def __init__(self, config: BrokerConfig, disk: Disk | None = None) -> None:
        """Touches nothing before it is started."""
        self._config = config
        self._disk = disk or LocalDisk()
        self._is_stopping = False
        self._reput_is_due = False
        self._reput_again: asyncio.TimerHandle | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._delivery: asyncio.TimerHandle | None = None
        self._advertised_address = ip_address(config.broker_ip1).packed if config.broker_ip1 else None
        self.port = 0

    async def start(self) -> int:
        """Recover what is there, and serve; the port.

        Raises:
            StoreError: The directory is in use, or cannot be read. Nothing was changed.
            CannotListen: The port is in use.
        """
        config = self._config
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self.turn = LoopTurn(self._loop)
        self.hold_service = PullRequestHoldService(
            config.holds,
            lambda topic, queue_id: self.store.queue_offsets(topic, queue_id)[1],
            self._is_matched_by_commit_log,
            self._wake,
            self.turn.work,
        )
        listener = NotifyMessageArrivingListener(self.hold_service, self._has_arrived)
        self.store = MessageStore(config.store, self._disk, now_ms, listener, self._wake_reput)
        try:
            await self._open(config)
        except BaseException:
            self.store.shutdown()
            raise
        return self.port

    async def _open(self, config: BrokerConfig) -> None:
        self.tables = StateTables.load(config, self._disk, now_ms)
        self._find_lost_topics()
        self.schedule = ScheduleMessageService(
            self.store,
            self.tables.delay_offset_table,
            config.store.message_delay_level_ms,
            self.store.put_message,
            now_ms,
            self._queue_nums,
        )
        self.tables.warn_of_damage()  # the schedule's is loaded now, too
        self._housekeeping = Housekeeping(
            self._loop, self.turn, config, self.store, self.tables, self.schedule
        )
        self.processors = Processors(
            Surroundings(
                config=config,
                store=self.store,
                tables=self.tables,
                schedule=self.schedule,
                hold_service=self.hold_service,
                loop=self._loop,
                now_ms=now_ms,
                monotonic_ms=self._monotonic_ms,
                advertised_host=self.advertised_host,
                why_busy=self._why_busy,
                suspend=self._suspend,
                work=self.turn.work,
                run_aside=self._housekeeping.run_aside,
                clean=self._housekeeping.clean,
                disk_usage=partial(_disk_usage, config.store.store_path_root_dir),
                memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            )
        )
        self.server = RemotingServer(
            config.server,
            self.processors.dispatch,
            self._client_has_gone,
            self.turn,
            self.processors.end_turn,
        )
        self.tables.save_configurations()
        self.port = await self.server.start(config.bind_address, config.listen_port)
        self._housekeeping.start(self.hold_service, self.processors)
        self._deliver()

    async def stop(self) -> None:
        """End in order: nobody is left without an answer, nothing that was acknowledged is lost."""
        if self._is_stopping:
            return
        self._is_stopping = True
        self.server.stop_listening()
        self.store.take_no_more("the broker is stopping")
        for timer in (self._delivery, self._deadline, self._reput_again):
            if timer is not None:
                timer.cancel()
        self.hold_service.release_all()
        await self.processors.acknowledger.settled(_ANSWER_SECONDS)
        await self._housekeeping.settled(_ANSWER_SECONDS)
        await self.server.stop()
        await self._housekeeping.stop()
        try:
            self.tables.save()
            self.schedule.save()
        finally:
            self.store.shutdown()

    def _find_lost_topics(self) -> None:
        """A send's topic is saved within a second: one that a crash took before is told by its messages."""
        topics = self.tables.topics
        for topic, queue_nums in self.store.queue_nums().items():
            if topics.get(topic) is None and topic_fault(topic) is None:
                _log.warning("the topic %s was not saved and is made again for its messages", topic)
                likely = min(_USUAL_QUEUE_NUMS, self._config.default_topic_queue_nums)
                topics.create_in_send_back(topic, min(max(queue_nums, likely), QUEUE_NUMS_MAX))

    # ---- requests

    def advertised_host(self, connection: Connection) -> Host:
        """Where a client is to find this broker: at the address that it has dialled, or a fixed one."""
        if self._advertised_address is None:
            return connection.local_host
        return Host(self._advertised_address, self.port)

    def _client_has_gone(self, connection: ClientConnection) -> None:
        self.hold_service.forget(connection)
        self.processors.client_has_gone(connection)

    def _why_busy(self) -> str | None:
        """Why no messages are taken now, if so."""
        if self.server.is_short_of_memory:
            return (
                f"[REJECTREQUEST]system busy, requests of {self.server.in_flight_bytes} bytes are in flight"
            )
        return self.processors.acknowledger.why_busy()

    # ---- arrivals

    def _wake_reput(self) -> None:
        """Something can be carried to its queues; told in any thread, done once, at the end of a turn."""
        if threading.get_ident() == self._thread:
            self._plan_reput()
        else:
            self._loop.call_soon_threadsafe(self._plan_reput)

    def _plan_reput(self) -> None:
        if not self._reput_is_due:
            self._reput_is_due = True
            self._loop.call_soon(self._begin_reput)

    def _begin_reput(self) -> None:
        self._reput_is_due = False
        self.turn.begin(self._reput)

    def _reput(self, until: float) -> bool:
        """Carry on as long as there is time; whether nothing is left that could be carried now."""
        is_done = self.store.reput(lambda: self._loop.time() >= until)
        hindrance = None if is_done else self.store.state().hindrance
        if hindrance is not None and self._reput_again is None:
            _log.warning("%s; tried again until there is", hindrance)
        if self._reput_again is not None:
            self._reput_again.cancel()
        is_hindered = hindrance is not None
        self._reput_again = (
            self._loop.call_later(_REPUT_AGAIN_SECONDS, self._plan_reput) if is_hindered else None
        )
        return is_done or is_hindered

    def _has_arrived(self, topic: str, queue_id: int) -> None:
        if topic == SCHEDULE_TOPIC and not self._is_stopping:
            self.schedule.arrived(queue_id)
            self._plan_delivery(0)

    # ---- waiting pulls

    def _suspend(self, held: PullRequest) -> bool:
        if self._is_stopping or not self.hold_service.suspend_pull_request(held):
            return False
        self._plan_deadline()
        return True

    def _plan_deadline(self) -> None:
        """One timer, for the next of all deadlines; one that comes too early does no harm."""
        next_ms = self.hold_service.next_deadline_ms
        if next_ms is None:
            return
        if self._deadline is None or next_ms / 1000 < self._deadline.when():
            if self._deadline is not None:
                self._deadline.cancel()
            self._deadline = self._loop.call_at(next_ms / 1000, self._expire, next_ms)

    def _expire(self, deadline_ms: int) -> None:
        self._deadline = None
        self.hold_service.expire(max(deadline_ms, self._monotonic_ms()))
        self._plan_deadline()

    def _is_matched_by_commit_log(self, held: PullRequest, from_queue_offset: int) -> bool:
        return self.processors.pull.is_matched_by_commit_log(held, from_queue_offset)

    def _wake(self, held: PullRequest) -> None:
        answer = self.processors.replay(held)
        if answer is not None:
            reply(held.connection, held.request, answer)

    # ---- delayed messages

    def _deliver(self) -> None:
        self._delivery = None
        try:
            wait_ms = self.schedule.deliver_due()
        except Exception:  # noqa: BLE001  # whatever it is, the others must not wait for ever
            _log.exception("delivering delayed messages failed, and is tried again")
            wait_ms = _DELIVERY_CHECK_MAX_MS
        if wait_ms is not None:
            self._plan_delivery(wait_ms)

    def _queue_nums(self, topic: str) -> int:
        config = self.tables.topics.get(topic)
        return config.write_queue_nums if config is not None else 0

    def _plan_delivery(self, wait_ms: int) -> None:
        """Looked at once a second at least: the time of day may jump."""
        at = self._loop.time() + min(max(wait_ms, 0), _DELIVERY_CHECK_MAX_MS) / 1000
        if self._delivery is None or at < self._delivery.when():
            if self._delivery is not None:
                self._delivery.cancel()
            self._delivery = self._loop.call_at(at, self._deliver)

    def _monotonic_ms(self) -> int:
        return int(self._loop.time() * 1000)


def _disk_usage(directory: Path) -> DiskUsage:
    return DiskUsage(*shutil.disk_usage(directory))


def now_ms() -> int:
    """The time of day."""
    return time.time_ns() // 1_000_000
