"""UniqueIdGenerator: generates the ids of a producer's messages (UNIQ_KEY), in RocketMQ's form.

An id begins with address, process and a random number, which are this generator's own. Milliseconds
since the month began follow, from which RocketMQ's tools read when a message was born, and a
counter.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Callable
from datetime import datetime
from typing import Final

from rmq_spark.client.errors import ClientShutDown
from rmq_spark.wire.message_id import UniqueId

_HOUR_MS: Final = 3_600_000
_TAIL_DIGITS: Final = 12  # of the time and the counter


def now_ms() -> int:
    """Return the time of day, in ms since 1970."""
    return time.time_ns() // 1_000_000


class UniqueIdGenerator:
    """Generates the ids of one producer's messages. Methods may be called from any thread."""

    def __init__(self, address: str, now_ms: Callable[[], int] = now_ms) -> None:
        import ipaddress  # noqa: PLC0415  # needed by producers only

        packed = ipaddress.ip_address(address).packed
        own = UniqueId(packed, os.getpid(), int.from_bytes(os.urandom(4), "big"), 0, 0)
        self._process_prefix = own.encode()[:-_TAIL_DIGITS]
        self._now_ms = now_ms
        self._counter = itertools.count()
        self._month_start_ms = 0
        self._month_valid_until_ms = 0

    def next(self) -> str:
        """Return an id that no other message has.

        Raises:
            ClientShutDown: Python is exiting, and stops the threads that a send needs.
        """
        return f"{self._current_prefix()}{next(self._counter) & 0xFFFF:04X}"

    def next_many(self, count: int) -> list[str]:
        """Return a number of new ids at once.

        Raises:
            ClientShutDown: Python is exiting.
        """
        start = self._current_prefix()
        return [
            f"{start}{number & 0xFFFF:04X}" for number in itertools.islice(self._counter, count)
        ]

    def _current_prefix(self) -> str:
        if sys.is_finalizing():  # `datetime` of 3.13.0 crashes then
            raise ClientShutDown(
                "Python is shutting down: send before the program ends, or in an atexit function"
            )
        now_ms = self._now_ms()
        if not self._month_start_ms <= now_ms < self._month_valid_until_ms:
            self._month_start_ms = month_start_ms(now_ms)
            self._month_valid_until_ms = now_ms - now_ms % _HOUR_MS + _HOUR_MS
        since = (now_ms - self._month_start_ms) & 0xFFFFFFFF
        return f"{self._process_prefix}{since:08X}"


def month_start_ms(now_ms: int) -> int:
    """Return the start of a time's month in this machine's time zone, as in Java, in ms."""
    local = datetime.fromtimestamp(now_ms / 1000).astimezone()
    began = local.replace(day=1, hour=0, minute=0, second=0, microsecond=0, tzinfo=None)
    return int(began.astimezone().timestamp() * 1000)
