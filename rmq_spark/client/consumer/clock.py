"""Clock of consumers: milliseconds that never go back, for due times and timeouts."""

from __future__ import annotations

import time


def monotonic_ms() -> int:
    """Return milliseconds of a clock that never goes back."""
    return time.monotonic_ns() // 1_000_000
