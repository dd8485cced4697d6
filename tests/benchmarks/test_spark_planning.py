import time

import pytest

from benchmarks.spark import planning


def test_planning_benchmark_times_the_first_and_next_batch(capsys):
    planning.main(["--topics", "3", "--queues", "2", "--rounds", "1"])
    said = capsys.readouterr().out
    assert said.startswith("3 topics of 2 queues, median of 1: the first batch ")
    assert "the next" in said


@pytest.mark.deep
def test_routes_and_ends_of_500_topics_take_less_than_a_second(monkeypatch):
    """Of this process, whatever else runs beside it; the broker has one of its own."""
    took, plan = [], planning._plan

    def timed(*arguments):
        began = time.process_time()
        found = plan(*arguments)
        took.append(time.process_time() - began)
        return found

    monkeypatch.setattr(planning, "_plan", timed)
    planning.main(["--topics", "500", "--queues", "4", "--rounds", "3"])
    assert min(took) < 1  # both batches together
