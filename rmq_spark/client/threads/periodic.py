"""Periodic: a job that a thread of its own does again and again, or at once when it is told to.

A job that fails is logged and done again the next time. This module knows no job.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from rmq_spark.client.errors import ClientError

_log = logging.getLogger(__name__)

GAP_MS: Final = 1_000
"""Least milliseconds of rest between two runs, however often the job is hurried."""


class Periodic:
    """Runs a job in a thread of its own, after each period, or sooner when it is told to."""

    def __init__(
        self, name: str, period_ms: int, job: Callable[[], object], *, gap_ms: int = GAP_MS
    ) -> None:
        self._period = period_ms / 1000
        self._gap = min(gap_ms, period_ms) / 1000
        self._job = job
        self._clock = time.monotonic
        self._wanted = threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"rocketpoll {name}", daemon=True)

    def start(self) -> None:
        """Start the thread; the job runs for the first time after a period."""
        self._thread.start()

    def soon(self) -> None:
        """Run the job now, or after the gap if it was run only just now."""
        self._wanted.set()

    @property
    def is_alive(self) -> bool:
        """True if the thread was started and has not ended."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """Run the job no more, without waiting for a run that is under way."""
        self._stopped.set()
        self._wanted.set()

    def _run(self) -> None:
        rested_at = 0.0
        while True:
            self._wanted.wait(self._period)
            if self._stopped.wait(max(rested_at - self._clock(), 0)):
                return
            self._wanted.clear()
            if self._stopped.is_set():
                return
            try:
                self._job()
            except ClientError as error:
                _log.warning("%s: %s", self._thread.name, error)
            except BaseException:  # noqa: BLE001  # the next run may succeed
                _log.exception("%s failed", self._thread.name)
            rested_at = self._clock() + self._gap
