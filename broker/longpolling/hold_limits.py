"""HoldLimits: the settings of how long pulls are held, and how many."""

from __future__ import annotations

from dataclasses import dataclass

from ..common.setting import COUNT, FLAG, MS, setting


@dataclass(frozen=True, kw_only=True)
class HoldLimits:
    """Limits on how long pulls are held, and how many."""

    long_polling_enable: bool = setting(
        "longPollingEnable",
        FLAG,
        "false: pulls wait for shortPollingTimeMills, and arrivals do not wake them",
        default=True,
    )
    short_polling_time_ms: int = setting(
        "shortPollingTimeMills",
        MS,
        "wait of a pull without long polling, or when too many pulls wait; ms",
        default=1_000,
    )
    suspend_timeout_min_ms: int = setting(
        "suspendTimeoutMillsMin",
        MS,
        "minimum time that a pull is held, whatever the client asks for; ms",
        default=1_000,
    )
    suspend_timeout_max_ms: int = setting(
        "suspendTimeoutMillsMax",
        MS,
        "maximum time that a pull is held, whatever the client asks for; ms",
        default=60_000,
    )
    holds_per_connection_and_queue: int = setting(
        "maxHoldsPerConnectionAndQueue",
        COUNT,
        "maximum number of held pulls of one client and queue; others wait shortPollingTimeMills",
        default=16,
    )
    pops_per_connection_and_queue: int = setting(
        "popPollingSize",
        COUNT,
        "maximum number of held pops of one client, group and queue; others wait "
        "shortPollingTimeMills",
        default=1_024,
    )
    holds_max: int = setting(
        "maxHolds",
        COUNT,
        "maximum number of held pulls; as many others wait shortPollingTimeMills, the rest "
        "are refused",
        default=20_000,
    )
