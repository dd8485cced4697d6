"""``rocketpoll doctor`` finds which Python Spark would start, in typically broken setups."""

import os
import sys
from pathlib import Path

import pytest
from support.programs.python_programs import bare_python

from rmq_spark.cli.doctor import check_worker_python

ROOT = Path(__file__).parents[3]
PACKAGES = ("numpy", "pyarrow", "orjson")
FINDER = (
    "import importlib.util, sys; util = importlib.util; "
    "sys.meta_path.append(type('Finder', (), {'find_spec': staticmethod("
    "lambda name, path=None, target=None, util=util: util.spec_from_file_location(name, %r) "
    "if name == 'pyspark_rocketpoll' else None)}))"
)
"""An import hook like that of an editable install: its modules can be imported, but no directory
lists them."""


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Change to an empty directory, because Spark's workers import modules from the working
    directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)


def faults_with(monkeypatch, python):
    monkeypatch.setenv("PYSPARK_PYTHON", str(python))
    return {each.subject: each for each in check_worker_python() if not each.is_ok}


def test_doctor_accepts_the_python_that_runs_the_tests(monkeypatch):
    assert faults_with(monkeypatch, sys.executable) == {}


def test_doctor_checks_python3_of_path_without_pyspark_python(monkeypatch, tmp_path):
    python = bare_python(tmp_path / "other")
    monkeypatch.setenv("PATH", str(Path(python).parent), prepend=os.pathsep)
    first, *_ = check_worker_python()
    assert str(tmp_path / "other" / "bin" / "python3") in first.detail
    assert "python3 on PATH, because PYSPARK_PYTHON is not set" in first.detail


def test_bare_worker_python_is_reported_with_missing_packages_and_format(monkeypatch, tmp_path):
    python = bare_python(tmp_path / "bare")
    faults = faults_with(monkeypatch, python)
    assert faults["its packages"].detail == f"{python} has no numpy, pyarrow, orjson"
    assert f"{python} -m pip install numpy pyarrow orjson" in faults["its packages"].remedy
    assert "cannot find the format" in faults["the format"].detail
    assert faults["the format"].remedy == f"run export PYSPARK_PYTHON={sys.executable}"


def test_worker_python_without_pyarrow_is_reported(monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    faults = faults_with(monkeypatch, bare_python(tmp_path / "some", "numpy", "orjson"))
    assert list(faults) == ["its packages"]
    assert faults["its packages"].detail.endswith("has no pyarrow")


def test_worker_python_with_clone_on_its_path_has_no_fault(monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    assert faults_with(monkeypatch, bare_python(tmp_path / "all", *PACKAGES)) == {}


def test_doctor_recognises_an_editable_install_invisible_to_spark(monkeypatch, tmp_path):
    python = bare_python(tmp_path / "editable", *PACKAGES)
    [site] = (tmp_path / "editable").glob("lib/python3*/site-packages")
    (site / "editable.pth").write_text(
        FINDER % str(ROOT / "pyspark_rocketpoll.py"), encoding="utf-8"
    )
    faults = faults_with(monkeypatch, python)
    assert list(faults) == ["the format"]
    assert "Spark does not find it in a list of modules" in faults["the format"].detail
    assert "-m pip install -e DIRECTORY without" in faults["the format"].remedy


def test_worker_python_with_another_rocketpoll_release_is_reported(monkeypatch, tmp_path):
    (tmp_path / "pyspark_rocketpoll.py").touch()
    (tmp_path / "rmq_spark.py").write_text("__version__ = '0.0.1'\n", encoding="utf-8")
    faults = faults_with(monkeypatch, bare_python(tmp_path / "old", *PACKAGES))
    assert "has rocketpoll 0.0.1, this Python" in faults["the format"].detail


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("#!/bin/sh\necho 'no such library' >&2\nexit 127\n", "fails: no such library"),
        ("#!/bin/sh\nexit 3\n", "fails: exit code 3"),
        ("#!/bin/sh\necho '{\"version\": [3, 7]}'\n", "is Python 3.7, this one 3."),
    ],
)
def test_worker_python_that_fails_or_is_too_old_is_reported(monkeypatch, tmp_path, text, said):
    python = tmp_path / "python"
    python.write_text(text, encoding="utf-8")
    python.chmod(0o755)
    faults = faults_with(monkeypatch, python)
    assert said in faults["worker Python"].detail


def test_missing_worker_python_is_reported(monkeypatch, tmp_path):
    faults = faults_with(monkeypatch, tmp_path / "python9")
    assert faults["worker Python"].detail.endswith("python9 (from PYSPARK_PYTHON)")
