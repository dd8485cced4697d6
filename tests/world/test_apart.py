"""Tests in a separate process: each result is reported where the test was requested."""

import re
from pathlib import Path

import pytest
from world.apart import OF_WORLDS, Apart

TESTS = """
import os
import pytest

def test_passes(): pass
def test_fails(): print("said before"); assert 1 == 2
def test_is_skipped(): pytest.skip("no need")
@pytest.fixture
def damaged():
    yield
    raise OSError("left behind")
def test_leaves_damage(damaged): pass
def test_kills_the_process(): os._exit(9)
def test_is_never_reached(): pass
"""
NAMES = [line[4 : line.index("(")] for line in TESTS.splitlines() if line.startswith("def test")]


@pytest.fixture
def apart(tmp_path, monkeypatch):
    """Return the process of these tests."""
    roots = [Path(__file__).parents[1], Path(__file__).parents[2]]
    monkeypatch.setenv("PYTHONPATH", ":".join(map(str, roots)))
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "conftest.py").write_text("from world.conftest import pytest_runtest_makereport\n")
    started = Apart([f"test_some.py::{name}" for name in NAMES], tmp_path)
    yield started
    started.end()


def result_of(apart, name):
    return apart.result_of(f"test_some.py::{name}", 60)


def test_separate_process_reports_the_outcome_of_each_test(apart):
    assert result_of(apart, "test_passes") == ("passed", "")
    outcome, text = result_of(apart, "test_fails")
    assert outcome == "failed"
    assert "assert 1 == 2" in text
    assert "said before" in text
    assert result_of(apart, "test_is_skipped") == ("skipped", "Skipped: no need")
    outcome, text = result_of(apart, "test_leaves_damage")
    assert outcome == "failed"
    assert "left behind" in text
    outcome, text = result_of(apart, "test_kills_the_process")
    assert outcome == "failed"
    assert text.endswith("the last words:\n.Fs.E")
    assert apart.nodeids == []


def test_missing_result_in_time_fails_and_stops_the_process(apart):
    assert apart.result_of("test_some.py::test_passes", 0)[0] == "failed"
    assert apart.nodeids == []


def test_world_tests_are_listed_to_run_in_their_own_process():
    tellers = {
        path.name
        for path in Path(__file__).parent.glob("test_*.py")
        if re.search(r"^from world\.(trials|shrinking) import", path.read_text(), re.MULTILINE)
    }
    assert tellers <= OF_WORLDS
    assert "test_spark_commits.py" in tellers
