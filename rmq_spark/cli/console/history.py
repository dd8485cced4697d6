"""History: samples figures for charts, and keeps the last minutes.

A page that shows a chart names a probe, and gets the latest points. A probe that no page has
requested for a quarter of an hour is dropped, so that an unused console costs the cluster nothing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from rmq_spark.client.admin.admin import TopicSize
from rmq_spark.client.errors import ClientError, RouteNotFound
from rmq_spark.errors import RocketPollError

if TYPE_CHECKING:
    from rmq_spark.client.admin.admin import Admin

INTERVAL_SECONDS: Final = 5.0
POINTS_MAX: Final = 240
WATCH_EXPIRY_SECONDS: Final = 900.0
WATCHES_MAX: Final = 64
_STOP_SECONDS: Final = 2.0
_log = logging.getLogger(__name__)

Samples = Mapping[str, float]
Probe = Callable[[], Samples]


class Point(NamedTuple):
    """A figure and its time, in seconds since the epoch."""

    timestamp_seconds: float
    value: float


class _Watch:
    """One probe, its points by name, and when a page last asked for them."""

    def __init__(self, probe: Probe) -> None:
        self.probe = probe
        self.last_requested = 0.0
        self.series: dict[str, deque[Point]] = {}

    def append(self, timestamp_seconds: float, samples: Samples) -> None:
        for name, value in samples.items():
            self.series.setdefault(name, deque(maxlen=POINTS_MAX)).append(
                Point(timestamp_seconds, value)
            )


class History:
    """The watched figures, and the thread that samples them."""

    def __init__(
        self, interval_seconds: float = INTERVAL_SECONDS, now: Callable[[], float] = time.time
    ) -> None:
        """Start without watches; ``now`` returns the time of day in seconds."""
        self._interval_seconds = interval_seconds
        self._now = now
        self._lock = threading.Lock()
        self._watches: dict[tuple[str, ...], _Watch] = {}
        self._stop_event = threading.Event()
        self._thread = threading.Thread(target=self._run, name="History", daemon=True)

    def start(self) -> None:
        """Start the thread that samples the watched figures."""
        self._thread.start()

    def stop(self) -> None:
        """Stop sampling; a sample in progress is waited for only briefly."""
        self._stop_event.set()
        self._thread.join(_STOP_SECONDS)

    def watch(
        self, name: tuple[str, ...], probe: Probe, samples: Samples
    ) -> Mapping[str, Sequence[Point]]:
        """Return the latest points by name of figure, and keep sampling with a probe.

        ``samples`` are figures that the caller has read already, as the last point.
        """
        at = self._now()
        with self._lock:
            watch = self._watches.pop(name, None)
            if watch is None:
                watch = _Watch(probe)
                watch.append(at, samples)
                while len(self._watches) >= WATCHES_MAX:
                    del self._watches[next(iter(self._watches))]
            watch.last_requested = at
            self._watches[name] = watch  # moved to the end: the first is dropped next
            found = {key: list(points) for key, points in watch.series.items()}
        for key, value in samples.items():
            points = found.setdefault(key, [])
            if not points or points[-1].timestamp_seconds < at:
                points.append(Point(at, value))
        return found

    def sample_watches(self) -> None:
        """Sample all watches once; a probe that fails adds no point."""
        at = self._now()
        with self._lock:
            for name, watch in list(self._watches.items()):
                if at - watch.last_requested > WATCH_EXPIRY_SECONDS:
                    del self._watches[name]
            watches = list(self._watches.values())
        for watch in watches:
            try:
                figures = watch.probe()
            except RocketPollError:  # the page says why; a gap in its chart says since when
                continue
            with self._lock:
                watch.append(at, figures)

    def _run(self) -> None:
        while not self._stop_event.wait(self._interval_seconds):
            try:
                self.sample_watches()
            except Exception:  # noqa: BLE001, PERF203  # whatever it is, the next look has to come
                _log.exception("reading the figures of a chart failed, retrying")


def per_second(points: Sequence[Point]) -> list[Point]:
    """Return the growth of a count between samples, per second."""
    return [
        Point(
            now.timestamp_seconds,
            max(now.value - before.value, 0.0)
            / max(now.timestamp_seconds - before.timestamp_seconds, 0.001),
        )
        for before, now in pairwise(points)
    ]


# ---- TopicSizes: reads the sizes of all topics one after the other in a thread. There may be
# thousands, so callers get the sizes known so far.

AGE_SECONDS_MAX: Final = 30.0
WAIT_SECONDS_MAX: Final = 0.5


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
