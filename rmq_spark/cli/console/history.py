"""History: samples figures for charts, and keeps the last minutes.

A page that shows a chart names a probe, and gets the latest points. A probe that no page has
requested for a quarter of an hour is dropped, so that an unused console costs the cluster nothing.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from rmq_spark.client.concurrency.scheduler import RepeatedTask, ThreadScheduler
from rmq_spark.errors import RocketPollError

INTERVAL_SECONDS: Final = 5.0
POINTS_MAX: Final = 240
WATCH_EXPIRY_SECONDS: Final = 900.0
WATCHES_MAX: Final = 64
_STOP_MS: Final = 2_000
_RATE_SECONDS_MIN: Final = 1.0
"""Least time between two samples from which a rate is computed."""

Samples = Mapping[str, float]
Probe = Callable[[], Samples]


class Point(NamedTuple):
    """A figure and its time, in seconds since the epoch."""

    timestamp_seconds: float
    value: float


class _Watch:
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
        self._now = now
        self._lock = threading.Lock()
        self._watches: dict[tuple[str, ...], _Watch] = {}
        self._scheduler = ThreadScheduler("History")
        self._interval_ms = int(interval_seconds * 1_000)
        self._task = RepeatedTask(self._scheduler, self.sample_watches, self._interval_ms)

    def start(self) -> None:
        """Start the thread that samples the watched figures."""
        self._task.start(self._interval_ms)

    def stop(self) -> None:
        """Stop sampling; wait at most 2 s for a sample in progress."""
        self._task.stop()
        self._scheduler.stop(_STOP_MS)

    def watch(
        self, name: tuple[str, ...], probe: Probe, samples: Samples
    ) -> Mapping[str, Sequence[Point]]:
        """Return the latest points by name of figure, and keep sampling with a probe.

        ``samples`` are figures that the caller has just read; they become the last point.
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
            self._watches[name] = watch  # moved to the end: the first watch is dropped next
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


def per_second(points: Sequence[Point]) -> list[Point]:
    """Return the growth of a count between samples, per second.

    A sample that follows another within a second is left out: one message more or less would show
    as a peak, or as a hole.
    """
    kept: list[Point] = []
    for each in points:
        since = each.timestamp_seconds - kept[-1].timestamp_seconds if kept else 0.0
        if not kept or since >= _RATE_SECONDS_MIN:
            kept.append(each)
    return [
        Point(
            now.timestamp_seconds,
            max(now.value - before.value, 0.0) / (now.timestamp_seconds - before.timestamp_seconds),
        )
        for before, now in pairwise(kept)
    ]
