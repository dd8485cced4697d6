"""The command line finds its commands, and says which there are."""

from __future__ import annotations

import pytest

from rmq_spark import __version__
from rmq_spark.cli import main as cli


def test_without_a_command_it_says_which_there_are(capsys):
    assert cli.main([]) == cli.main(["--help"]) == 0
    said = capsys.readouterr().out
    for name in cli.COMMANDS:
        assert f"  {name}" in said


def test_it_knows_its_version(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"rocketpoll {__version__}\n"


def test_a_command_that_is_not_there_is_an_error_that_helps(capsys):
    assert cli.main(["brokre"]) == 2
    said = capsys.readouterr().err
    assert "no command 'brokre'" in said
    assert "  broker" in said


@pytest.mark.parametrize("given", [[], ["-c", "FILE", "listenPort=0"]])
def test_a_command_gets_what_stands_behind_its_name(monkeypatch, given):
    seen = []
    monkeypatch.setitem(
        cli.COMMANDS, "broker", (lambda arguments: seen.append(arguments) or 7, "runs")
    )
    assert cli.main(["broker", *given]) == 7
    assert seen == [given]
