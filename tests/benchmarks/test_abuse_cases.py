"""Every abuse of the benchmark runs, and honest requests are answered meanwhile."""

import pytest

from benchmarks.abuse import ABUSES, COLUMNS, Latencies, compare, row_of
from benchmarks.abuse.abusers import ABUSERS

pytestmark = pytest.mark.deep


@pytest.mark.parametrize("abuse", ABUSES, ids=lambda abuse: abuse.name)
def test_abuse_benchmark_answers_honest_requests_beside_each_abuse(abuse, tmp_path):
    compared = list(compare(abuse, tmp_path, requests=20, seconds=60))
    assert [each.action for each in compared] == list(abuse.actions)
    for each in compared:
        assert (len(each.calm.seconds), each.calm.refused) == (20, 0)
        assert len(each.beside.seconds) + each.beside.refused == 20
        assert each.beside.seconds
        assert len(row_of(each)) == len(COLUMNS)


def test_each_abuse_of_the_benchmark_has_its_program():
    assert set(ABUSERS) == {abuse.name for abuse in ABUSES}


def test_usual_latency_is_the_median_of_means_and_p99_an_exact_value():
    found = Latencies(tuple(number / 1e6 for number in range(100)))
    assert found.usual == pytest.approx(49.5)
    assert found.p99 == pytest.approx(99)
