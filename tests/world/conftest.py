"""Whole worlds are told in processes of their own.

A world takes the place of the standard library's threads and clock. Of a process that has run other
tests, threads may be left, as those of Spark's driver and of brokers in it: they must not get into
it.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys

import pytest

_ALONE = "ROCKETPOLL_WORLD_IS_ALONE"
_OF_WORLDS = {
    "test_worlds.py",
    "test_client_worlds.py",
    "test_spark_worlds.py",
    "test_threads.py",
    "test_watch.py",
    "test_sockets.py",
}
_SECONDS = 390
_OF_THE_DEAD = {"Event loop is closed", "generator already executing"}
"""What a generator meets that is closed when its loop or its thread has been killed."""


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """Run a test of whole worlds by itself; None: as any other."""
    if pyfuncitem.path.name not in _OF_WORLDS or os.environ.get(_ALONE):
        return None
    ran = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:xdist",
            pyfuncitem.nodeid,
        ],
        cwd=pyfuncitem.config.rootpath,
        env={**os.environ, _ALONE: "1"},
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    if ran.returncode == 5 or " skipped" in ran.stdout:
        pytest.skip("it has nothing to run")
    if ran.returncode:
        pytest.fail(ran.stdout[-20_000:] + ran.stderr[-2_000:], pytrace=False)
    return True


@pytest.fixture(autouse=True)
def _quiet_dead(monkeypatch):
    """What a broker that was killed has left in the middle is collected without a word.

    Its work may be in a generator that is closed then, and finds that there is no loop any more; of
    a process that is killed nothing is left that could be collected.
    """
    told = sys.unraisablehook

    def hook(unraisable):
        if str(unraisable.exc_value) not in _OF_THE_DEAD:
            told(unraisable)

    monkeypatch.setattr(sys, "unraisablehook", hook)
    yield
    gc.collect()
