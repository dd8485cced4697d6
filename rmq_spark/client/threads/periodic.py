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
from rmq_spark.client.threads.mutex import waited_mutex

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
        self._changing = (
            waited_mutex()
        )  # no Event: a signal's handler may raise in who is in a hurry
        self._is_wanted = False
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run, name=f"rocketpoll {name}", daemon=True)

    def start(self) -> None:
        """Start the thread; the job runs for the first time after a period."""
        self._thread.start()

    def soon(self) -> None:
        """Run the job now, or after the gap if it was run only just now."""
        with self._changing:
            self._is_wanted = True
            self._changing.notify_all()

    @property
    def is_alive(self) -> bool:
        """True if the thread was started and has not ended."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """Run the job no more, without waiting for a run that is under way."""
        with self._changing:
            self._is_wanted = self._is_stopped = True
            self._changing.notify_all()

    def join(self, seconds: float) -> None:
        """Wait until the thread has ended, at most so long."""
        if self._thread.is_alive():
            self._thread.join(seconds)

    def _run(self) -> None:
        rested_at = 0.0
        while True:
            with self._changing:
                self._wait(lambda: self._is_wanted, self._clock() + self._period)
                self._wait(lambda: self._is_stopped, rested_at)
                if self._is_stopped:
                    return
                self._is_wanted = False
            try:
                self._job()
            except ClientError as error:
                _log.warning("%s: %s", self._thread.name, error)
            except BaseException:  # noqa: BLE001  # the next run may succeed
                _log.exception("%s failed", self._thread.name)
            rested_at = self._clock() + self._gap

    def _wait(self, has_come: Callable[[], bool], deadline: float) -> None:
        while not has_come() and (seconds := deadline - self._clock()) > 0:
            self._changing.wait(seconds)
