"""The page about the command line lists only commands and options that exist."""

import re
import shlex
import time
from datetime import datetime
from pathlib import Path

import click
import pytest

from rmq_spark.cli import main as cli

PAGE = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text(encoding="utf-8")
LINES = [
    command.strip()
    for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    for line in block.splitlines()
    for command in line.split("|" if "'" not in line else " | ")
    if command.strip().startswith("rocketpoll ")
]
AFTERNOON = datetime(2026, 11, 24, 14, 30).astimezone().timestamp()


@pytest.mark.parametrize("line", LINES)
def test_every_command_on_the_command_line_page_parses(line, tmp_path, monkeypatch):
    # before nine, @09:00 would be in the future
    monkeypatch.setattr(time, "time", lambda: AFTERNOON)
    (tmp_path / "store").mkdir()
    command = cli.command_tree()
    context = click.Context(command, info_name="rocketpoll")
    words = [word.replace("~", str(tmp_path)) for word in shlex.split(line)[1:]]
    while isinstance(command, click.Group):
        _, command, words = command.resolve_command(context, words)
    command.make_context(line, words)  # raises if the line is invalid


def test_command_line_page_names_exactly_the_existing_commands():
    named = set(re.findall(r"`rocketpoll ([a-z]+)", PAGE))
    named |= set(re.findall(r"`(demo|checkpoint|archive)`", PAGE))
    assert named - {"help"} == {name for section in cli.SECTIONS.values() for name in section}
