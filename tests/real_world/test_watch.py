"""The watch of the real world works like that of the simulated one."""

import re
from pathlib import Path

import pytest
from real_world.machine import STORE, Machine
from real_world.watch import Watch
from world import ledger
from world.offsets import Offsets

SHARED = ("acts/*", "batches", "ledger", "offsets", "player", "returns")
"""Modules of the simulated world that the real one uses."""


@pytest.fixture
def machine(tmp_path):
    machine = Machine(tmp_path)
    (machine.disk / STORE / "commitlog").mkdir(parents=True)
    return machine


class Broker:
    """A process that is slow, or dies, while it is awaited."""

    def __init__(self):
        self.now = 0.0
        self.is_alive = True
        self.acts = {}  # what it does, by the time

    def sleep(self, seconds):
        self.now += seconds
        for time in [time for time in self.acts if time <= self.now]:
            self.acts.pop(time)()

    def die(self):
        self.is_alive = False


@pytest.fixture
def broker():
    return Broker()


@pytest.fixture
def watch(machine, broker):
    return Watch(broker, None, machine.log_min_offset, lambda: broker.is_alive, may_expire=True)


def asked_of_a_watch():
    base = Path(ledger.__file__).parent
    for name in SHARED:
        for path in base.glob(f"{name}.py"):
            yield from re.findall(r"\bwatch\.(\w+)", path.read_text())


def test_real_watch_has_all_methods_of_the_simulated_one(watch):
    asked = set(asked_of_a_watch())
    assert len(asked) > 10
    assert [name for name in sorted(asked) if not hasattr(watch, name)] == []


@pytest.fixture
def files(machine):
    """Return the two files of a log."""
    files = [machine.disk / STORE / "commitlog" / f"{begin:020}" for begin in (4096, 8192)]
    for file in files:
        file.touch()
    return files


def test_log_offset_is_gone_with_its_file(watch, files):
    assert watch.is_gone_from_log(4095)
    assert not watch.is_gone_from_log(4096)


def test_real_world_watch_waits_for_a_slow_file_deletion(watch, files, broker):
    broker.acts[20.0] = files[0].unlink
    assert watch.is_gone_from_log(4096)
    assert not watch.is_gone_from_log(8192)


def test_log_file_left_by_a_dying_broker_stays_for_the_next_one(watch, files, broker):
    broker.acts[1.0] = broker.die
    assert watch.is_gone_from_log(4096)
    assert files[0].exists()


class CommittingWorld:
    """The part of a world that knows the committed offsets of groups."""

    def __init__(self, broker, watch):
        self.kernel, self.watch, self.ledger = broker, watch, self
        self.complaints = []

    def complain(self, what):
        self.complaints.append(what)


def test_commit_just_before_the_end_may_be_unsaved(watch, broker):
    world = CommittingWorld(broker, watch)
    offsets, key = Offsets(world, watch.slack_seconds), ("G", "T", 0)
    watch.life_began(is_in_trouble=False)
    for offset in (5, 9):
        broker.sleep(2 * watch.slack_seconds)
        offsets.answered(offsets.asked(key, offset), is_done=True)
    broker.sleep(watch.slack_seconds / 2)
    watch.life_ends()
    broker.sleep(2 * watch.slack_seconds)  # for the states that a power loss may leave
    offsets.life_ended("power")
    watch.life_ended("power")
    watch.life_began(is_in_trouble=False)
    assert offsets.allowed(key) == {5, 9}
    offsets.queried(key, set(), None)
    assert world.complaints == ["group G is at None of T/0, not at {9, 5}"]
