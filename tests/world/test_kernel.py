"""The kernel: one event at a time in random order, kills are final, and deadlocks are detected."""

import random

import pytest
from world.kernel import Actor, Deadlock, Kernel, Killed
from world.tasks import Tasks


@pytest.fixture
def kernel():
    kernel = Kernel(random.Random(1))
    yield kernel
    kernel.close()


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


def test_endless_wait_is_a_deadlock_naming_the_waiter(kernel):
    def wait_for_ever():
        kernel.suspend()

    kernel.start(Actor("somebody"), wait_for_ever)
    with pytest.raises(Deadlock, match=r"(?s)somebody.*wait_for_ever"):
        kernel.suspend()


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
    tasks.begin(story("second"))  # not started yet
    tasks.end()
    kernel.run(2)
    assert happened == ["first has begun", "first is over"]
    assert tasks.running == []
