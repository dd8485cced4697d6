"""Processors: builds every request processor from the parts of the broker, with one dispatcher."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from rmq_spark.wire.command import RemotingCommand
from rmq_spark.wire.hosts import Host

from ..common.channel import BackgroundSteps, Channel, ResponseSteps
from ..longpolling.pull_request import PullRequest
from ..longpolling.pull_request_hold_service import PullRequestHoldService
from ..processor.admin.broker_admin import BrokerAdminProcessor
from ..processor.admin.runtime_info import RuntimeInfo
from ..processor.clients.client_manage import ClientManageProcessor, NotifyConsumerIdsChanged
from ..processor.clients.client_relay import ClientRelayProcessor
from ..processor.clients.pending_replies import PendingReplies
from ..processor.clients.reply_message import ReplyMessageProcessor
from ..processor.dispatcher import RequestDispatcher
from ..processor.extensions.negotiation import ExtensionsProcessor
from ..processor.extensions.staged_batches import StagedBatchesProcessor
from ..processor.groups.consume_stats import ConsumeStatsProcessor
from ..processor.groups.consumer_group import ConsumerGroupProcessor
from ..processor.groups.consumer_offset import ConsumerOffsetProcessor, InMemoryCheck
from ..processor.groups.group_admin import GroupAdminProcessor
from ..processor.groups.group_offsets import GroupOffsetsProcessor
from ..processor.pulls.fast_pull import FastPull
from ..processor.pulls.pull_message import PullMessageProcessor
from ..processor.pulls.query_consume_queue import QueryConsumeQueueProcessor
from ..processor.pulls.query_message import QueryMessageProcessor
from ..processor.pulls.subscription_filters import SubscriptionFilters
from ..processor.reply_after_save import ReplyAfterSave
from ..processor.request import Handlers
from ..processor.sends.acknowledger import Acknowledger
from ..processor.sends.admission import TopicAdmission
from ..processor.sends.message_back import MessageBackProcessor
from ..processor.sends.pending_topic_sends import PendingTopicSends
from ..processor.sends.retry_rules import RetryRules
from ..processor.sends.send_message import SendMessageProcessor
from ..processor.topics.kv_config import KVConfigProcessor
from ..processor.topics.route import RouteProcessor
from ..processor.topics.topic_admin import TopicAdminProcessor
from ..schedule.schedule_message_service import ScheduleMessageService
from ..settings.config import BrokerConfig
from ..state.members.consumers import ConsumerManager
from ..state.members.membership_limits import MembershipLimits
from ..state.members.producers import ProducerManager
from ..state.members.queue_locks import QueueLocks
from ..state.stats.broker_stats import BrokerStats
from ..store.config import FlushDiskType
from ..store.files.disk import DiskUsage
from ..store.message_store import MessageStore
from ..store.steps import JobExecutor
from .state_tables import StateTables

_log = logging.getLogger(__name__)


class Processor(Protocol):
    """A processor for one family of requests."""

    def handlers(self) -> Handlers:
        """Return the handlers by request code."""


@dataclass(frozen=True, kw_only=True)
class BrokerContext:
    """The parts of the broker that processors work with."""

    config: BrokerConfig
    store: MessageStore
    tables: StateTables
    schedule: ScheduleMessageService
    hold_service: PullRequestHoldService
    run_in_thread: JobExecutor
    run_in_batch_thread: JobExecutor
    clean: Callable[[], object]
    recent_forced_deletions: Callable[[], str]
    disk_usage: Callable[[], DiskUsage]
    memory_bytes: int
    loop: asyncio.AbstractEventLoop
    now_ms: Callable[[], int]
    monotonic_ms: Callable[[], int]
    advertised_host: Callable[[Channel], Host]
    busy_reason: Callable[[], str | None]
    suspend: Callable[[PullRequest], bool]
    run_steps: Callable[[BackgroundSteps], None]


class Processors:
    """All processors of a broker."""

    def __init__(self, context: BrokerContext) -> None:
        config = context.config
        self._context = context
        self._is_busy = False
        self._closed_connections: deque[Channel] = deque()
        self._is_unregistering = False
        self.stats = BrokerStats(config.broker_cluster_name, context.now_ms())
        room = MembershipLimits(
            members_max=config.max_group_members,
            subscription_bytes_max=config.subscription_bytes_max,
        )
        self.producers = ProducerManager(room)
        self.consumers = ConsumerManager(
            NotifyConsumerIdsChanged(context.tables.groups, context.run_steps), room
        )
        self.locks = QueueLocks(context.monotonic_ms)
        self.pending_replies = PendingReplies()
        self.filters = SubscriptionFilters(config.filters)
        self.pending_sends = PendingTopicSends(
            context.tables.topics,
            self._redispatch,
            self.end_turn,
            context.run_in_thread,
            context.run_steps,
            capacity=config.send_queue_capacity,
        )
        self.admission = TopicAdmission(
            config, context.tables.topics, self.pending_sends.must_wait, self.pending_sends.has
        )
        self.acknowledger = Acknowledger(
            context.store,
            is_sync=config.store.flush_disk_type is FlushDiskType.SYNC_FLUSH,
            loop=context.loop,
            timeout_ms=config.sync_flush_timeout_ms,
            capacity=config.send_queue_capacity,
            wait_max_ms=config.send_wait_max_ms,
            record_wait=self.stats.put_latency.add,
            run_steps=context.run_steps,
        )
        self.retries = RetryRules(self.admission, context.tables.groups)
        self.sends = SendMessageProcessor(
            config=config,
            store=context.store,
            admission=self.admission,
            retries=self.retries,
            acknowledger=self.acknowledger,
            stats=self.stats,
            advertised_host=context.advertised_host,
            busy_reason=context.busy_reason,
        )
        self.extensions = ExtensionsProcessor(
            store=context.store,
            admission=self.admission,
            acknowledger=self.acknowledger,
            stats=self.stats,
            advertised_host=context.advertised_host,
            busy_reason=context.busy_reason,
        )
        self.pull = self._pull_processor()
        self.clients = self._client_processor()
        self.admin = self._broker_admin_processor()
        families = (
            *self._message_processors(),
            self.pull,
            self.clients,
            *self._group_processors(),
            *self._operator_processors(),
        )
        self.dispatch = RequestDispatcher(
            (processor.handlers() for processor in families),
            config.server.json_body_bytes_max,
            self.pending_sends.suspend,
            context.loop.time,
            self._client_id_of,
        )
        self.fast_pull = self._new_fast_pull()
        self.fast_paths = (self.sends.fast_path, self.fast_pull)

    def _client_id_of(self, connection: Channel) -> str | None:
        """Return the client id that the last heartbeat on a connection had, or None."""
        return self.consumers.client_id_of(connection) or self.producers.client_id_of(connection)

    def replay(self, held: PullRequest) -> RemotingCommand | None:
        """Return the answer to a pull that has waited, or None if it was sent already."""
        try:
            return self.pull.execute_request_when_wakeup(held)
        except Exception as error:  # noqa: BLE001  # whatever it is, the client has to hear of it
            return self.dispatch.error_response(held.connection, held.request, error)

    def _wrap_errors(
        self, connection: Channel, request: RemotingCommand, steps: ResponseSteps
    ) -> ResponseSteps:
        return self.dispatch.wrap_errors(connection, request, steps)

    def _redispatch(self, connection: Channel, request: RemotingCommand) -> ResponseSteps | None:
        """Dispatch a request beside the turns of its connection; return what is left to do."""
        answer = self.dispatch(connection, request)
        if answer is None:
            return None
        if not isinstance(answer, RemotingCommand):
            return self._send_response(connection, answer)
        connection.send(answer)
        return None

    def _redispatch_and_run(self, connection: Channel, request: RemotingCommand) -> None:
        steps = self._redispatch(connection, request)
        if steps is not None:
            self._context.run_steps(steps)

    def _send_response(self, connection: Channel, steps: ResponseSteps) -> ResponseSteps:
        answer = yield from steps
        if answer is not None:
            connection.send(answer)
        return None

    def connection_closed(self, connection: Channel) -> None:
        """Remove a disconnected client from its groups, at once or in steps."""
        self.fast_pull.connection_closed(connection)
        self.sends.connection_closed(connection)
        self.extensions.connection_closed(connection)
        self._closed_connections.append(connection)
        if not self._is_unregistering:  # thousands may go at once, and are one piece of work
            self._is_unregistering = True
            self._context.run_steps(self._unregister_closed())

    def _unregister_closed(self) -> BackgroundSteps:
        """Take the clients that are gone out of their groups, in steps."""
        try:
            while self._closed_connections:
                connection = self._closed_connections.popleft()
                yield from self.clients.connection_closed(connection)
                yield from self.locks.connection_closed(connection, self._is_member)
                yield None
        finally:
            self._is_unregistering = False

    def _is_member(self, group: str, client_id: str) -> bool:
        return self.consumers.find(group, client_id) is not None

    def end_turn(self) -> None:
        """Write what the requests of a turn have brought, now that all are dispatched."""
        self.sends.end_turn()

    def expire_clients(self) -> None:
        """Remove clients whose heartbeats have stopped from their groups."""
        self._context.run_steps(self.clients.expire(self._context.monotonic_ms()))

    def skip_time(self, milliseconds: int) -> None:
        """Count a time that the clock has just jumped over as no silence of any client."""
        self.producers.skip_time(milliseconds)
        self.consumers.skip_time(milliseconds)
        self.locks.skip_time(milliseconds)

    def sample_stats(self) -> None:
        """Add the counters to their windows."""
        self._context.run_steps(self.stats.sample(self._context.now_ms()))

    def log_busy(self) -> None:
        """Log that sends are refused as busy, or are accepted again; once per period of each."""
        why = self._context.busy_reason()
        if why is not None and not self._is_busy:
            _log.warning("sends are refused: %s", why.rpartition("]")[2])
        elif why is None and self._is_busy:
            _log.warning("sends are taken again")
        self._is_busy = why is not None

    def _pull_processor(self) -> PullMessageProcessor:
        around, tables = self._context, self._context.tables
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

    def _new_fast_pull(self) -> FastPull:
        tables, limits = self._context.tables, self._context.config.server
        return FastPull(limits, self.pull, tables.topics, tables.groups, self.dispatch.run_handler)

    def _client_processor(self) -> ClientManageProcessor:
        around, tables = self._context, self._context.tables
        return ClientManageProcessor(
            topics=tables.topics,
            groups=tables.groups,
            consumers=self.consumers,
            producers=self.producers,
            check_expression=self.filters.check,
            now_ms=around.monotonic_ms,
            on_join=self.locks.mark_member,
            expired_timeout_ms=around.config.client_expired_timeout_ms,
            max_groups_per_connection=around.config.max_groups_per_connection,
        )

    def _message_processors(self) -> tuple[Processor, ...]:
        around = self._context
        return (
            self.sends,
            ReplyMessageProcessor(
                self.producers,
                self._redispatch_and_run,
                around.advertised_host,
                around.now_ms,
                self.pending_replies,
            ),
            self.extensions,
            StagedBatchesProcessor(
                store=around.store,
                admission=self.admission,
                executor=around.run_in_batch_thread,
                run_steps=around.run_steps,
                loop=around.loop,
                busy_reason=around.busy_reason,
                wrap_errors=self._wrap_errors,
            ),
            MessageBackProcessor(
                config=around.config,
                store=around.store,
                admission=self.admission,
                retries=self.retries,
                acknowledger=self.acknowledger,
                stats=self.stats,
                advertised_host=around.advertised_host,
                busy_reason=around.busy_reason,
            ),
            QueryMessageProcessor(around.config, around.store, around.now_ms),
            QueryConsumeQueueProcessor(around.store, self.consumers, self.filters.for_subscription),
        )

    def _group_processors(self) -> tuple[Processor, ...]:
        around, tables = self._context, self._context.tables
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
                InMemoryCheck(around.store, around.memory_bytes),
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
            ClientRelayProcessor(
                name, around.store, self.consumers, around.run_steps, self.pending_replies
            ),
        )

    def _operator_processors(self) -> tuple[Processor, ...]:
        around, tables, config = self._context, self._context.tables, self._context.config
        after_saving = ReplyAfterSave(around.run_in_thread)
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
                reply_after_save=after_saving,
                release_pulls=around.hold_service.release,
                run_steps=around.run_steps,
            ),
            GroupAdminProcessor(
                tables.groups, tables.offsets, self.stats, after_saving, around.run_steps
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

    def _broker_admin_processor(self) -> BrokerAdminProcessor:
        around = self._context
        started_ms = around.now_ms()
        runtime_info = RuntimeInfo(
            config=around.config,
            store=around.store,
            stats=self.stats,
            holds=around.hold_service,
            delay_offsets=around.schedule.offsets,
            send_queue=self.acknowledger.queue,
            disk_usage=around.disk_usage,
            recent_forced_deletions=around.recent_forced_deletions,
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
