"""RecentLosses: what the broker gave up within the last hour, for its log, health and console.

Whatever gives something up reports it here, and counts it for its metric. Memory is bounded: each
kind keeps its newest text and its counts by the minute.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from enum import Enum
from typing import Final

from rmq_spark.errors import escape_surrogates
from rmq_spark.wire.bodies.operators import RecentLoss

RECENT_MS: Final = 3_600_000
_MINUTE_MS: Final = 60_000

_log = logging.getLogger(__name__)


class LossKind(Enum):
    """A kind of loss, by its name for operators.

    A failure makes ``rocketpoll cluster health`` fail; the other kinds are warnings.
    """

    DELETED_EARLY = ("deleted early", True)
    EXPIRED_UNCONSUMED = ("expired unconsumed", False)
    DELAYED_MESSAGE = ("delayed message", True)
    TIMER_MESSAGE = ("timer message", True)
    HALF_MESSAGE = ("half message", True)
    POPPED_MESSAGE = ("popped message", True)
    FAILED_MESSAGE = ("failed message", True)
    FAILED_WITHOUT_RETRY = ("failed without retry", False)
    LOG_DAMAGED = ("log damaged", True)
    LOG_LOST = ("log lost", True)
    STAGED_ROWS_EXPIRED = ("staged rows expired", False)
    SINK_EVICTED = ("sink evicted", False)
    BATCH_ROLLED_BACK = ("batch rolled back", False)
    SEND_REFUSED = ("send refused", False)
    LIMIT_REACHED = ("limit reached", False)

    def __init__(self, title: str, is_failure: bool) -> None:  # noqa: FBT001  # Enum passes the tuples above
        self.title = title
        self.is_failure = is_failure


class _Losses:
    """The losses of one kind: the newest, and their number by the minute."""

    def __init__(self) -> None:
        self.last_ms = 0
        self.text = ""
        self.counts: dict[int, int] = {}

    def add(self, now_ms: int, text: str, count: int) -> None:
        self.last_ms, self.text = now_ms, text
        minute = now_ms // _MINUTE_MS
        self.counts[minute] = self.counts.get(minute, 0) + count
        if len(self.counts) > RECENT_MS // _MINUTE_MS + 1:
            del self.counts[next(iter(self.counts))]

    def count_since(self, since_ms: int) -> int:
        return sum(
            count for minute, count in self.counts.items() if (minute + 1) * _MINUTE_MS > since_ms
        )


class RecentLosses:
    """The losses of the last hour. Its methods may be called from any thread."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._lock = threading.Lock()
        self._losses: dict[LossKind, _Losses] = {}

    def report(
        self, kind: LossKind, *lines: str, count: int = 1, level: int = logging.ERROR
    ) -> None:
        """Log and record a loss; the lines say what was lost, and why."""
        for line in lines:
            _log.log(level, "%s", escape_surrogates(line))
        self.record(kind, " ".join(lines), count)

    def record(self, kind: LossKind, text: str, count: int = 1) -> None:
        """Record a loss without a log line, because one line reports many losses."""
        with self._lock:
            self._losses.setdefault(kind, _Losses()).add(
                self._now_ms(), escape_surrogates(text), count
            )

    def recent(self) -> tuple[RecentLoss, ...]:
        """Return the losses of the last hour by kind, failures first."""
        since_ms = self._now_ms() - RECENT_MS
        with self._lock:
            found = [
                RecentLoss(
                    kind=kind.title,
                    is_failure=kind.is_failure,
                    count=losses.count_since(since_ms),
                    last_ms=losses.last_ms,
                    text=losses.text,
                )
                for kind, losses in self._losses.items()
                if losses.last_ms >= since_ms
            ]
        return tuple(sorted(found, key=lambda loss: (not loss.is_failure, -loss.last_ms)))
