"""MetricsSources: the parts of a broker that metrics read, as the controller passes them in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..common.histogram import Histogram
from ..longpolling.pull_request_hold_service import PullRequestHoldService
from ..runtime.deletion_log import DeletionLog
from ..runtime.processors import Processors
from ..runtime.state_tables import StateTables
from ..schedule.schedule_message_service import ScheduleMessageService
from ..server.server import RemotingServer
from ..settings.config import BrokerConfig
from ..store.files.disk import DiskUsage
from ..store.message_store import MessageStore


@dataclass(frozen=True, kw_only=True)
class MetricsSources:
    """The parts of one broker; ``now_ms`` is the time of day, which may jump.

    ``config`` returns the settings in force now.
    """

    config: Callable[[], BrokerConfig]
    store: MessageStore
    tables: StateTables
    processors: Processors
    hold_service: PullRequestHoldService
    schedule: ScheduleMessageService
    server: RemotingServer
    reput_latency: Histogram
    disk_usage: Callable[[], DiskUsage]
    deletion_log: DeletionLog
    unready_reason: Callable[[], str | None]
    now_ms: Callable[[], int]
    started_ms: int
