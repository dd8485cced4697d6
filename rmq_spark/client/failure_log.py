"""Failure logs: a failure that is retried is logged when it begins, and when it is over.

    X failed, retrying: cause       a warning; repeats are logged at level DEBUG
    X recovered after N s           a warning

`FailureLog` does this for any action, and `OutageLog` for requests about queues, all of which fail
while their broker is unavailable.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Hashable
from typing import Any, NamedTuple

from rmq_spark.client.errors import (
    CONNECTION_FAULTS,
    AccessDenied,
    AuthenticationFailed,
    BrokerNotFound,
    BrokerRefused,
)
from rmq_spark.wire.message_queue import MessageQueue

_log = logging.getLogger(__name__)
_BROKER_WIDE_ERRORS = (*CONNECTION_FAULTS, BrokerNotFound)


class _Failure(NamedTuple):
    since_seconds: float
    cause: object
    kind: object


class FailureLog:
    """Logs the first failure of each of several things, and its recovery. It is thread-safe."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._failing: dict[Hashable, _Failure] = {}

    def record_failure(
        self,
        what: str,
        cause: object,
        now_seconds: float,
        action: str = "retrying",
        *,
        key: Hashable = None,
        kind: object = None,
    ) -> bool:
        """Log a failure, as a warning if it is the first; return whether it is.

        Args:
            what: What has failed, for the log.
            cause: Why.
            now_seconds: The time by any clock.
            action: What is done about it.
            key: Failures with the same key recover together; by default ``what``.
            kind: A failure of another kind than the last one is logged as if it were the first.
        """
        key = what if key is None else key
        with self._mutex:
            before = self._failing.get(key)
            since = now_seconds if before is None else before.since_seconds
            self._failing[key] = _Failure(since, cause, kind)
        is_first = before is None or before.kind != kind
        level = logging.WARNING if is_first else logging.DEBUG
        _log.log(level, "%s failed, %s: %s", what, action, cause)
        return is_first

    @property
    def has_failures(self) -> bool:
        """True if anything fails now."""
        return bool(self._failing)

    def record_success(self, what: str, now_seconds: float, *, key: Hashable = None) -> None:
        """Log the recovery, if a failure was logged."""
        key = what if key is None else key
        if key not in self._failing:  # the usual case
            return
        with self._mutex:
            failure = self._failing.pop(key, None)
        if failure is not None:
            seconds = now_seconds - failure.since_seconds
            _log.warning("%s recovered after %.1f s", what, seconds)

    def cause_of(self, what: str) -> Any:
        """Return the cause of the last failure since the last success; None if there is none."""
        failure = self._failing.get(what)
        return None if failure is None else failure.cause


class OutageLog:
    """The log of one kind of failing request about queues. All methods are thread-safe."""

    def __init__(self, what: str) -> None:
        """Make a log; ``what`` names the request in it, such as "pulling"."""
        self._what = what
        self._failures = FailureLog()

    def record_failure(self, queue: MessageQueue, error: BaseException) -> None:
        """Log that a queue's request has failed; as a warning if the outage is new."""
        key: MessageQueue | str = queue
        kind: object = error.code if isinstance(error, BrokerRefused) else type(error)
        if isinstance(error, _BROKER_WIDE_ERRORS):
            key, kind = queue.broker_name, "away"
        elif isinstance(error, AuthenticationFailed):
            key, kind = queue.broker_name, AuthenticationFailed
        elif isinstance(error, AccessDenied):  # denied for all queues of a topic or group
            key, kind = _topic_key(queue), error.resource
        what = f"{self._what} {queue}"
        self._failures.record_failure(what, error, time.monotonic(), key=key, kind=kind)

    def record_success(self, queue: MessageQueue) -> None:
        """Log the recovery if the broker had failed before."""
        if not self._failures.has_failures:  # the usual case
            return
        now = time.monotonic()
        self._failures.record_success(f"{self._what} {queue}", now, key=queue)
        for key in (queue.broker_name, _topic_key(queue)):
            self._failures.record_success(f"{self._what} queues of {key}", now, key=key)


def _topic_key(queue: MessageQueue) -> str:
    return f"topic {queue.topic} at {queue.broker_name}"
