import importlib.util
import re
import sys
from pathlib import Path

import pytest

from rmq_spark.cli.demo import command

PYPROJECT = Path(__file__).parents[3] / "pyproject.toml"


@pytest.mark.parametrize("given", [["--rate", "0"], ["--seconds", "-1"], ["--bytes", "x"], ["--fast"]])
def test_arguments_that_cannot_be_meant_are_refused(given, capsys):
    with pytest.raises(SystemExit) as raised:
        command.run_demo(given)
    assert raised.value.code == 2
    assert "usage: rocketpoll demo" in capsys.readouterr().err


def test_without_java_it_says_how_to_get_it(monkeypatch, tmp_path, capfd):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert command.run_demo([]) == 1
    assert "there is no java on PATH. Spark 4 runs on Java 17 or 21. On Debian" in capfd.readouterr().err


def test_without_pyspark_it_says_how_to_get_it(monkeypatch, capfd):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pyspark" else find(name))
    assert command.run_demo([]) == 1
    [needed] = re.findall(r'^spark = \["(.+)"\]$', PYPROJECT.read_text(encoding="utf-8"), re.MULTILINE)
    assert f"{sys.executable} -m pip install '{needed}'" in capfd.readouterr().err
