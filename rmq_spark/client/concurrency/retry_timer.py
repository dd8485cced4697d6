"""RetryTimer: the pauses between attempts at something that may succeed later, up to a time limit.

    attempt ──> fails ─────> `sleep_or_expire` ──> True: attempt it again
                                              └──> False: it has failed for too long
            └─> succeeds ──> `reset`

Spark's source and sink do all waiting for brokers with it, and log each outage twice: when it
begins ("X failed, retrying: cause") and when it ends ("X recovered after N s").
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from rmq_spark.client.errors import CONNECTION_FAULTS, BrokerNotFound, SystemBusy
from rmq_spark.client.failure_log import FailureLog

TRANSIENT_ERRORS: Final = (*CONNECTION_FAULTS, BrokerNotFound, SystemBusy)
"""Errors after which a request to a broker may succeed later."""


class RetryTimer:
    """The pauses between failed attempts, up to a time limit."""

    def __init__(
        self,
        what: str,
        timeout_ms: int,
        *,
        pause_seconds: float,
        pause_seconds_max: float | None = None,
        clock: Callable[[], float] | None = None,
        sleep: Callable[[float], None] | None = None,
        failure_log: FailureLog | None = None,
    ) -> None:
        """Set the limits.

        Args:
            what: The subject of the log lines, such as "reading from broker a".
            timeout_ms: Milliseconds after the first failure until `sleep_or_expire` gives up.
            pause_seconds: The first pause.
            pause_seconds_max: The limit up to which pauses double; without it all are equal.
            clock: Returns seconds; by default the monotonic clock.
            sleep: Waits for some seconds.
            failure_log: Where failures are logged; by default a new log. Tasks of a process share
                one, so that it logs an outage once for all of them.
        """
        self._what = what
        self._timeout_seconds = timeout_ms / 1000
        self._clock = clock or time.monotonic
        self._sleep = sleep or time.sleep
        self._failure_log = failure_log or FailureLog()
        self._first_pause_seconds = pause_seconds
        self._pause_seconds_max = pause_seconds_max or pause_seconds
        self._pause_seconds = pause_seconds
        self._failing_since: float | None = None

    def sleep_or_expire(self, cause: object = None) -> bool:
        """Wait after a failure. Return False, without waiting, once the time limit has passed.

        Without a cause, nothing is logged: for short waits that are usual, or if the caller logs.
        """
        now = self._clock()
        if cause is not None:
            self._failure_log.record_failure(self._what, cause, now)
        if self._failing_since is None:
            self._failing_since = now
        if now - self._failing_since > self._timeout_seconds:
            return False
        self._sleep(self._pause_seconds)
        self._pause_seconds = min(2 * self._pause_seconds, self._pause_seconds_max)
        return True

    def reset(self) -> None:
        """Record a success: the time limit starts again with the next failure."""
        self._failing_since = None
        self._pause_seconds = self._first_pause_seconds
        self._failure_log.record_success(self._what, self._clock())
