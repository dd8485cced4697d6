"""HoldLimits: the part of the broker's settings that says how long pulls wait, and how many."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class HoldLimits:
    """The limits of waiting pulls: how long they wait, in milliseconds, and how many may."""

    long_polling_enable: bool = True
    short_polling_time_ms: int = 1_000
    suspend_timeout_min_ms: int = 1_000
    suspend_timeout_max_ms: int = 60_000
    holds_per_connection_and_queue: int = 16
    holds_max: int = 20_000
    """Places, of which a usual pull takes one; one with a long subscription or a large filter takes more."""
