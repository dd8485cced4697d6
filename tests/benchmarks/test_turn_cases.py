"""Every case of the turn benchmark gets the right responses; speed is not checked."""

from statistics import median

import pytest

from benchmarks.harness import check_peers
from benchmarks.turns import Turns, turn_cases


@pytest.fixture
def turns(tmp_path):
    turns = Turns(tmp_path)
    yield turns
    turns.shutdown()


def test_turn_benchmark_cases_are_answered(turns):
    cases = turn_cases(turns)
    check_peers(cases)
    # Where the disk is slow, some answers come a run later.
    answers = {case.variant: median(case.run() for _ in range(3)) for case in cases}
    assert 200 * answers["1 sends"] * 0.95 < answers["200 sends"] < 200 * answers["1 sends"] * 1.05
    assert answers["a pull of 32"] > 3 * answers["a pull of 10"] > 40 * 10 * 3 * 100
    assert answers["a batch of 100"] > 40 * 100 * 33
