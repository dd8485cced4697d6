"""Actions run in parallel in a few threads, and their errors are returned."""

import threading

import pytest

from rmq_spark.client.concurrency import threads
from rmq_spark.client.concurrency.threads import parallel_map, raise_first
from rmq_spark.client.errors import ThreadNotStarted

PATIENCE_S = 20


def each_with(action, things, most=4):
    return parallel_map(things, action, threads_max=most, name="test")


def test_parallel_map_limits_its_threads():
    together, changing = threading.Barrier(4), threading.Lock()
    under_way, highest = 0, 0

    def action(thing):
        nonlocal under_way, highest
        with changing:
            under_way += 1
            highest = max(highest, under_way)
        together.wait(PATIENCE_S)  # raises if fewer than four run
        with changing:
            under_way -= 1
        return thing * 2

    assert list(each_with(action, range(12)).items()) == [(n, n * 2) for n in range(12)]
    assert highest == 4


def test_parallel_actions_run_once_each_and_return_their_errors():
    done = []

    def action(thing):
        done.append(thing)
        if thing % 2:
            raise ValueError(thing)
        return thing

    found = each_with(action, [3, 1, 2, 3, 1])
    assert sorted(done) == [1, 2, 3]
    assert list(found) == [3, 1, 2]
    assert (found[2], found[1].args, found[3].args) == (2, (1,), (3,))


def test_parallel_map_of_one_item_runs_in_the_caller():
    assert each_with(lambda _: threading.current_thread(), ["one"]) == {
        "one": threading.current_thread()
    }
    assert each_with(lambda _: 1, []) == {}


def test_parallel_map_without_threads_runs_in_the_caller(monkeypatch):
    def none_is_left(_):
        raise ThreadNotStarted("can't start new thread")

    monkeypatch.setattr(threads, "start_thread", none_is_left)
    caller = threading.current_thread()
    assert each_with(lambda _: threading.current_thread(), "abc") == dict.fromkeys("abc", caller)


def test_parallel_map_stops_after_a_final_error():
    begun = []

    def action(thing):
        begun.append(thing)
        if thing == 2:
            raise LookupError(thing)
        return 0

    found = parallel_map(range(6), action, threads_max=1, name="test", stop_on=(LookupError,))
    assert begun == [0, 1, 2]
    assert list(found) == [*range(6)]
    assert [found[thing] for thing in (0, 1)] == [0, 0]
    assert {found[thing] for thing in range(2, 6)} == {found[2]}
    assert found[2].args == (2,)


def test_interrupted_parallel_map_starts_nothing_more():
    begun, may_end = [], threading.Event()

    def action(thing):
        begun.append(thing)
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        may_end.wait(PATIENCE_S)

    before = set(threading.enumerate())
    with pytest.raises(KeyboardInterrupt):
        each_with(action, range(100))
    count = len(begun)
    may_end.set()
    for helper in set(threading.enumerate()) - before:
        helper.join(PATIENCE_S)
        assert not helper.is_alive()
    assert count <= 4
    assert len(begun) <= 4


def test_raise_first_raises_the_first_error_among_outcomes():
    raise_first([1, None])
    with pytest.raises(KeyError, match="first"):
        raise_first([1, KeyError("first"), ValueError("second")])
