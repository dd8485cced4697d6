"""``rocketpoll doctor`` runs all checks and returns the exit code."""

import sys
from importlib import metadata

import pytest

from rmq_spark.cli.main import main
from rmq_spark.cli.spark.spark_runtime import java_fault
from rocketpoll import EmbeddedBroker


@pytest.fixture(autouse=True)
def this_python(monkeypatch):
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)


def test_options_of_a_read_are_passed_on(capsys):
    assert (
        main(
            [
                "doctor",
                "--namesrv",
                "localhost:1",
                "--option",
                "tls=true",
                "--option",
                "tlsCaFile=a=b",
            ]
        )
        == 1
    )
    assert "option tlsCaFile: a=b cannot be read" in capsys.readouterr().out


def test_doctor_gives_the_command_to_install_pyspark(pyspark_that_is_missing, capsys):
    assert main(["doctor"]) == 1
    command = f"{sys.executable} -m pip install '{pyspark_that_is_missing}'"
    assert f"fix: run {command}" in capsys.readouterr().out


def test_doctor_of_a_cluster_only_warns_of_missing_pyspark(pyspark_that_is_missing, capsys):
    with EmbeddedBroker() as broker:
        assert main(["doctor", "--namesrv", broker.address]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:2] == ["warning", "pyspark"]
    assert f"pip install '{pyspark_that_is_missing}'" in lines[1]
    assert not any(" java " in line for line in lines)
    assert lines[-1] == "no check failed, 1 warned"


@pytest.mark.skipif(java_fault() is not None, reason="this machine has no Java for Spark")
def test_doctor_reports_a_ready_machine(capsys):
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["ok", "pyspark", metadata.version("pyspark")]
    assert lines[-1] == "everything is ready"


def test_doctor_reports_missing_java(monkeypatch, tmp_path, capsys):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["doctor"]) == 1
    said = capsys.readouterr().out
    assert "FAIL  Java           there is no java on PATH\n" in said
    assert "fix: Spark 4 needs Java 17 or 21" in said
    assert said.endswith("1 of 6 checks failed\n")


def test_doctor_names_an_unsupported_spark_release(monkeypatch, capsys):
    monkeypatch.setattr(metadata, "version", lambda _: "3.5.1")
    assert main(["doctor"]) == 1
    assert "FAIL  pyspark        3.5.1; rocketpoll needs 4.0 to 4.3" in capsys.readouterr().out
