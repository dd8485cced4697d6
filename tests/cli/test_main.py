"""The command line finds and lists its commands, and each way of ending has its exit code."""

import subprocess
import sys
from pathlib import Path

import click
import pytest

from rmq_spark import __version__
from rmq_spark.cli import main as cli
from rmq_spark.cli.cluster import store_command
from rmq_spark.cli.shell.help_topics import TOPICS
from rmq_spark.client.errors import ConnectionFailed

NO_COMMAND = "there is no command brokre. Did you mean broker?"
GONE = "cannot connect to b:1: gone. Run rocketpoll cluster health to see which brokers answer"
NAMES = [name for section in cli.SECTIONS.values() for name in section]


@pytest.mark.parametrize("noun", ["topic", "group", "dlq", "store", "cluster", "bench", "sink"])
def test_command_group_without_a_verb_prints_its_help(capsys, noun):
    assert cli.main([noun]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"Usage: rocketpoll {noun} [OPTIONS] COMMAND [ARGS]...\n\n")
    assert len(err.splitlines()) > 8


def test_command_line_without_a_command_lists_them(capsys):
    for given in ([], ["--help"], ["-h"], ["help"]):
        assert cli.main(given) == 0
        said = capsys.readouterr().out
        for name in NAMES:
            assert f"\n  {name} " in said


@pytest.mark.parametrize("topic", TOPICS)
def test_help_command_prints_common_options(capsys, topic):
    assert cli.main(["help", topic]) == 0
    said = capsys.readouterr().out
    expected = {"connection": "--tls-key-file", "positions": "09:00", "format": "%k"}
    assert expected[topic] in said


def test_help_with_a_command_is_the_help_of_that_command(capsys):
    assert cli.main(["group", "seek", "--help"]) == 0
    said = capsys.readouterr().out
    assert cli.main(["help", "group", "seek"]) == 0
    assert capsys.readouterr().out == said
    assert "rocketpoll help connection" in said
    assert "--tls-key-file" not in said
    assert cli.main(["help", "nope"]) == 2


@pytest.mark.parametrize("verb", ["group describe", "topic create", "tail", "cluster health"])
def test_options_of_a_verb_are_on_the_first_screen_of_its_help(monkeypatch, capsys, verb):
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.main([*verb.split(), "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines.index("Connection:") <= 24


def test_version_option_prints_the_version(capsys):
    for given in ("--version", "-V"):
        assert cli.main([given]) == 0
        assert capsys.readouterr().out == f"rocketpoll {__version__}\n"


def test_unknown_command_suggests_the_nearest(capsys):
    assert cli.main(["brokre"]) == 2
    assert capsys.readouterr() == (
        "",
        f"rocketpoll: {NO_COMMAND} See rocketpoll --help\n",
    )


@pytest.mark.parametrize("given", [[], ["-c", "FILE", "listenPort=0"], ["--help"], ["-p", "-m"]])
def test_broker_command_line_is_passed_on(monkeypatch, given):
    seen = []
    monkeypatch.setattr(store_command, "run_broker", seen.append)
    assert cli.main(["broker", *given]) == 0
    assert seen == [tuple(given)]


@pytest.mark.parametrize("name", NAMES)
def test_each_command_can_be_imported(name):
    tree = cli.command_tree()
    command = tree.get_command(click.Context(tree), name)
    assert command.name == name
    assert command.help


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (KeyboardInterrupt(), 130, ""),
        (click.Abort(), 130, ""),
        (click.ClickException("a\nb"), 1, "rocketpoll topic list: a b\n"),
        (ConnectionFailed("b:1", "gone"), 1, f"rocketpoll topic list: {GONE}\n"),
    ],
)
def test_failing_command_prints_one_line_and_returns_its_exit_code(
    monkeypatch, capsys, error, code, said
):
    def fail(_):
        raise error

    monkeypatch.setattr("rmq_spark.cli.shell.connection.ClusterAccess.admin", fail)
    assert cli.main(["topic", "list"]) == code
    assert capsys.readouterr() == ("", said)


def test_output_to_a_full_disk_fails_with_one_line():
    with open("/dev/full", "w", encoding="ascii") as full:  # noqa: PTH123  # a device
        done = subprocess.run(
            [sys.executable, "-m", "rocketpoll", "--help"],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == (
        "rocketpoll: cannot write the output: No space left on device. Check where stdout leads\n"
    )


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize(
    ("given", "code"), [("--version", 0), ("nosuch", 2), ("topic list --namesrv 127.0.0.1:1", 1)]
)
def test_command_works_with_closed_standard_streams(closed, given, code):
    command = f"exec {sys.executable} -m rocketpoll {given} {closed}"
    done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert len(done.stderr.splitlines()) == (1 if code and "2>" not in closed else 0)


INTERRUPTS = "import os, signal; os.kill(os.getpid(), signal.SIGINT)\n"


@pytest.mark.parametrize(("before", "code"), [("", 130), ("trap '' INT; ", 0)])
def test_ctrl_c_during_command_import_is_quiet(tmp_path, monkeypatch, before, code):
    """A process that ignores SIGINT, as with nohup, continues."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    click_itself = f"import sys; sys.path.remove({str(tmp_path)!r}); del sys.modules['click']\n"
    (tmp_path / "click.py").write_text(INTERRUPTS + click_itself + "import click\n")
    command = f"{before}exec {sys.executable} -m rocketpoll --version"
    done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (code, "")


def test_exit_code_is_kept_when_the_error_cannot_be_written():
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "rocketpoll", "nosuch"], stderr=full, check=False
        )
    assert done.returncode == 2


def test_help_imports_neither_rich_nor_a_client():
    script = (
        "import sys; from rmq_spark.cli.main import main; main(['--help']); "
        "sys.exit(sorted({'rich', 'yaml', 'numpy', 'pyarrow', 'rmq_spark.client.admin'} "
        "& set(sys.modules)) or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
