"""ServiceManager: reports the broker's start and stop to systemd or a compatible supervisor.

It sends one datagram for each state to the socket that ``NOTIFY_SOCKET`` names; if the variable is
unset, it does nothing. With ``WATCHDOG_USEC``, the loop reports twice as often as required, so that
systemd restarts a broker whose one thread hangs.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from rmq_spark.errors import escape_surrogates, format_bytes

_log = logging.getLogger(__name__)
_TITLE: Final = "rocketpoll"
_FIRST_REPORT_SECONDS: Final = 5.0
_REPORT_SECONDS: Final = 10.0
_EXTENSION_SECONDS: Final = 600
"""Each report gives a start this much more time; the unit's TimeoutStartSec is the same."""


class ServiceManager:
    """The supervisor of this process, if it has one."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        name = environment.get("NOTIFY_SOCKET", "")
        self._address = f"\0{name[1:]}" if name.startswith("@") else name
        watched_us = environment.get("WATCHDOG_USEC", "")
        self._watchdog_seconds = int(watched_us) / 2_000_000 if watched_us.isdigit() else 0.0
        self._timer: asyncio.TimerHandle | None = None

    def notify(self, *states: str) -> None:
        """Send states, such as ``READY=1``; ignore a supervisor that does not listen."""
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.setblocking(False)  # noqa: FBT003  # named by the standard library
                sender.sendto(escape_surrogates("\n".join(states)).encode(), self._address)
        except OSError as error:
            _log.warning("cannot notify %s that %s: %s", self._address, states[0], error)

    def start_watchdog(self, loop: asyncio.AbstractEventLoop) -> None:
        """Report at intervals that the loop is running."""
        if self._watchdog_seconds and self._address:
            self.notify("WATCHDOG=1")
            self._timer = loop.call_later(self._watchdog_seconds, self.start_watchdog, loop)

    def stop(self) -> None:
        """Stop sending reports to the supervisor."""
        if self._timer is not None:
            self._timer.cancel()


class StartProgress:
    """The progress of a start, logged and reported to the supervisor; `request_stop` interrupts it.

    A start that makes progress gets more time, without a limit. The supervisor kills one that
    reports nothing for `_EXTENSION_SECONDS`.
    """

    def __init__(
        self, manager: ServiceManager, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._manager = manager
        self._clock = clock
        self._phase = ""
        self._phase_started = 0.0
        self._phase_start_bytes = 0
        self._next_report = clock() + _FIRST_REPORT_SECONDS
        self.is_stop_requested = False

    def request_stop(self) -> None:
        """Interrupt the start at the next point from which a later one can resume."""
        self.is_stop_requested = True

    def __call__(self, activity: str, done_bytes: int, total_bytes: int) -> bool:
        """Report the progress of the start; return whether it is to be interrupted."""
        now = self._clock()
        if activity != self._phase:
            self._phase, self._phase_started, self._phase_start_bytes = activity, now, done_bytes
        if now >= self._next_report:
            self._next_report = now + _REPORT_SECONDS
            text = self._progress(now, done_bytes, total_bytes)
            _log.info("%s", text)
            extension = f"EXTEND_TIMEOUT_USEC={_EXTENSION_SECONDS * 1_000_000}"
            self._manager.notify(extension, f"STATUS={text}")
        return self.is_stop_requested

    def _progress(self, now: float, done_bytes: int, total_bytes: int) -> str:
        text = (
            f"the start {self._phase}: {done_bytes / max(total_bytes, 1):.0%} of "
            + format_bytes(total_bytes)
        )
        done_since = done_bytes - self._phase_start_bytes
        if done_since <= 0:
            return text
        left_seconds = (now - self._phase_started) * (total_bytes - done_bytes) / done_since
        if left_seconds < 90:
            return f"{text}, about {left_seconds:.0f} s left"
        return f"{text}, about {left_seconds / 60:.0f} min left"


def name_process() -> None:
    """Set the process's name, which ps and top show, to the broker's instead of Python's."""
    with suppress(OSError):  # a system without /proc keeps the old name
        Path("/proc/self/comm").write_text(_TITLE, encoding="ascii")
