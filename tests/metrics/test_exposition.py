"""Metrics exposition: samples become text in steps, once for all concurrent scrapes."""

import logging

from prometheus_client.parser import text_string_to_metric_families
from support.brokers.connections import finished
from support.brokers.metrics_endpoint import samples_of

from rocketpoll.broker.common.histogram import SECONDS, Histogram
from rocketpoll.broker.metrics.exposition import (
    CounterFamily,
    Exposition,
    GaugeFamily,
    HistogramFamily,
    MetricSample,
    text_in_steps,
)

SHARED = {"node_id": "broker-a"}


def test_exposition_has_types_and_shared_labels():
    histogram = Histogram((0.1, 1.0))
    histogram.add(0.5)
    text = finished(
        text_in_steps(
            [
                CounterFamily(
                    "a_total",
                    "A.",
                    ("topic",),
                    [MetricSample(("T",), 3), None, MetricSample(("U",), 4)],
                ),
                GaugeFamily("b", "B.", (), [MetricSample((), 0.5)]),
                HistogramFamily("c_seconds", "C.", histogram),
                GaugeFamily("d", "Nothing.", ("x",), []),
            ],
            SHARED,
        )
    ).decode()
    samples = samples_of(text)
    assert samples("a_total", topic="U", node_id="broker-a") == 4
    assert samples("b", node_id="broker-a") == 0.5
    assert samples("c_seconds_bucket", le="1.0") == 1
    assert samples("c_seconds_count") == 1
    assert samples("c_seconds_sum") == 0.5
    kinds = {each.name: each.type for each in text_string_to_metric_families(text)}
    assert kinds == {"a": "counter", "b": "gauge", "c_seconds": "histogram", "d": "gauge"}


def test_label_values_that_break_the_metrics_text_are_escaped():
    hostile = 'a"b\\c\nd{}e 1\n# TYPE'
    text = finished(
        text_in_steps([GaugeFamily("g", "G.", ("t",), [MetricSample((hostile,), 1)])], SHARED)
    )
    assert samples_of(text.decode())("g", t=hostile) == 1


def test_exposition_of_many_rows_takes_many_steps():
    rows = [MetricSample((str(number),), number) for number in range(10_000)]
    steps = text_in_steps([GaugeFamily("g", "G.", ("n",), rows)], SHARED)
    count = 0
    try:
        while True:
            next(steps)
            count += 1
    except StopIteration as end:
        text = end.value.decode()
    assert count >= len(rows)
    assert text.count("# TYPE") == 1
    assert samples_of(text)("g") == sum(range(10_000))


class Line:
    """Work that a test does step by step."""

    def __init__(self):
        self.works = []
        self.now = 0.0

    def exposition(self, families):
        return Exposition(families, SHARED, self.works.append, lambda: self.now)

    def finish(self):
        for work in self.works:
            for _ in work:
                pass
        self.works.clear()


def test_concurrent_scrapes_share_one_exposition():
    line, looks, given = Line(), [], []

    def families():
        looks.append(None)
        return [GaugeFamily("g", "G.", (), [MetricSample((), len(looks))])]

    exposition = line.exposition(families)
    exposition.request(given.append)
    exposition.request(given.append)
    line.finish()
    line.now = 0.9
    exposition.request(given.append)
    assert len(looks) == 1
    assert len(given) == 3
    assert len(set(given)) == 1
    line.now = 1.1
    exposition.request(given.append)
    line.finish()
    assert samples_of(given[-1].decode())("g") == 2


def test_failed_exposition_is_reported_to_all_and_retried(caplog):
    line, given = Line(), []
    rows = iter([1 / 1])

    def families():
        return [GaugeFamily("g", "G.", (), [MetricSample((), next(rows))])]

    exposition = line.exposition(families)
    for _ in range(2):
        exposition.request(given.append)
        line.finish()
        line.now += 2
    assert samples_of(given[0].decode())("g") == 1
    assert given[1] is None
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


# ---- histograms of durations


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
