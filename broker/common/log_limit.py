"""LogLimit: one log line a minute for each key, such as a client's address."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final

PERIOD_SECONDS: Final = 60.0
KEYS_MAX: Final = 256
"""The maximum number of keys with a line in one period; events of further keys get none."""


@dataclass(slots=True)
class _LoggedKey:
    logged_at: float
    suppressed: int = 0


class LogLimit:
    """Decides which of many similar events get a log line, with bounded memory."""

    def __init__(self) -> None:
        self._keys: dict[Hashable, _LoggedKey] = {}
        """The keys that have had a log line, in the order of their last lines."""

    def admit(self, key: Hashable, now: float) -> int | None:
        """Return how many events of a key were suppressed since its last line; None for no line."""
        known = self._keys.get(key)
        if known is not None and now - known.logged_at < PERIOD_SECONDS:
            known.suppressed += 1
            return None
        if known is None and len(self._keys) >= KEYS_MAX:
            oldest = next(iter(self._keys))
            if now - self._keys[oldest].logged_at < PERIOD_SECONDS:
                return None
            del self._keys[oldest]
        self._keys.pop(key, None)  # adding it again moves it to the end
        self._keys[key] = _LoggedKey(now)
        return 0 if known is None else known.suppressed


def printable(text: str) -> str:
    """Return a client's text in a form that fits on one log line."""
    return text if text.isprintable() else repr(text)[1:-1]
