"""The watch of the real world takes the place of the simulated one's."""

import re
from pathlib import Path

import pytest
from real_world.machine import STORE, Machine
from real_world.watch import Watch
from world import ledger

SHARED = ("acts/*", "batches", "ledger", "offsets", "player", "returns")
"""What the real world takes from the simulated one."""


@pytest.fixture
def machine(tmp_path):
    machine = Machine(tmp_path)
    (machine.disk / STORE / "commitlog").mkdir(parents=True)
    return machine


@pytest.fixture
def watch(machine):
    return Watch(None, None, machine.log_min_offset, may_expire=True)


def asked_of_a_watch():
    base = Path(ledger.__file__).parent
    for name in SHARED:
        for path in base.glob(f"{name}.py"):
            yield from re.findall(r"\bwatch\.(\w+)", path.read_text())


def test_it_answers_all_that_both_worlds_ask(watch):
    asked = set(asked_of_a_watch())
    assert len(asked) > 10
    assert [name for name in sorted(asked) if not hasattr(watch, name)] == []


def test_a_place_is_gone_with_its_file_of_the_log(machine, watch):
    for begin in (4096, 8192):
        (machine.disk / STORE / "commitlog" / f"{begin:020}").touch()
    assert watch.is_gone_from_log(4095)
    assert not watch.is_gone_from_log(4096)
