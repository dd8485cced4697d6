"""Every case of the filter benchmark runs, with the same results both ways; speed
is not checked.
"""

import pytest

from benchmarks.filter import filter_cases
from benchmarks.filter.expressions import EXPRESSIONS
from benchmarks.harness import check_peers

CASES = filter_cases(messages=200)


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_sql_filter_benchmark_ways_give_equal_results(name):
    one_at_a_time, by_chunk = (
        case.run() for case in CASES if case.subject == f"SQL92 filter, {name}"
    )
    assert by_chunk.tolist() == one_at_a_time


def test_filter_benchmark_names_are_unique_and_peers_exist():
    check_peers(CASES)
