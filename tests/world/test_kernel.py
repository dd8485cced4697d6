"""The kernel: one event at a time in random order, kills are final, and deadlocks are detected."""

from __future__ import annotations

import random

import pytest
from world.kernel import Actor, Deadlock, Kernel, Killed
from world.tasks import Tasks


@pytest.fixture
def kernel():
    kernel = Kernel(random.Random(1))
    yield kernel
    kernel.close()


def test_simulated_time_advances_when_all_actors_wait(kernel):
    told = []

    def work():
        for seconds in (3_600, 0.5):
            kernel.sleep(seconds)
            told.append(kernel.now)

    kernel.start(Actor("a"), work)
    kernel.run(10_000)
    assert told == [3_600, 3_600.5]
    assert kernel.now == 10_000


def test_simultaneous_events_run_in_an_order_given_by_the_seed():
    def order(seed):
        kernel, told = Kernel(random.Random(seed)), []
        for name in "abcdef":
            kernel.start(Actor(name), lambda name=name: told.append(name))
        kernel.run(1)
        kernel.close()
        return "".join(told)

    assert order(1) == order(1)
    assert len({order(seed) for seed in range(20)}) > 10


def test_kernel_runs_one_actor_at_a_time(kernel):
    running = []

    def work():
        for _ in range(50):
            running.append(1)
            assert len(running) == 1
            running.pop()
            kernel.sleep(kernel.dice.random())

    actors = [Actor(f"a{number}") for number in range(5)]
    for actor in actors:
        kernel.start(actor, work)
    kernel.run(100)
    assert all(actor.is_done for actor in actors)


def test_suspended_actor_is_woken_or_times_out(kernel):
    told = []
    sleeper = Actor("sleeper")

    def sleep():
        told.append((kernel.suspend(kernel.now + 5), kernel.now))
        told.append((kernel.suspend(kernel.now + 5), kernel.now))

    kernel.start(sleeper, sleep)
    kernel.at(2, lambda: kernel.wake(sleeper))
    kernel.run(100)
    assert told == [(True, 2), (False, 7)]


def test_killed_process_unwinds_its_actors_first(kernel):
    process, told = object(), []

    def work(name):
        try:
            kernel.sleep(1 if name == "b" else 10)
            told.append(name)
            if name == "b":
                kernel.kill(process)
                raise Killed
        finally:
            told.append(f"{name} unwinds at {kernel.now:.0f}")

    for name in "abc":
        kernel.start(Actor(name, process), lambda name=name: work(name))
    kernel.start(Actor("stranger"), lambda: work("stranger"))
    kernel.run(100)
    assert told[0] == "b"
    assert sorted(told[1:4]) == ["a unwinds at 1", "b unwinds at 1", "c unwinds at 1"]
    assert told[4:] == ["stranger", "stranger unwinds at 10"]


def test_killed_actor_cannot_wait_while_it_unwinds(kernel):
    process, told = object(), []

    def work():
        try:
            kernel.sleep(10)
        finally:
            with pytest.raises(Killed):
                kernel.sleep(1)
            told.append(kernel.now)

    kernel.start(Actor("a", process), work)
    kernel.at(3, lambda: kernel.kill(process))
    kernel.run(100)
    assert told == [3]


def test_actor_of_a_killed_process_never_starts(kernel):
    process, told = object(), []
    kernel.start(Actor("a", process), lambda: told.append("begun"))
    kernel.kill(process)
    kernel.run(1)
    assert told == []


def test_error_of_an_actor_is_raised_by_run(kernel):
    def work():
        kernel.sleep(1)
        raise ValueError("wrong")

    kernel.start(Actor("a"), work)
    with pytest.raises(ValueError, match="wrong"):
        kernel.run(10)


def test_error_of_an_event_is_raised_by_run(kernel):
    kernel.start(Actor("a"), lambda: [kernel.sleep(0.1) for _ in range(100)])
    kernel.at(5, lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        kernel.run(100)


def test_endless_wait_is_a_deadlock_naming_the_waiter(kernel):
    def wait_for_ever():
        kernel.suspend()

    kernel.start(Actor("somebody"), wait_for_ever)
    with pytest.raises(Deadlock, match=r"(?s)somebody.*wait_for_ever"):
        kernel.suspend()


def test_join_ends_with_the_actor_or_by_timeout(kernel):
    worker, told = Actor("worker"), []
    kernel.start(worker, lambda: kernel.sleep(5))
    kernel.start(Actor("patient"), lambda: told.append((kernel.join(worker), kernel.now)))
    kernel.start(Actor("impatient"), lambda: told.append((kernel.join(worker, 2), kernel.now)))
    kernel.run(10)
    assert told == [(False, 2), (True, 5)]


def test_ended_tasks_run_no_further_and_are_closed(kernel):
    happened, tasks = [], Tasks(kernel)

    async def story(name):
        try:
            happened.append(f"{name} has begun")
            await tasks.sleep(1)
            happened.append(f"{name} goes on")
        finally:
            happened.append(f"{name} is over")

    tasks.begin(story("first"))
    kernel.run(0.5)
    tasks.begin(story("second"))  # it has not begun yet
    tasks.end()
    kernel.run(2)
    assert happened == ["first has begun", "first is over"]
    assert tasks.running == []
