"""How often something took how long."""

from __future__ import annotations

from broker.state.durations import Durations


def test_each_falls_into_its_cell_and_the_longest_is_remembered():
    took = Durations()
    took.add(0, 90)
    for took_ms in [2] * 9 + [40_000]:
        took.add(took_ms)
    assert {cell: count for cell, count in took.cells() if count} == {"0ms": 90, "1~2ms": 9, "10000~": 1}
    assert took.max_ms == 40_000
    assert [took.within_ms(share) for share in (0.5, 0.99, 0.999)] == [0, 2, 40_000]


def test_nothing_took_no_time():
    assert (Durations().max_ms, Durations().within_ms(0.99)) == (0, 0)
