"""Topic sizes: reads the sizes of all topics one after the other in a thread.

There may be thousands of topics, so callers get the sizes known so far.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from rmq_spark.client.admin.admin import TopicSize
from rmq_spark.client.errors import ClientError, RouteNotFound

if TYPE_CHECKING:
    from rmq_spark.client.admin.admin import Admin

AGE_SECONDS_MAX: Final = 30.0
WAIT_SECONDS_MAX: Final = 0.5
_log = logging.getLogger(__name__)


class KnownTopicSizes(NamedTuple):
    """The sizes that are known so far.

    Attributes:
        sizes: Sizes by topic.
        is_complete: Whether all topics have been read.
        error: The error that ended the run early, or None.
    """

    sizes: Mapping[str, TopicSize]
    is_complete: bool
    error: ClientError | None


class TopicSizes:
    """Reads the sizes of topics in a thread, on request."""

    def __init__(self, admin: Admin, now: Callable[[], float] = time.monotonic) -> None:
        """Start with nothing known; ``now`` returns the monotonic clock in seconds."""
        self._admin = admin
        self._now = now
        self._lock = threading.Lock()
        self._done_event = threading.Event()
        self._stop_event = threading.Event()
        self._done_event.set()
        self._started_at = float("-inf")
        self._known: dict[str, TopicSize] = {}
        self._error: ClientError | None = None
        self._has_failed = False  # if so, the next call reads again at once

    def get(self, topics: Sequence[str]) -> KnownTopicSizes:
        """Return the known sizes, and start to read them again if they are old."""
        with self._lock:
            is_old = self._now() - self._started_at > AGE_SECONDS_MAX
            if self._done_event.is_set() and (is_old or self._has_failed):
                self._start_reading(list(topics))
        self._done_event.wait(WAIT_SECONDS_MAX)
        with self._lock:
            return KnownTopicSizes(dict(self._known), self._done_event.is_set(), self._error)

    def stop(self) -> None:
        """Stop reading sizes."""
        self._stop_event.set()

    def _start_reading(self, topics: Sequence[str]) -> None:
        thread = threading.Thread(
            target=self._read_sizes, args=(topics,), name="TopicSizes", daemon=True
        )
        started_at = self._now()
        self._done_event.clear()
        self._error, self._has_failed = None, False
        try:
            thread.start()
        except (RuntimeError, MemoryError):
            self._done_event.set()
            raise
        self._started_at = started_at

    def _read_sizes(self, topics: Sequence[str]) -> None:
        try:
            for topic in topics:
                if self._stop_event.is_set():
                    return
                try:
                    size = self._admin.topic_size(topic)
                except RouteNotFound:  # deleted since, or a topic of the broker's without a route
                    continue
                with self._lock:
                    self._known[topic] = size
        except ClientError as error:
            self._error, self._has_failed = error, True
        except Exception:  # noqa: BLE001  # whatever it is, the next look may do better
            self._has_failed = True
            _log.exception("reading the sizes of topics failed")
        finally:
            with self._lock:
                for gone in self._known.keys() - set(topics):
                    del self._known[gone]
            self._done_event.set()
