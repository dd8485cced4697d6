"""BrokerController: builds a broker's parts, connects them, starts and stops them in order.

    start   store (with recovery), state tables, processors, timers; then the port, then metrics
    stop    close the port; accept no more messages; answer held pulls, acknowledge sends that
            wait for the disk, finish the commit of a batch, answer requests that wait for a file;
            then close connections; save state tables; close the store, which removes its abort
            file

Everything except file housekeeping runs on the event loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import threading
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from dataclasses import replace
from functools import partial
from ipaddress import ip_address
from typing import TYPE_CHECKING

from rmq_spark.wire.message.hosts import Host
from rmq_spark.wire.names import SCHEDULE_TOPIC, TIMER_TOPIC, revive_topic

from .auth.access_control import AccessControl
from .common.channel import Channel
from .common.histogram import Histogram
from .common.recent_losses import LossKind
from .longpolling.pop_request import PopWaiters
from .longpolling.pull_request import PullRequest
from .longpolling.pull_request_hold_service import (
    NotifyMessageArrivingListener,
    PullRequestHoldService,
)
from .pop.ack_barrier import AckBarrier
from .pop.pop_counters import PopCounters
from .pop.pop_revive_service import PopReviveService, ReviveRules
from .pop.revive_log import ReviveLog
from .processor.clients.client_manage import NotifyConsumerIdsChanged
from .processor.processor import BrokerParts
from .processor.reply_after_save import ReplyAfterSave
from .processor.request import reply
from .runtime.access_setup import AccessSetup
from .runtime.deletion_log import DeletionLog
from .runtime.housekeeping import Housekeeping
from .runtime.name_server_connection import NameServerConnection
from .runtime.name_server_registration import NameServerRegistration, RegisteredBroker
from .runtime.processors import Processors
from .runtime.state_tables import StateTables
from .runtime.table_reconciliation import TableReconciliation
from .schedule.real_topic_delivery import RealTopicDelivery
from .schedule.schedule_message_service import ScheduleMessageService, StartTime
from .schedule.timer_files import TimerFiles
from .schedule.timer_message import TimerRules, rounded_precision
from .schedule.timer_message_store import TimerMessageStore
from .server.client_connection import ClientConnection
from .server.event_loop import DueJob, EarliestTimer, monotonic_ms
from .server.fair_scheduler import FairScheduler
from .server.server import CannotListen, RemotingServer
from .server.tls.server_tls import ServerTls
from .settings.config import BrokerConfig
from .settings.settings import Reload, plan_reload
from .state.broker_stats import BrokerStats
from .state.members.client_channel_info import MembershipLimits
from .state.members.consumers import ConsumerManager
from .state.members.producers import ProducerManager
from .state.members.queue_locks import QueueLocks
from .store.config import BrokerRole
from .store.errors import StoreError, TransientFailure, describe_error, is_transient
from .store.files.disk import DiskUsage, LocalDisk
from .store.message_store import MessageStore
from .store.results import DeletedFiles
from .store.startup.opener import ProgressCallback
from .transaction.transactional_message_service import CheckRules, TransactionalMessageService

if TYPE_CHECKING:
    from .metrics.metrics_service import MetricsService

_log = logging.getLogger(__name__)
_HOUR_MS = 3_600_000
_DRAIN_SECONDS = 5.0
_LOOPBACK = bytes([127, 0, 0, 1])
_VIP_PORT_DISTANCE = 2
"""RocketMQ's clients hard-code that the VIP channel's port is this far below the broker's."""


def time_of_day_ms() -> int:
    """Return the time of day by the machine's clock, in milliseconds."""
    return time.time_ns() // 1_000_000


class BrokerController:
    """One broker, on the loop that calls `start`."""

    def __init__(
        self,
        config: BrokerConfig,
        disk: LocalDisk | None = None,
        now_ms: Callable[[], int] = time_of_day_ms,
        random_bytes: Callable[[int], bytes] = os.urandom,
        watch_opening: ProgressCallback | None = None,
    ) -> None:
        """Prepare a broker without side effects; the time of day of ``now_ms`` may jump."""
        self._watch_opening = watch_opening
        self._config = config
        self._disk = disk or LocalDisk()
        self._now_ms = now_ms
        self._random_bytes = random_bytes
        self._revive_topic = revive_topic(config.broker_cluster_name)
        self._is_stopping = False
        self._reput_is_due = False
        self._advertised_address = (
            ip_address(config.broker_ip1).packed if config.broker_ip1 else None
        )
        self._reput_latency = Histogram()
        self.access = AccessControl(cluster=config.broker_cluster_name)
        self._metrics: MetricsService | None = None
        self._registration: NameServerRegistration | None = None
        self.opening_seconds = 0.0
        self.port = 0
        self.vip_port: int | None = None
        self.metrics_port: int | None = None

    async def start(self) -> int:
        """Recover the store, start to serve, and return the port.

        Raises:
            StoreError: The directory is in use, or cannot be read. Nothing was changed.
            StartInterrupted: ``watch_opening`` interrupted the start.
            CannotListen: The port is in use.
            TlsFileRejected: A certificate or key is invalid.
        """
        config = self._config
        self._loop = asyncio.get_running_loop()
        self.tls = ServerTls(config.tls, lambda: self._now_ms() / 1_000, self._loop.time)
        self._thread = threading.get_ident()
        self._deadline = EarliestTimer(self._loop, self._expire)
        self.scheduler = FairScheduler(self._loop)
        self.hold_service = PullRequestHoldService(
            config.holds,
            lambda topic, queue_id: (
                self.store.queue_offsets(topic, queue_id, allow_incomplete=True).next
            ),
            lambda *held: self.processors.pull.is_matched_by_commit_log(*held),  # noqa: PLW0108  # created later
            self._wake,
            self.scheduler.run_steps,
        )
        self.pop_waiters = PopWaiters(
            self.hold_service.notify_message_arriving, self.hold_service.waiting
        )
        listener = NotifyMessageArrivingListener(self.hold_service, self._message_arrived)
        started_at = time.perf_counter()
        self.store = MessageStore(
            config.store,
            self._disk,
            self._now_ms,
            listener,
            self._wake_reput,
            self._random_bytes,
            self._watch_opening,
        )
        self.opening_seconds = time.perf_counter() - started_at
        try:
            await self._open(config)
        except BaseException:
            if self._metrics is not None:
                self._metrics.stop()
            self.store.shutdown()
            raise
        return self.port

    async def _open(self, config: BrokerConfig) -> None:
        self.tables = StateTables.load(
            config,
            self._disk,
            self._now_ms,
            self._make_log_durable,
            lambda: self.store.half_deleted_topics,
            self.store.finish_deletion,
        )
        self.access_setup = AccessSetup(config, self._disk, self.tables, self._loop, self.access)
        self._reconciliation = TableReconciliation(
            self.store, self.tables, config.default_topic_queue_nums
        )
        self._reconciliation.reconcile_at_start()
        self.schedule = ScheduleMessageService(
            store=self.store,
            table=self.tables.delay_offset_table,
            levels_ms=config.store.message_delay_level_ms,
            delivery=self._real_topic_delivery(LossKind.DELAYED_MESSAGE),
            start=StartTime(self._now_ms(), self._monotonic_ms()),
        )
        self.transactions = self._transactional_message_service(config)
        self.timers = self._open_timers(config)
        # the schedule's table is loaded by now
        self._reconciliation.log_warnings(config.store)
        self.deletion_log = DeletionLog(
            lambda: self._config.store,
            self.tables.offsets,
            lambda: self.schedule.offsets().offset_table,
            self.store.losses,
        )
        self.store.cleaner.on_deleted = self._report_deletion
        self.housekeeping = Housekeeping(
            loop=self._loop,
            scheduler=self.scheduler,
            config=config,
            store=self.store,
            tables=self.tables,
            schedule=self.schedule,
            timers=self.timers,
        )
        self.processors = Processors(
            self._parts(config),
            self._real_topic_delivery(LossKind.HALF_MESSAGE),
            random.Random(self._random_bytes(8)).randrange,  # noqa: S311  # picks the first queue
        )
        self.revive = self._revive_service(config)
        self._create_due_jobs()
        self.server = RemotingServer(
            config.server,
            self.processors.dispatch,
            self._connection_closed,
            self.scheduler,
            self.processors.end_turn,
            self.processors.fast_paths,
            self.tls,
        )
        try:
            self.tables.save_configurations()
        except OSError as error:
            if not is_transient(error):
                raise
            _log.warning("saving configurations failed, retrying: %s", error)
        if config.metrics_port is not None:
            await self._open_metrics(config.metrics_host, config.metrics_port)
        self.port = await self.server.start(config.bind_address, config.listen_port)
        await self._open_vip_channel(config)
        self._start_jobs(config)

    def _create_due_jobs(self) -> None:
        self._delivery = DueJob(
            self._loop, self.schedule.deliver_due, "delayed messages are not delivered"
        )
        self._checks = DueJob(
            self._loop,
            self.transactions.check,
            "half messages of transactions are not checked",
            has_deadline=lambda: self.transactions.pending_count > 0,
        )
        self._timer = DueJob(
            self._loop, self.timers.deliver_due, "timer messages are not delivered"
        )
        self._revival = DueJob(
            self._loop, self.revive.revive_due, "popped messages are not redelivered"
        )

    def _start_jobs(self, config: BrokerConfig) -> None:
        self.housekeeping.start(
            self.hold_service,
            self.processors,
            on_opened=self._reconciliation.reconcile_complete_queues,
            log_expiry=self.tls.log_expiry,
            reload_access=self.access_setup.reload,
        )
        self._delivery.schedule()
        self._checks.schedule()
        if config.store.broker_role is not BrokerRole.SLAVE:
            self._timer.schedule()
            self._revival.schedule()
        if config.namesrv_addr:
            self._registration = self._register(config)

    def _register(self, config: BrokerConfig) -> NameServerRegistration:
        host = Host(self._advertised_address or ip_address(config.bind_address).packed, self.port)
        registration = NameServerRegistration(
            RegisteredBroker(
                cluster=config.broker_cluster_name,
                name=config.broker_name,
                address=str(host),
                ha_address=str(host._replace(port=self.port + 1)),
                permission=config.broker_permission,
                is_compressed=config.compressed_register,
            ),
            [
                NameServerConnection(address, config.register_broker_timeout_ms / 1_000)
                for address in config.namesrv_addr
            ],
            lambda: self.tables.topics.saved,
            config.register_name_server_period_ms / 1_000,
            self._loop,
            self.housekeeping.run_in_network_thread,
        )
        self.tables.topics.on_saved = partial(self._topics_saved, registration)
        registration.start()
        return registration

    def _topics_saved(self, registration: NameServerRegistration) -> None:
        with suppress(RuntimeError):  # the loop is closed: the broker has stopped
            self._loop.call_soon_threadsafe(registration.topics_saved)

    def _transactional_message_service(self, config: BrokerConfig) -> TransactionalMessageService:
        return TransactionalMessageService(
            store=self.store,
            offsets=self.tables.offsets,
            rules=CheckRules(
                timeout_ms=config.transaction_timeout_ms,
                interval_ms=config.transaction_check_interval_ms,
                checks_max=config.transaction_check_max,
                reserved_hours=lambda: self.store.cleaner.config.file_reserved_time_hours,
            ),
            when_stored=lambda *stored: self.processors.acknowledger.when_stored(*stored),  # noqa: PLW0108  # created later
            is_topic_ready=self._is_system_topic_saved,
            send_check=lambda half: self.processors.transactions.send_check(half),  # noqa: PLW0108  # created later
            now_ms=self._now_ms,
            start=StartTime(self._now_ms(), self._monotonic_ms()),
            losses=self.store.losses,
        )

    def _is_system_topic_saved(self, topic: str) -> bool:
        """Create a system topic with one queue, and return whether it is saved."""
        topics = self.tables.topics
        return topics.is_saved(topics.create_in_send_back(topic, 1))

    def _open_timers(self, config: BrokerConfig) -> TimerMessageStore:
        store_config = config.store
        delivery = self._real_topic_delivery(LossKind.TIMER_MESSAGE)
        rules = TimerRules(
            rounded_precision(store_config.timer_precision_ms),
            store_config.timer_max_delay_seconds * 1_000,
        )
        files = TimerFiles(
            self._disk,
            store_config.store_path_root_dir,
            rules.precision_ms,
            store_config.mapped_file_size_timer_log,
            delivery.flush,
            lambda: self.store.state().min_offset,
        )
        window_ms = store_config.timer_roll_window_slots * rules.precision_ms
        return TimerMessageStore(
            store=self.store,
            files=files,
            rules=rules,
            delivery=delivery,
            now_ms=self._now_ms,
            monotonic_ms=self._monotonic_ms,
            # half of the minimum time for which a file of the log is kept
            roll_window_ms=lambda: min(
                window_ms, self.store.cleaner.config.file_reserved_time_hours * _HOUR_MS // 2
            ),
        )

    async def _open_vip_channel(self, config: BrokerConfig) -> None:
        """Listen two ports below, where clients up to 4.4 and RocketMQ's dashboard connect."""
        port = config.listen_port - _VIP_PORT_DISTANCE
        if not config.vip_channel_enable or port <= 0:
            return
        try:
            self.vip_port = await self.server.listen(config.bind_address, port)
        except CannotListen as error:
            _log.warning(
                "VIP channel of clients up to 4.4: cannot listen on %s:%d: %s. Free the port, or "
                "set vipChannelEnable=false",
                config.bind_address,
                port,
                error.why,
            )

    async def stop(self) -> str | None:
        """Stop cleanly: answer every request and lose no acknowledged message.

        Returns:
            What could not be saved, and why; None if everything was saved.
        """
        if self._is_stopping:
            return None
        self._is_stopping = True
        for job in (self._delivery, self._checks, self._timer, self._revival):
            job.cancel()
        if self._registration is not None:
            await self._registration.stop()
        # Metrics are served to the end, and report that the broker is stopping.
        self.server.stop_listening()
        self.store.stop_accepting("the broker is stopping")
        self.processors.order_releases.cancel()
        self._deadline.cancel()
        self.hold_service.release_all()
        self.processors.pending_sends.refuse_all("the broker is stopping")
        await self.processors.acknowledger.drain(_DRAIN_SECONDS)
        await self._drain_batches(_DRAIN_SECONDS)
        await self.housekeeping.drain(_DRAIN_SECONDS)
        await self.server.stop()
        await self.housekeeping.stop()
        with suppress(StoreError):  # the store logs the error when it closes
            # Wait even for a slow disk, because messages past an unsaved offset are delivered
            # again.
            self.store.wait_flushed()
        unsaved: list[str] = []
        try:
            self.transactions.save_final()
            self.tables.save()
            self.schedule.save_final()
            self.timers.save_final(self._monotonic_ms())
        except (OSError, TransientFailure) as error:
            if isinstance(error, OSError) and not is_transient(error):
                raise
            why = describe_error(error)
            unsaved.append(f"changed configurations and offsets are not saved: {why}")
        finally:
            if self._metrics is not None:
                self._metrics.stop()
            self.timers.close()
            of_store = self.store.shutdown()
        if of_store is not None:
            unsaved.append(of_store)
        return "; ".join(unsaved) or None

    async def _drain_batches(self, seconds: float) -> None:
        """Wait for running commits; the next start rolls back a commit that takes longer."""
        until = self._loop.time() + seconds
        while (under_way := self.store.staged_batches.under_way) and self._loop.time() < until:
            ended = asyncio.wrap_future(under_way)
            await asyncio.wait([ended], timeout=until - self._loop.time())

    def reload(self, config: BrokerConfig) -> Reload:
        """Apply the reloadable settings of a new configuration; return the changes.

        Certificates and plain_acl.yml are read again, too.
        """
        self.housekeeping.reload_access_lists()
        config = replace(config, tls=self.tls.reload(config.tls))
        reload = plan_reload(self._config, config)
        self._config = current = reload.config
        self.server.limits = current.server
        self.store.cleaner.config = current.store
        tables = self.tables
        tables.topics.max_topics, tables.topics.max_queues = current.max_topics, current.max_queues
        tables.groups.max_groups = current.max_groups
        tables.offsets.max_offsets = current.max_consumer_offsets
        return reload

    def disk_usage(self) -> DiskUsage:
        """Return the usage of the disk that holds the store."""
        return self._disk.usage(self._config.store.store_path_root_dir)

    def descriptors(self) -> list[int]:
        """Return the descriptors of all sockets, which a forked child has to close."""
        metrics = self._metrics.descriptors() if self._metrics is not None else []
        servers = [] if self._registration is None else self._registration.descriptors()
        return [*self.server.descriptors(), *(each for each in (*metrics, *servers) if each >= 0)]

    def unready_reason(self) -> str | None:
        """Return why messages are not accepted now; None if they are, or on a slave."""
        if self._is_stopping:
            return "the broker is stopping"
        if not self.port:
            return "the broker is starting"
        if self._config.store.broker_role is BrokerRole.SLAVE:
            return self.store.state().failure
        return self.store.unavailable_reason() or self.store.state().unwritable_reason

    async def _open_metrics(self, host: str, port: int) -> None:
        # These imports take some 50 ms, which a broker without metrics avoids.
        from .metrics.metrics_service import MetricsService  # noqa: PLC0415  # only with metricsPort
        from .metrics.sources import MetricsSources  # noqa: PLC0415  # only with metricsPort

        observed = MetricsSources(
            broker=self.processors.broker,
            processors=self.processors,
            revive=self.revive,
            server=self.server,
            reput_latency=self._reput_latency,
            deletion_log=self.deletion_log,
            unready_reason=self.unready_reason,
            registrations=lambda: () if self._registration is None else self._registration.states(),
            started_ms=self._now_ms(),
        )
        metrics = MetricsService(observed, self._loop, self.scheduler.run_steps)
        self.metrics_port = await metrics.start(host, port)
        self._metrics = metrics

    def _report_deletion(self, deleted: DeletedFiles) -> None:
        """Report a deletion on the loop, which owns the offsets; callable from any thread."""
        with suppress(RuntimeError):  # the loop is closed: the broker has stopped
            self._loop.call_soon_threadsafe(self.deletion_log.report, deleted)

    def _make_log_durable(self) -> None:
        """Flush all visible messages; blocks, so it must not run on the loop's thread."""
        visible = self.store.confirm_offset()
        state = self.store.state()
        if visible > state.flushed_offset and state.failure is None:
            try:
                self.store.flush_future(visible).result(_DRAIN_SECONDS)
            except FutureTimeoutError:
                raise TransientFailure(f"a flush takes longer than {_DRAIN_SECONDS} s") from None

    def _parts(self, config: BrokerConfig) -> BrokerParts:
        limits = MembershipLimits(
            members_max=config.max_group_members,
            subscription_bytes_max=config.subscription_bytes_max,
        )
        notify = NotifyConsumerIdsChanged(self.tables.groups, self.scheduler.run_steps)
        return BrokerParts(
            current_config=lambda: self._config,
            access=self.access,
            store=self.store,
            topics=self.tables.topics,
            groups=self.tables.groups,
            offsets=self.tables.offsets,
            kv_configs=self.tables.kv_configs,
            users=self.tables.users,
            acls=self.tables.acls,
            consumers=ConsumerManager(notify, limits),
            producers=ProducerManager(limits),
            locks=QueueLocks(self._monotonic_ms),
            stats=BrokerStats(config.broker_cluster_name, self._now_ms()),
            schedule=self.schedule,
            transactions=self.transactions,
            timers=self.timers,
            hold_service=self.hold_service,
            pop_waiters=self.pop_waiters,
            pop_counters=PopCounters(self._now_ms()),
            revive_log=ReviveLog(
                store=self.store,
                topic=self._revive_topic,
                queue_nums=self.tables.topics.read_queue_nums(self._revive_topic),
                rules=self.timers.rules,
                now_ms=self._now_ms,
                host=Host(self._advertised_address or _LOOPBACK, config.listen_port),
            ),
            order_info=self.tables.order_info,
            request_modes=self.tables.request_modes,
            reply_after_save=ReplyAfterSave(self.housekeeping.run_in_thread),
            loop=self._loop,
            now_ms=self._now_ms,
            monotonic_ms=self._monotonic_ms,
            advertised_host=self.advertised_host,
            busy_reason=self._busy_reason,
            suspend=self._suspend,
            run_steps=self.scheduler.run_steps,
            run_in_thread=self.housekeeping.run_in_thread,
            run_in_batch_thread=self.housekeeping.run_in_batch_thread,
            clean=self.housekeeping.clean,
            losses=self.store.losses,
            refusals=self._refusals,
            disk_usage=self.disk_usage,
            memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        )

    def _revive_service(self, config: BrokerConfig) -> PopReviveService:
        tables = self.tables
        return PopReviveService(
            store=self.store,
            offsets=tables.offsets,
            topics=tables.topics,
            groups=tables.groups,
            delivery=self._real_topic_delivery(LossKind.POPPED_MESSAGE),
            barrier=AckBarrier(self.store, self.timers, self._monotonic_ms()),
            when_stored=self.processors.acknowledger.when_stored,
            counters=self.processors.broker.pop_counters,
            rules=ReviveRules(
                topic=self._revive_topic,
                queue_nums=tables.topics.read_queue_nums(self._revive_topic),
                broker_name=config.broker_name,
                retry_topic_v2=config.pop.retry_topic_v2,
            ),
        )

    # ---- requests

    def advertised_host(self, connection: Channel) -> Host:
        """Return this broker's address for a client: the one it connected to, or brokerIP1.

        The port is always the main one, so that the id of a message sent through the VIP channel
        works for every client.
        """
        return Host(self._advertised_address or connection.local_host.address, self.port)

    def _refusals(self) -> Mapping[str, int]:
        return {
            "requestsRefused": self.processors.dispatch.refused.total(),
            "clientsRefused": self.server.refused.total(),
            "connectionsCut": self.server.closed_by_broker,
        }

    def _connection_closed(self, connection: ClientConnection) -> None:
        self.hold_service.discard(connection)
        self.processors.connection_closed(connection)

    def _busy_reason(self) -> str | None:
        if self.server.is_overloaded:
            return (
                f"[REJECTREQUEST]system busy, requests of {self.server.waiting_bytes} bytes wait "
                "for their turn"
            )
        return self.processors.acknowledger.busy_reason()

    # ---- arrivals

    def _wake_reput(self) -> None:
        """Make reput run once at the end of a turn; callable from any thread."""
        if threading.get_ident() == self._thread:
            self._schedule_reput()
        else:
            self._loop.call_soon_threadsafe(self._schedule_reput)

    def _schedule_reput(self) -> None:
        if not self._reput_is_due:
            self._loop.call_soon(self._start_reput)
            self._reput_is_due = True

    def _start_reput(self) -> None:
        self._reput_is_due = False
        # Senders have their responses already, so their messages bypass the queue.
        self.scheduler.run(self._reput, at_once=True)

    def _reput(self, until: float) -> bool:
        """Run reput until a time; return whether it has caught up, or waits for a shortage."""
        started_at = time.perf_counter()
        is_done = self.store.reput(lambda: self._loop.time() >= until)
        self._reput_latency.add(time.perf_counter() - started_at)
        return is_done or self.store.is_reput_degraded

    def _message_arrived(
        self, topic: str, queue_id: int, tags_codes: Collection[int] | None
    ) -> None:
        self.pop_waiters.arriving(topic, queue_id, tags_codes)
        if self._is_stopping:
            return
        if topic == SCHEDULE_TOPIC:
            self.schedule.record_arrival(queue_id, self._monotonic_ms())
            self._delivery.schedule()
        elif topic == TIMER_TOPIC:
            self.timers.record_arrival()
            self._timer.schedule()
        elif topic == self._revive_topic:
            self._revival.schedule()

    # ---- held pulls

    def _suspend(self, held: PullRequest) -> bool:
        if self._is_stopping or not self.hold_service.suspend_pull_request(held):
            return False
        self._schedule_deadline()
        return True

    def _schedule_deadline(self) -> None:
        """Schedule the one timer for the earliest deadline; firing too early does no harm."""
        next_ms = self.hold_service.next_deadline_ms
        if next_ms is not None:
            self._deadline.schedule(next_ms)

    def _expire(self, now_ms: int) -> None:
        self.hold_service.expire(now_ms)
        self._schedule_deadline()

    def _wake(self, held: PullRequest) -> None:
        response = self.processors.replay(held)
        if response is not None:
            reply(held.connection, held.request, response)

    # ---- delayed messages, timers, half messages

    def _real_topic_delivery(self, kind: LossKind) -> RealTopicDelivery:
        return RealTopicDelivery(
            store=self.store,
            queue_nums=self._queue_nums,
            recreate_topic=self._reconciliation.recreate_topic,
            kind=kind,
            losses=self.store.losses,
        )

    def schedule_transaction_checks(self) -> None:
        """Schedule a check of half messages."""
        self._checks.schedule()

    def _queue_nums(self, topic: str) -> int | None:
        config = self.tables.topics.get(topic)
        if config is None:
            return 0
        return config.write_queue_nums if topic not in self.tables.topics.deleting else None

    def _monotonic_ms(self) -> int:
        return monotonic_ms(self._loop)
