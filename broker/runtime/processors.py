"""Processors: every family of requests, built from what the broker has, behind one dispatcher."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from rmq_spark.wire.command import RemotingCommand
from rmq_spark.wire.hosts import Host

from ..common.connection import Connection, Steps, Work
from ..longpolling.pull_request import PullRequest
from ..longpolling.pull_request_hold_service import PullRequestHoldService
from ..processor.admin.broker_admin import BrokerAdminProcessor
from ..processor.admin.runtime_info import RuntimeInfo
from ..processor.clients.client_manage import ClientManageProcessor, NotifyConsumerIdsChanged
from ..processor.clients.client_relay import ClientRelayProcessor
from ..processor.clients.pending_replies import AwaitedAnswers
from ..processor.clients.reply_message import ReplyMessageProcessor
from ..processor.dispatcher import RequestDispatcher
from ..processor.extensions.negotiation import ExtensionsProcessor
from ..processor.extensions.staged_batches import StagedBatchesProcessor
from ..processor.groups.consume_stats import ConsumeStatsProcessor
from ..processor.groups.consumer_group import ConsumerGroupProcessor
from ..processor.groups.consumer_offset import ConsumerOffsetProcessor, IsYoung
from ..processor.groups.group_admin import GroupAdminProcessor
from ..processor.groups.group_offsets import GroupOffsetsProcessor
from ..processor.pulls.fast_pull import PullLane
from ..processor.pulls.pull_message import PullMessageProcessor
from ..processor.pulls.query_consume_queue import QueryConsumeQueueProcessor
from ..processor.pulls.query_message import QueryMessageProcessor
from ..processor.pulls.subscription_filters import SubscriptionFilters
from ..processor.reply_after_save import AfterSaving
from ..processor.request import Handlers
from ..processor.sends.acknowledger import Acknowledger
from ..processor.sends.admission import TopicAdmission
from ..processor.sends.message_back import MessageBackProcessor
from ..processor.sends.pending_topic_sends import ParkedSends
from ..processor.sends.retry_rules import RetryRules
from ..processor.sends.send_message import SendMessageProcessor
from ..processor.topics.kv_config import KVConfigProcessor
from ..processor.topics.route import RouteProcessor
from ..processor.topics.topic_admin import TopicAdminProcessor
from ..schedule.schedule_message_service import ScheduleMessageService
from ..settings.config import BrokerConfig
from ..state.members.consumers import ConsumerManager
from ..state.members.membership_limits import MemberRoom
from ..state.members.producers import ProducerManager
from ..state.members.queue_locks import QueueLocks
from ..state.stats.broker_stats import BrokerStats
from ..store.config import FlushDiskType
from ..store.files.disk import DiskUsage
from ..store.message_store import MessageStore
from ..store.steps import RunAside
from .state_tables import StateTables

_log = logging.getLogger(__name__)


class Processor(Protocol):
    """A family of requests."""

    def handlers(self) -> Handlers:
        """Return the handlers by request code."""


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """The parts of the broker that processors work with."""

    config: BrokerConfig
    store: MessageStore
    tables: StateTables
    schedule: ScheduleMessageService
    hold_service: PullRequestHoldService
    run_aside: RunAside
    run_batch_aside: RunAside
    clean: Callable[[], object]
    recent_loss: Callable[[], str]
    disk_usage: Callable[[], DiskUsage]
    memory_bytes: int
    loop: asyncio.AbstractEventLoop
    now_ms: Callable[[], int]
    monotonic_ms: Callable[[], int]
    advertised_host: Callable[[Connection], Host]
    why_busy: Callable[[], str | None]
    suspend: Callable[[PullRequest], bool]
    work: Callable[[Work], None]


class Processors:
    """All processors of a broker."""

    def __init__(self, around: Surroundings) -> None:
        config = around.config
        self._around = around
        self._is_busy = False
        self._gone: deque[Connection] = deque()
        self._is_taking_out = False
        self.stats = BrokerStats(config.broker_cluster_name, around.now_ms())
        room = MemberRoom(
            members_max=config.max_group_members,
            subscription_bytes_max=config.subscription_bytes_max,
        )
        self.producers = ProducerManager(room)
        self.consumers = ConsumerManager(
            NotifyConsumerIdsChanged(around.tables.groups, around.work), room
        )
        self.locks = QueueLocks(around.monotonic_ms)
        self.awaited = AwaitedAnswers()
        self.filters = SubscriptionFilters(config.filters)
        self.parked = ParkedSends(
            around.tables.topics,
            self._dispatch_again,
            self.end_turn,
            around.run_aside,
            around.work,
            capacity=config.send_queue_capacity,
        )
        self.admission = TopicAdmission(
            config, around.tables.topics, self.parked.must_wait, self.parked.has
        )
        self.acknowledger = Acknowledger(
            around.store,
            is_sync=config.store.flush_disk_type is FlushDiskType.SYNC_FLUSH,
            loop=around.loop,
            timeout_ms=config.sync_flush_timeout_ms,
            capacity=config.send_queue_capacity,
            wait_max_ms=config.send_wait_max_ms,
            took_ms=self.stats.put_took.add,
            work=around.work,
        )
        self.retries = RetryRules(self.admission, around.tables.groups)
        self.sends = SendMessageProcessor(
            config=config,
            store=around.store,
            admission=self.admission,
            retries=self.retries,
            acknowledger=self.acknowledger,
            stats=self.stats,
            advertised_host=around.advertised_host,
            why_busy=around.why_busy,
        )
        self.extensions = ExtensionsProcessor(
            store=around.store,
            admission=self.admission,
            acknowledger=self.acknowledger,
            stats=self.stats,
            advertised_host=around.advertised_host,
            why_busy=around.why_busy,
        )
        self.pull = self._pulls()
        self.clients = self._clients()
        self.admin = self._broker_admin()
        families = (
            *self._of_messages(),
            self.pull,
            self.clients,
            *self._of_groups(),
            *self._of_operators(),
        )
        self.dispatch = RequestDispatcher(
            (processor.handlers() for processor in families),
            config.server.json_body_bytes_max,
            self.parked.park,
            around.loop.time,
            self._client_id_of,
        )
        self.pull_lane = self._pull_lane()
        self.lanes = (self.sends.lane, self.pull_lane)

    def _client_id_of(self, connection: Connection) -> str | None:
        """Return the client id that the last heartbeat on a connection had, or None."""
        return self.consumers.client_id_of(connection) or self.producers.client_id_of(connection)

    def replay(self, held: PullRequest) -> RemotingCommand | None:
        """Return the answer to a pull that has waited, or None if it was sent already."""
        try:
            return self.pull.execute_request_when_wakeup(held)
        except Exception as error:  # noqa: BLE001  # whatever it is, the client has to hear of it
            return self.dispatch.excused(held.connection, held.request, error)

    def _beside(self, connection: Connection, request: RemotingCommand, steps: Steps) -> Steps:
        return self.dispatch.beside(connection, request, steps)

    def _dispatch_again(self, connection: Connection, request: RemotingCommand) -> Steps | None:
        """Dispatch a request beside the turns of its connection; return what is left to do."""
        answer = self.dispatch(connection, request)
        if answer is None:
            return None
        if not isinstance(answer, RemotingCommand):
            return self._answered(connection, answer)
        connection.send(answer)
        return None

    def _dispatch_and_work(self, connection: Connection, request: RemotingCommand) -> None:
        steps = self._dispatch_again(connection, request)
        if steps is not None:
            self._around.work(steps)

    def _answered(self, connection: Connection, steps: Steps) -> Steps:
        answer = yield from steps
        if answer is not None:
            connection.send(answer)
        return None

    def client_has_gone(self, connection: Connection) -> None:
        """Take a client that is gone out of its groups, at once or bit by bit."""
        self.pull_lane.connection_closed(connection)
        self.sends.connection_closed(connection)
        self.extensions.connection_closed(connection)
        self._gone.append(connection)
        if not self._is_taking_out:  # thousands may go at once, and are one piece of work
            self._is_taking_out = True
            self._around.work(self._take_out())

    def _take_out(self) -> Work:
        """Take the clients that are gone out of their groups, in steps."""
        try:
            while self._gone:
                connection = self._gone.popleft()
                yield from self.clients.connection_closed(connection)
                yield from self.locks.connection_closed(connection, self._is_member)
                yield None
        finally:
            self._is_taking_out = False

    def _is_member(self, group: str, client_id: str) -> bool:
        return self.consumers.find(group, client_id) is not None

    def end_turn(self) -> None:
        """Write what the requests of a turn have brought, now that all are dispatched."""
        self.sends.end_turn()

    def expire_clients(self) -> None:
        """Take clients whose heartbeats have stopped out of their groups."""
        self._around.work(self.clients.expire(self._around.monotonic_ms()))

    def pass_over(self, milliseconds: int) -> None:
        """Count a time that the clock has just jumped over as no silence of any client."""
        self.producers.pass_over(milliseconds)
        self.consumers.pass_over(milliseconds)
        self.locks.pass_over(milliseconds)

    def sample_stats(self) -> None:
        """Carry the counters into their windows."""
        self._around.work(self.stats.sample(self._around.now_ms()))

    def note_busy(self) -> None:
        """Log that sends are refused as busy, or are taken again; once for a while of each."""
        why = self._around.why_busy()
        if why is not None and not self._is_busy:
            _log.warning("sends are refused: %s", why.rpartition("]")[2])
        elif why is None and self._is_busy:
            _log.warning("sends are taken again")
        self._is_busy = why is not None

    def _pulls(self) -> PullMessageProcessor:
        around, tables = self._around, self._around.tables
        return PullMessageProcessor(
            config=around.config,
            store=around.store,
            topics=tables.topics,
            groups=tables.groups,
            consumers=self.consumers,
            offsets=tables.offsets,
            stats=self.stats,
            filters=self.filters,
            now_ms=around.monotonic_ms,
            suspend=around.suspend,
        )

    def _pull_lane(self) -> PullLane:
        tables, limits = self._around.tables, self._around.config.server
        return PullLane(limits, self.pull, tables.topics, tables.groups, self.dispatch.answer_by)

    def _clients(self) -> ClientManageProcessor:
        around, tables = self._around, self._around.tables
        return ClientManageProcessor(
            topics=tables.topics,
            groups=tables.groups,
            consumers=self.consumers,
            producers=self.producers,
            check_expression=self.filters.check,
            now_ms=around.monotonic_ms,
            joined=self.locks.joined,
            expired_timeout_ms=around.config.client_expired_timeout_ms,
            max_groups_per_connection=around.config.max_groups_per_connection,
        )

    def _of_messages(self) -> tuple[Processor, ...]:
        around = self._around
        return (
            self.sends,
            ReplyMessageProcessor(
                self.producers,
                self._dispatch_and_work,
                around.advertised_host,
                around.now_ms,
                self.awaited,
            ),
            self.extensions,
            StagedBatchesProcessor(
                store=around.store,
                admission=self.admission,
                aside=around.run_batch_aside,
                work=around.work,
                loop=around.loop,
                why_busy=around.why_busy,
                answered=self._beside,
            ),
            MessageBackProcessor(
                config=around.config,
                store=around.store,
                admission=self.admission,
                retries=self.retries,
                acknowledger=self.acknowledger,
                stats=self.stats,
                advertised_host=around.advertised_host,
                why_busy=around.why_busy,
            ),
            QueryMessageProcessor(around.config, around.store, around.now_ms),
            QueryConsumeQueueProcessor(around.store, self.consumers, self.filters.of_subscription),
        )

    def _of_groups(self) -> tuple[Processor, ...]:
        around, tables = self._around, self._around.tables
        name = around.config.broker_name
        return (
            ConsumerGroupProcessor(
                broker_name=name,
                topics=tables.topics,
                consumers=self.consumers,
                producers=self.producers,
                offsets=tables.offsets,
                locks=self.locks,
                time_of_day=lambda moment_ms: around.now_ms() - around.monotonic_ms() + moment_ms,
            ),
            ConsumerOffsetProcessor(
                around.store,
                tables.topics,
                tables.groups,
                tables.offsets,
                IsYoung(around.store, around.memory_bytes),
                self.consumers.is_reset,
            ),
            GroupOffsetsProcessor(
                broker_name=name,
                store=around.store,
                topics=tables.topics,
                groups=tables.groups,
                consumers=self.consumers,
                offsets=tables.offsets,
                release=around.hold_service.release,
            ),
            ClientRelayProcessor(name, around.store, self.consumers, around.work, self.awaited),
        )

    def _of_operators(self) -> tuple[Processor, ...]:
        around, tables, config = self._around, self._around.tables, self._around.config
        after_saving = AfterSaving(around.run_aside)
        return (
            RouteProcessor(
                config, tables.topics, tables.kv_configs, around.advertised_host, after_saving
            ),
            KVConfigProcessor(tables.kv_configs, after_saving),
            TopicAdminProcessor(
                config=config,
                topics=tables.topics,
                offsets=tables.offsets,
                consumers=self.consumers,
                store=around.store,
                stats=self.stats,
                after_saving=after_saving,
                release_pulls=around.hold_service.release,
                work=around.work,
            ),
            GroupAdminProcessor(
                tables.groups, tables.offsets, self.stats, after_saving, around.work
            ),
            ConsumeStatsProcessor(
                config=config,
                topics=tables.topics,
                groups=tables.groups,
                offsets=tables.offsets,
                consumers=self.consumers,
                store=around.store,
                stats=self.stats,
                advertised_host=around.advertised_host,
                now_ms=around.now_ms,
            ),
            self.admin,
        )

    def _broker_admin(self) -> BrokerAdminProcessor:
        around = self._around
        started_ms = around.now_ms()
        runtime_info = RuntimeInfo(
            config=around.config,
            store=around.store,
            stats=self.stats,
            holds=around.hold_service,
            delay_offsets=around.schedule.offsets,
            send_queue=self.acknowledger.queue,
            disk_usage=around.disk_usage,
            recent_loss=around.recent_loss,
            started_ms=started_ms,
        )
        return BrokerAdminProcessor(
            config=around.config,
            runtime_info=runtime_info,
            stats=self.stats,
            delay_offsets=around.schedule.offsets,
            clean=around.clean,
            started_ms=started_ms,
            now_ms=around.now_ms,
        )
