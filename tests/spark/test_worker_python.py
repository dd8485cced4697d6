"""Queries whose Spark would start another Python than the one with rocketpoll."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.programs.python_programs import bare_python

from rmq_spark.spark.data_source import RocketPollDataSource
from rmq_spark.spark.errors import SetUpError
from rmq_spark.spark.worker_python import check_worker_python

pytestmark = pytest.mark.deep

ROOT = Path(__file__).parents[2]
PACKAGES = ("numpy", "pyarrow", "orjson")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Hide rocketpoll from sys.path, as if it were installed in this Python's packages."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    monkeypatch.setattr(
        sys, "path", [entry for entry in sys.path if not entry.startswith(str(ROOT))]
    )


def test_bare_python3_on_path_is_refused_with_the_command_to_type(tmp_path, monkeypatch):
    bare_python(tmp_path / "bare")
    monkeypatch.setenv("PATH", str(tmp_path / "bare" / "bin"), prepend=os.pathsep)
    with pytest.raises(SetUpError) as raised:
        check_worker_python()
    assert str(raised.value) == (
        f"Spark would run this query in {tmp_path}/bare/bin/python3 (PYSPARK_PYTHON is not set, "
        f"and PATH has it first), which has no rmq_spark, numpy, pyarrow, orjson; {sys.executable} "
        f"has all packages. Before Spark is started, run export PYSPARK_PYTHON={sys.executable}"
    )


def test_load_checks_the_worker_python_before_connecting_to_a_broker(tmp_path, monkeypatch):
    monkeypatch.setenv("PYSPARK_PYTHON", bare_python(tmp_path / "some", *PACKAGES))
    source = RocketPollDataSource({"namesrvAddr": "127.0.0.1:1", "topic": "T"})
    with pytest.raises(
        SetUpError, match=re.escape("(PYSPARK_PYTHON names it), which has no rmq_spark; ")
    ):
        source.schema()


def test_worker_python_with_rocketpoll_on_its_path_is_accepted(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path, str(ROOT)])
    monkeypatch.setenv("PYSPARK_PYTHON", bare_python(tmp_path / "all", *PACKAGES))
    check_worker_python()


@pytest.mark.parametrize("text", ["#!/bin/sh\nexit 3\n", "no program", None])
def test_worker_python_that_exists_only_on_workers_is_not_checked(tmp_path, monkeypatch, text):
    """The path may exist only on a cluster's machines."""
    python = tmp_path / "python"
    if text is not None:
        python.write_text(text, encoding="utf-8")
        python.chmod(0o755)
    monkeypatch.setenv("PYSPARK_PYTHON", str(python))
    check_worker_python()


def test_worker_python_check_accepts_the_running_python(monkeypatch):
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    check_worker_python()


def test_worker_with_only_the_sources_on_its_path_is_refused(tmp_path):
    """With PYTHONPATH set to the project's folder, Spark finds the source in any Python."""
    bare = bare_python(tmp_path / "bare")
    check = "from rmq_spark.spark.worker_python import check_worker_python as c; c()"
    done = subprocess.run(
        [bare, "-S", "-c", check],
        env={"PYTHONPATH": str(ROOT), "PATH": str(tmp_path / "bare" / "bin")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (
        f"SetUpError: Spark runs this query in {bare} (PYSPARK_PYTHON is not set, and PATH has it "
        "first), which has no numpy, pyarrow, orjson. Before Spark is started, set "
        "PYSPARK_PYTHON to the Python in which rocketpoll was installed with pip"
    ) in done.stderr
