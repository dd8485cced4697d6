"""Runs whole worlds in separate processes, one for each test file.

A world replaces the standard library's threads and clock. A process that has run other tests may
still have threads, such as those of Spark's driver and of brokers, which must not get into a world.
All tests of a file share a process, because its start takes longer than many stories.
"""

import gc
import os
import sys

import pytest
from support.suite.late_collection import selected_tests
from world.apart import OF_WORLDS, PIPE, Apart, report

_SECONDS = 390
_OF_THE_DEAD = {"Event loop is closed", "generator already executing"}
"""Errors of a generator that is closed after its loop or its thread was killed."""
_APART = pytest.StashKey[dict]()
"""Session stash: the process of each started file."""
_WORST = pytest.StashKey[pytest.TestReport]()
"""Stash of a test in such a process: its first unsuccessful report, or else its last one."""


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """Wait for a test of whole worlds in its file's process; return None for tests that
    run here."""
    if pyfuncitem.path.name not in OF_WORLDS or PIPE in os.environ:
        return None
    outcome, text = _process_of(pyfuncitem).result_of(pyfuncitem.nodeid, _SECONDS)
    if outcome == "skipped":
        pytest.skip(text)
    if outcome == "failed":
        pytest.fail(text, pytrace=False)
    return True


def _process_of(test):
    processes = test.session.stash.setdefault(_APART, {})
    process = processes.get(test.path)
    if process is None or test.nodeid not in process.nodeids:
        tests = selected_tests(test.session, test.path)
        nodeids = [each.nodeid for each in tests[tests.index(test) :]]
        process = processes[test.path] = Apart(nodeids, test.config.rootpath)
    return process


def pytest_sessionfinish(session):
    for process in session.stash.get(_APART, {}).values():
        process.end()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    made = yield
    if PIPE in os.environ:
        worst = item.stash.get(_WORST, made)
        item.stash[_WORST] = worst = made if worst.passed else worst
        if made.when == "teardown":
            why = worst.longrepr[2] if worst.skipped else worst.longreprtext
            report(item.nodeid, worst.outcome, why + "".join(text for _, text in worst.sections))
    return made


@pytest.fixture(autouse=True)
def _quiet_dead(monkeypatch):
    """Silence errors when unfinished work of a killed broker is collected.

    The work may be in a generator, which is closed then and finds that its loop is gone. A really
    killed process has nothing left to collect.
    """
    told = sys.unraisablehook

    def hook(unraisable):
        if str(unraisable.exc_value) not in _OF_THE_DEAD:
            told(unraisable)

    monkeypatch.setattr(sys, "unraisablehook", hook)
    yield
    gc.collect()
