"""Processor: the base of request processors, and the parts of the broker that they work with.

    class QueueProcessor(Processor):

        @handles(RequestCode.GET_MIN_OFFSET)
        def get_min_offset(self, connection, request): ...

A new request also needs its row of rights in `auth/request_rights.py`; a new processor is built in
`runtime/processors.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from rmq_spark.wire.codes import RequestCode
from rmq_spark.wire.extensions import Extension
from rmq_spark.wire.message.hosts import Host

from ..auth.access_control import AccessControl
from ..auth.user_tables import AclTable, UserTable
from ..common.channel import BackgroundSteps, Channel
from ..common.recent_losses import RecentLosses
from ..longpolling.pop_request import PopWaiters
from ..longpolling.pull_request import PullRequest
from ..longpolling.pull_request_hold_service import PullRequestHoldService
from ..pop.pop_counters import PopCounters
from ..pop.revive_log import ReviveLog
from ..schedule.schedule_message_service import ScheduleMessageService
from ..schedule.timer_message_store import TimerMessageStore
from ..settings.config import BrokerConfig
from ..state.broker_stats import BrokerStats
from ..state.members.consumers import ConsumerManager
from ..state.members.producers import ProducerManager
from ..state.members.queue_locks import QueueLocks
from ..state.tables.consumer_offset import ConsumerOffsetManager
from ..state.tables.consumer_order_info import ConsumerOrderInfoManager
from ..state.tables.kv_config import KVConfigs
from ..state.tables.message_request_mode import MessageRequestModes
from ..state.tables.subscription_group import SubscriptionGroupManager
from ..state.tables.topic_config import TopicConfigManager
from ..store.files.disk import DiskUsage
from ..store.message_store import MessageStore
from ..store.steps import JobExecutor
from ..transaction.transactional_message_service import TransactionalMessageService
from .reply_after_save import ReplyAfterSave
from .request import Handler, Handlers, negotiated

_HANDLED: Final = "handled_codes"
_HandlerT = TypeVar("_HandlerT", bound=Callable[..., Any])


@dataclass(frozen=True, kw_only=True)
class BrokerParts:
    """The parts of one broker.

    Attributes:
        current_config: Returns the settings in use; `config` calls it.
        access: Who a client is, and what it may do.
        now_ms: The time of day, which may jump.
        monotonic_ms: A clock that never jumps.
        advertised_host: Returns the address at which a client can reach this broker.
        busy_reason: Returns why no messages are accepted now, or None.
        suspend: Holds a pull, and returns whether it will be answered later.
        run_steps: Runs a generator to its end, at once or over several turns of the loop.
        run_in_thread: Runs a job that may wait for the disk.
        run_in_batch_thread: Runs a job of staged batches that may wait for the disk.
        clean: Starts to delete old files, and returns at once.
        losses: What the broker gave up within the last hour.
        refusals: Returns how often requests and clients were refused, by their key in the runtime
            information.
        memory_bytes: The memory of the machine.
    """

    current_config: Callable[[], BrokerConfig]
    access: AccessControl
    store: MessageStore
    topics: TopicConfigManager
    groups: SubscriptionGroupManager
    offsets: ConsumerOffsetManager
    kv_configs: KVConfigs
    users: UserTable
    acls: AclTable
    consumers: ConsumerManager
    producers: ProducerManager
    locks: QueueLocks
    stats: BrokerStats
    schedule: ScheduleMessageService
    transactions: TransactionalMessageService
    timers: TimerMessageStore
    hold_service: PullRequestHoldService
    pop_waiters: PopWaiters
    pop_counters: PopCounters
    revive_log: ReviveLog
    order_info: ConsumerOrderInfoManager
    request_modes: MessageRequestModes
    reply_after_save: ReplyAfterSave
    loop: asyncio.AbstractEventLoop
    now_ms: Callable[[], int]
    monotonic_ms: Callable[[], int]
    advertised_host: Callable[[Channel], Host]
    busy_reason: Callable[[], str | None]
    suspend: Callable[[PullRequest], bool]
    run_steps: Callable[[BackgroundSteps], None]
    run_in_thread: JobExecutor
    run_in_batch_thread: JobExecutor
    clean: Callable[[], object]
    losses: RecentLosses
    refusals: Callable[[], Mapping[str, int]]
    disk_usage: Callable[[], DiskUsage]
    memory_bytes: int

    @property
    def config(self) -> BrokerConfig:
        """The settings in use: read them on each use, because SIGHUP can change them."""
        return self.current_config()


class Processor:
    """A processor of one family of requests."""

    def __init__(self, broker: BrokerParts) -> None:
        self._broker = broker

    def handlers(self) -> Handlers:
        """Return the methods marked with `handles`, by request code."""
        found: dict[int, Handler] = {}
        for name, method in vars(type(self)).items():
            for code, extension in getattr(method, _HANDLED, {}).items():
                handler = getattr(self, name)
                found[code] = handler if extension is None else negotiated(extension, handler)
        return found


def handles(
    *codes: RequestCode, extension: Extension | None = None
) -> Callable[[_HandlerT], _HandlerT]:
    """Mark a method of a `Processor` as the handler of requests.

    With an extension, only clients that have agreed on it are served.
    """

    def mark(method: _HandlerT) -> _HandlerT:
        setattr(
            method, _HANDLED, {**getattr(method, _HANDLED, {}), **dict.fromkeys(codes, extension)}
        )
        return method

    return mark
