"""Exposition: turns families of samples into the text that Prometheus reads, in steps.

A broker with ten thousand topics has more samples than fit into one turn of the loop, so a few
hundred are collected and written at a time. Requests that arrive meanwhile, or within a second
after, get the same text, so that frequent requests cannot keep the broker busy.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, TypeAlias

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from ..common.histogram import Histogram

_log = logging.getLogger(__name__)
TEXT_FORMAT: Final = "text/plain; version=0.0.4; charset=utf-8"
"""The content type that every release of Prometheus reads."""
_SAMPLES_PER_STEP: Final = 128
"""Samples that take a millisecond or two."""
_CACHE_SECONDS: Final = 1.0


class MetricSample(NamedTuple):
    """One sample of a family: the values of its labels, and its value."""

    labels: tuple[str, ...]
    value: float


MetricSamples: TypeAlias = "Iterable[MetricSample | None]"
"""Samples, and None for steps without one."""


@dataclass(eq=False)
class MetricFamily:
    """One metric: its kind, name and meaning, the names of its labels, and its samples."""

    kind: type[CounterMetricFamily | GaugeMetricFamily]
    name: str
    documentation: str
    labels: tuple[str, ...]
    samples: MetricSamples

    def metric(self, rows: Iterable[MetricSample], shared: Mapping[str, str]) -> Metric:
        """Return prometheus_client's metric of some samples; ``shared`` labels come first."""
        family = self.kind(self.name, self.documentation, labels=(*shared, *self.labels))
        for row in rows:
            family.add_metric((*shared.values(), *row.labels), row.value)
        return family


CounterFamily = partial(MetricFamily, CounterMetricFamily)
"""A metric that only grows until a restart; its name ends in _total."""
GaugeFamily = partial(MetricFamily, GaugeMetricFamily)


def gauge(name: str, documentation: str, value: float) -> MetricFamily:
    """Return a gauge of one sample without labels."""
    return GaugeFamily(name, documentation, (), [MetricSample((), value)])


def counter(name: str, documentation: str, value: float) -> MetricFamily:
    """Return a counter of one sample without labels."""
    return CounterFamily(name, documentation, (), [MetricSample((), value)])


class HistogramFamily(MetricFamily):
    """A histogram without labels of its own; one row stands for all its buckets."""

    def __init__(self, name: str, documentation: str, histogram: Histogram) -> None:
        super().__init__(GaugeMetricFamily, name, documentation, (), [MetricSample((), 0)])
        self._histogram = histogram

    def metric(self, rows: Iterable[MetricSample], shared: Mapping[str, str]) -> Metric:  # noqa: ARG002  # the histogram has its own
        """Return prometheus_client's histogram, with all buckets."""
        family = HistogramMetricFamily(self.name, self.documentation, labels=tuple(shared))
        buckets = [
            (str(end) if end != float("inf") else "+Inf", count)
            for end, count in self._histogram.cumulative()
        ]
        family.add_metric(tuple(shared.values()), buckets, self._histogram.seconds)
        return family


class _SingleMetric(Collector):
    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterable[Metric]:
        return [self._metric]


def text_in_steps(
    families: Iterable[MetricFamily], shared: Mapping[str, str]
) -> Generator[None, None, bytes]:
    """Return the text of families, in steps."""
    pieces: list[bytes] = []
    for family in families:
        rows: list[MetricSample] = []
        is_continuation = False
        for row in family.samples:
            if row is not None:
                rows.append(row)
            if len(rows) >= _SAMPLES_PER_STEP:
                pieces.append(_render(family, rows, shared, is_continuation=is_continuation))
                is_continuation, rows = True, []
            yield
        if rows or not is_continuation:
            pieces.append(_render(family, rows, shared, is_continuation=is_continuation))
            yield
    return b"".join(pieces)


def _render(
    family: MetricFamily,
    rows: Iterable[MetricSample],
    shared: Mapping[str, str],
    *,
    is_continuation: bool,
) -> bytes:
    text = generate_latest(_SingleMetric(family.metric(rows, shared)))
    return text.split(b"\n", 2)[2] if is_continuation else text  # HELP and TYPE come once


class Exposition:
    """The text of all metrics."""

    def __init__(
        self,
        families: Callable[[], Iterable[MetricFamily]],
        shared: Mapping[str, str],
        run_steps: Callable[[Iterator[None]], None],
        clock: Callable[[], float],
    ) -> None:
        """Store the families, the labels of all samples, and how to run steps on the loop.

        ``clock`` returns monotonic seconds.
        """
        self._families = families
        self._shared = shared
        self._run_steps = run_steps
        self._clock = clock
        self._waiting: list[Callable[[bytes | None], None]] = []
        self._text = b""
        self._cached_until = clock()

    def request(self, callback: Callable[[bytes | None], None]) -> None:
        """Call ``callback`` with the text when it is ready, or with None if it failed."""
        if self._clock() < self._cached_until:
            callback(self._text)
            return
        self._waiting.append(callback)
        if len(self._waiting) == 1:
            self._run_steps(self._refresh())

    def _refresh(self) -> Iterator[None]:
        text: bytes | None = None
        try:
            text = yield from text_in_steps(self._families(), self._shared)
        except Exception:  # noqa: BLE001  # whatever it is, waiting requests must be answered
            _log.exception("metrics cannot be collected")
        if text is not None:
            self._text = text
            self._cached_until = self._clock() + _CACHE_SECONDS
        waiting, self._waiting = self._waiting, []
        for give in waiting:
            give(text)
