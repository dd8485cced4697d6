"""RecentLosses: what the broker gave up on purpose within the last hour, for health checks.

Each part that gives something up logs and counts it, and records the text here. The newest loss of
each kind is kept, so that memory is bounded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from .local_time import format_local_time

RECENT_MS: Final = 3_600_000


class RecentLosses:
    """The newest loss of each kind, for an hour. Call it in the thread of the loop."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._losses: dict[str, tuple[int, str]] = {}

    def record(self, kind: str, text: str) -> None:
        """Record a loss; ``kind`` is a fixed word, and ``text`` what was lost, and why."""
        self._losses[kind] = self._now_ms(), text

    def text(self) -> str:
        """Return the losses of the last hour, each with its time; empty if there are none."""
        since = self._now_ms() - RECENT_MS
        return "; ".join(
            f"at {format_local_time(at)}: {text}"
            for at, text in self._losses.values()
            if at >= since
        )
