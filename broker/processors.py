"""Processors: every family of requests, built from what the broker has, behind one dispatcher."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from broker.config import BrokerConfig
from broker.connection import Connection
from broker.longpolling.pull_request import PullRequest
from broker.processor.acknowledger import Acknowledger
from broker.processor.admission import TopicAdmission
from broker.processor.broker_admin import BrokerAdminProcessor
from broker.processor.client_manage import ClientManageProcessor
from broker.processor.consume_stats import ConsumeStatsProcessor
from broker.processor.consumer_group import ConsumerGroupProcessor
from broker.processor.consumer_offset import ConsumerOffsetProcessor
from broker.processor.dispatcher import RequestDispatcher
from broker.processor.extensions import ExtensionsProcessor
from broker.processor.group_admin import GroupAdminProcessor
from broker.processor.kv_config import KVConfigProcessor
from broker.processor.message_back import MessageBackProcessor
from broker.processor.pull_message import PullMessageProcessor
from broker.processor.query_consume_queue import QueryConsumeQueueProcessor
from broker.processor.query_message import QueryMessageProcessor
from broker.processor.route import RouteProcessor
from broker.processor.send_message import SendMessageProcessor
from broker.processor.topic_admin import TopicAdminProcessor
from broker.schedule.schedule_message_service import ScheduleMessageService
from broker.state.broker_stats import BrokerStats
from broker.state.consumers import ConsumerManager
from broker.state.producers import ProducerManager
from broker.state_tables import StateTables
from broker.store.disk import Disk
from broker.store.message_store import MessageStore
from rmq_spark.wire.command import RemotingCommand
from rmq_spark.wire.hosts import Host


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What processors work with."""

    config: BrokerConfig
    store: MessageStore
    tables: StateTables
    schedule: ScheduleMessageService
    disk: Disk
    loop: asyncio.AbstractEventLoop
    now_ms: Callable[[], int]
    monotonic_ms: Callable[[], int]
    advertised_host: Callable[[Connection], Host]
    why_no_memory: Callable[[], str | None]
    suspend: Callable[[PullRequest], bool]
