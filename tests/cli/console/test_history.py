"""The console's history of the last minutes is collected only while somebody views it."""

import queue
import threading

import pytest
from support.suite.clocks import Clock

from rmq_spark.cli.console.history import (
    POINTS_MAX,
    WATCH_EXPIRY_SECONDS,
    WATCHES_MAX,
    History,
    Point,
    per_second,
)
from rmq_spark.client.errors import RequestTimeout


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def history(clock):
    return History(now=clock)


def test_history_samples_watched_figures(history, clock):
    figures = iter([{"in": 2.0}, {"in": 3.0, "out": 1.0}])
    probe = lambda: next(figures)  # noqa: E731  # a function, as pages pass it
    assert history.watch(("b",), probe, {"in": 1.0}) == {"in": [(1_000, 1)]}
    for clock.now in (1_005.0, 1_010.0):
        history.sample_watches()
    found = history.watch(("b",), probe, {"in": 9.0, "out": 1.0})
    assert found == {"in": [(1_000, 1), (1_005, 2), (1_010, 3)], "out": [(1_010, 1)]}
    clock.now = 1_012.0
    assert history.watch(("b",), probe, {"in": 9.0})["in"][-1] == (1_012, 9)


def test_history_stops_sampling_expired_watches(history, clock):
    looks = []

    def probe():
        looks.append(clock.now)
        return {}

    history.watch(("b",), probe, {})
    clock.now += WATCH_EXPIRY_SECONDS
    history.sample_watches()
    clock.now += 1
    history.sample_watches()
    assert len(looks) == 1


def test_history_of_unreachable_broker_has_a_gap_and_others_continue(history, clock):
    def away():
        raise RequestTimeout("127.0.0.1:1", 1, 5)

    history.watch(("away",), away, {"in": 1.0})
    history.watch(("there",), lambda: {"in": 2.0}, {"in": 1.0})
    clock.now += 5
    history.sample_watches()
    assert len(history.watch(("there",), away, {})["in"]) == 2
    assert len(history.watch(("away",), away, {})["in"]) == 1


def test_history_limits_watches_and_points(history, clock):
    asked = []

    def probe_of(name):
        return lambda: asked.append(name) or {"x": 1.0}

    for number in range(WATCHES_MAX + 1):
        history.watch((str(number),), probe_of(number), {"x": 0.0})
    for _ in range(POINTS_MAX + 10):
        clock.now += 1
        history.sample_watches()
    assert 0 not in asked
    assert {*range(1, WATCHES_MAX + 1)} == set(asked)
    assert len(history.watch(("1",), probe_of(1), {"x": 1.0})["x"]) == POINTS_MAX


def test_history_thread_samples_until_stopped():
    history = History(interval_seconds=0.001)
    seen = queue.SimpleQueue()
    history.watch(("b",), lambda: seen.put(1) or {}, {})
    history.start()
    for _ in range(2):
        seen.get(timeout=20)
    history.stop()
    assert not [each for each in threading.enumerate() if "History" in each.name]


def test_rates_are_computed_between_two_checks():
    counts = [Point(0, 10), Point(2, 30), Point(4, 5)]  # a recreated topic
    assert per_second(counts) == [(2, 10.0), (4, 0.0)]
    assert per_second(counts[:1]) == []
    assert per_second([*counts[:2], Point(2.9, 30)]) == [(2, 10.0)]  # a page read twice
