"""The benchmark of growth prints a figure for every case in which a message's cost may depend on
what grows."""

import pytest

from benchmarks import growth


@pytest.mark.deep
def test_growth_benchmark_has_a_row_for_each_count(tmp_path, monkeypatch):
    monkeypatch.setattr(growth, "EXECUTORS", (1, 3))
    monkeypatch.setattr(growth, "QUEUES", (2,))
    # the second with files of a hundredth of the size
    monkeypatch.setattr(growth, "MESSAGES", (2_000, 200_000))
    rows = list(growth.measure(tmp_path, 2_000, 1))
    assert [(row.kind, row.number, [cost is not None for cost in row[2:]]) for row in rows] == [
        ("executors", 1, [False, False, True]),
        ("executors", 3, [False, False, True]),
        ("queues", 2, [True, True, False]),
        ("messages", 2_000, [True, True, False]),
        ("messages", 200_000, [True, True, False]),
    ]
    assert all(cost is None or cost > 0 for row in rows for cost in row[2:])
