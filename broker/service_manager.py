"""ServiceManager: tells systemd, or whoever speaks its protocol, that the broker is ready, or ends.

One datagram for each state goes to the socket that ``NOTIFY_SOCKET`` names; without it, nothing is
sent. With ``WATCHDOG_USEC``, the loop tells of itself twice as often as it has to: a broker whose
one thread hangs is then started again. It must not know what the broker does.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from rmq_spark.errors import encodable

_log = logging.getLogger(__name__)
_TITLE: Final = "rocketpoll"


class ServiceManager:
    """The supervisor of this process, if it has one."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        name = environment.get("NOTIFY_SOCKET", "")
        self._address = f"\0{name[1:]}" if name.startswith("@") else name
        watched_us = environment.get("WATCHDOG_USEC", "")
        self._watch_seconds = int(watched_us) / 2_000_000 if watched_us.isdigit() else 0.0
        self._timer: asyncio.TimerHandle | None = None

    def tell(self, *states: str) -> None:
        """Tell of states, such as ``READY=1``; a supervisor that does not listen is let be."""
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.setblocking(False)  # noqa: FBT003  # named by the standard library
                sender.sendto(encodable("\n".join(states)).encode(), self._address)
        except OSError as error:
            _log.warning("%s is not told that %s: %s", self._address, states[0], error)

    def be_watched(self, loop: asyncio.AbstractEventLoop) -> None:
        """Tell again and again, on a loop, that it goes round."""
        if self._watch_seconds and self._address:
            self.tell("WATCHDOG=1")
            self._timer = loop.call_later(self._watch_seconds, self.be_watched, loop)

    def end(self) -> None:
        """Tell of nothing more."""
        if self._timer is not None:
            self._timer.cancel()


def name_process() -> None:
    """Have tools such as ps and top show this process as the broker, not as a Python."""
    with suppress(OSError):  # a system without /proc shows it as it likes
        Path("/proc/self/comm").write_text(_TITLE, encoding="ascii")
