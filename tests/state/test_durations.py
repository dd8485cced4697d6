"""Histograms of durations."""

from __future__ import annotations

import pytest

from rocketpoll.broker.state.stats.broker_stats import Durations


@pytest.mark.parametrize(
    ("took_ms", "cell"),
    [
        (-1, "<=0ms"),
        (0, "<=0ms"),
        (1, "0~10ms"),
        (9, "0~10ms"),
        (10, "10~50ms"),
        (49, "10~50ms"),
        (50, "50~100ms"),
        (100, "100~200ms"),
        (200, "200~500ms"),
        (499, "200~500ms"),
        (500, "500ms~1s"),
        (1_000, "1~2s"),
        (2_000, "2~3s"),
        (3_999, "3~4s"),
        (4_000, "4~5s"),
        (9_999, "5~10s"),
        (10_000, "10s~"),
        (1 << 40, "10s~"),
    ],
)
def test_duration_falls_into_rocketmqs_cell(took_ms, cell):
    took = Durations()
    took.add(took_ms)
    assert {name for name, count in took.cells().items() if count} == {cell}
    assert sum(took.cells().values()) == 1


def test_durations_report_percentiles_and_maximum():
    took = Durations()
    took.add(0, 90)
    for took_ms in [2] * 9 + [40_000]:
        took.add(took_ms)
    assert took.max_ms == 40_000
    assert [took.within_ms(share) for share in (0.5, 0.99, 0.999)] == [0, 2, 40_000]


def test_duration_cells_cover_the_last_minute():
    took = Durations()
    took.add(30)
    assert took.cells()["10~50ms"] == 1
    took.end_minute()
    took.add(0)
    assert (took.cells()["10~50ms"], took.cells()["<=0ms"]) == (1, 0)
    took.end_minute()
    assert (took.cells()["10~50ms"], took.cells()["<=0ms"]) == (0, 1)
    took.end_minute()
    assert (sum(took.cells().values()), took.within_ms(0.99), took.max_ms) == (0, 0, 30)
