"""Recently written records in memory are complete or absent."""

import pytest

from rocketpoll.broker.store.records.recent_writes import (
    RUN_BYTES_MAX,
    RecentRecord,
    RecentRun,
    empty_recent_writes,
)

SIZE = 100


def run_at(start, count=2, properties=b""):
    records = [RecentRecord(("T", 0), n, start + n * SIZE, SIZE, properties) for n in range(count)]
    return RecentRun(records, 5, start + count * SIZE)


@pytest.fixture
def runs():
    kept = empty_recent_writes().runs
    for start in (0, 200, 400):
        kept.add(run_at(start))
    return kept


def test_recent_runs_are_dispatched_in_log_order(runs):
    assert [runs.pop_at(start, 1000).start_offset for start in (0, 200, 400)] == [0, 200, 400]
    assert runs.pop_at(600, 1000) is None


def test_unconfirmed_recent_writes_are_kept(runs):
    assert runs.pop_at(0, 199) is None
    assert runs.pop_at(0, 200) == run_at(0)
    assert runs.pop_at(200, 399) is None
    assert runs.pop_at(200, 1000) == run_at(200)


def test_recent_writes_read_from_the_log_are_forgotten(runs):
    assert runs.pop_at(400, 1000) == run_at(400)
    assert runs.pop_at(0, 1000) is None


def test_position_inside_a_run_reads_the_log(runs):
    assert runs.pop_at(100, 1000) is None
    assert runs.pop_at(200, 1000) == run_at(200)


def test_few_recent_runs_are_kept_and_none_of_many_bytes_in_memory():
    kept = empty_recent_writes().runs
    for too_large in (run_at(0, 656), run_at(0, 2, b"x" * (RUN_BYTES_MAX // 2))):
        kept.add(too_large)
        assert kept.pop_at(0, 1 << 20) is None
    long_bodies = RecentRun([RecentRecord(("T", 0), 0, 0, 1 << 20, b"")], 5, 1 << 20)
    kept.add(long_bodies)
    assert kept.pop_at(0, 1 << 20) == long_bodies
    for start in range(0, 200 * 200, 200):
        kept.add(run_at(start))
    assert kept.pop_at(0, 1 << 20) is None
    assert kept.pop_at(199 * 200, 1 << 20) == run_at(199 * 200)
