"""MetricsSources: the parts of a broker that metrics read, as the controller passes them in."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ..common.histogram import Histogram
from ..pop.pop_revive_service import PopReviveService
from ..processor.processor import BrokerParts
from ..runtime.deletion_log import DeletionLog
from ..runtime.processors import Processors
from ..server.server import RemotingServer


@dataclass(frozen=True, kw_only=True)
class MetricsSources:
    """The parts of one broker.

    ``registrations`` returns each name server's address, and whether it has this broker.
    """

    broker: BrokerParts
    processors: Processors
    revive: PopReviveService
    server: RemotingServer
    reput_latency: Histogram
    deletion_log: DeletionLog
    unready_reason: Callable[[], str | None]
    registrations: Callable[[], Iterable[tuple[str, bool]]]
    started_ms: int
