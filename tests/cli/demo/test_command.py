import sys

import pytest

from rmq_spark.cli.main import main


@pytest.mark.parametrize(
    "given", [["--rate", "0"], ["--seconds", "-1"], ["--bytes", "x"], ["--fast"]]
)
def test_arguments_that_cannot_be_meant_are_refused(given, capsys):
    assert main(["demo", *given]) == 2
    assert "(see rocketpoll demo --help)" in capsys.readouterr().err


def test_without_java_it_says_how_to_get_it(monkeypatch, tmp_path, capfd):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["demo"]) == 1
    assert (
        "there is no java on PATH. Spark 4 runs on Java 17 or 21. On Debian"
        in capfd.readouterr().err
    )


def test_without_pyspark_it_says_how_to_get_it(pyspark_that_is_missing, capfd):
    assert main(["demo"]) == 1
    assert f"{sys.executable} -m pip install '{pyspark_that_is_missing}'" in capfd.readouterr().err
