"""Histograms of durations."""

from __future__ import annotations

from rocketpoll.broker.common.histogram import SECONDS, Histogram


def test_histogram_buckets_are_cumulative():
    histogram = Histogram((0.1, 1.0))
    for seconds in (0.05, 0.1, 0.5, 7.0):
        histogram.add(seconds)
    assert list(histogram.cumulative()) == [(0.1, 2), (1.0, 3), (float("inf"), 4)]
    assert histogram.seconds == 7.65


def test_default_histogram_buckets_separate_fast_and_slow_flushes():
    histogram = Histogram()
    histogram.add(0.0002)
    histogram.add(0.3)
    counts = dict(histogram.cumulative())
    assert (counts[0.0005], counts[0.2], counts[0.5]) == (1, 1, 2)
    assert sorted(SECONDS) == list(SECONDS)
