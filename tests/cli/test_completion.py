"""Shell completion: scripts that shells accept, and names of commands, topics and groups."""

import os
import shutil
import subprocess
import sys

import pytest
from support.brokers.broker_kinds import wait_until

from rmq_spark.cli.shell.completion import SHELLS


def completed(words, **environment):
    """Return the completions that bash gets for the last of these words."""
    done = subprocess.run(
        [sys.executable, "-m", "rocketpoll"],
        env={**os.environ, "_ROCKETPOLL_COMPLETE": "bash_complete", "COMP_WORDS": words,
             "COMP_CWORD": str(words.count(" ")), **environment},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stderr == ""
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line]


@pytest.mark.parametrize("shell", SHELLS)
def test_completion_script_is_accepted_by_its_shell(run, shell):
    script = run("completion", shell)
    assert script.code == 0
    assert "_ROCKETPOLL_COMPLETE" in script.out
    program = shutil.which(shell)
    if program is not None:  # if the shell is missing, only the script's text is checked
        checked = [program, "-n"] if shell != "fish" else [program, "--no-execute"]
        done = subprocess.run(
            checked, input=script.out, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")


def test_unknown_shell_is_refused_with_those_known(run):
    ran = run("completion", "tcsh")
    assert (ran.code, ran.out) == (2, "")
    assert "Use one of bash, zsh, fish" in ran.err


def test_commands_and_options_complete_without_a_cluster():
    assert completed("rocketpoll group s") == ["seek"]
    assert completed("rocketpoll group describe --la") == ["--lag-only"]


def test_completion_of_unknown_words_is_empty_without_an_error():
    for words in ("rocketpoll nope ", "rocketpoll group nope o", "rocketpoll --nope "):
        assert set(completed(words)) <= {*completed("rocketpoll "), *completed("rocketpoll group ")}


def test_completion_after_help_lists_commands():
    assert "topic" in completed("rocketpoll help ")
    assert completed("rocketpoll help cl") == ["cluster"]
    assert completed("rocketpoll help group s") == ["seek"]


def test_completion_lists_topics_groups_and_profiles(cluster, tmp_path):
    topic = cluster.topic(name="shop-orders")
    cluster.store_offset("shop-billing", topic, 0)
    (tmp_path / "p.ini").write_text("[shop]\nnamesrv = a:1\n[lab]\nnamesrv = b:1\n")
    here = {"NAMESRV_ADDR": cluster.name_server, "ROCKETPOLL_PROFILES": str(tmp_path / "p.ini")}
    for words, names in (
        ("rocketpoll consume shop", [topic]),
        ("rocketpoll tail other shop", [topic]),
        ("rocketpoll group seek shop-billing --topic shop", [topic]),
        ("rocketpoll group describe shop", ["shop-billing"]),
        ("rocketpoll dlq show shop", ["shop-billing"]),
        ("rocketpoll topic list --profile ", ["lab", "shop"]),
        ("rocketpoll profile use s", ["shop"]),
        ("rocketpoll consume %", []),
        ("rocketpoll consume broker-", []),
    ):
        wait_until(words, lambda: completed(words, **here) == names)  # noqa: B023  # as soon as the name is known
    option = f"rocketpoll consume --namesrv {cluster.name_server} shop"
    away = {"NAMESRV_ADDR": "127.0.0.1:1"}
    wait_until("names", lambda: completed(option, **away) == [topic])


def test_completion_of_an_unreachable_cluster_is_empty():
    assert completed("rocketpoll consume o", NAMESRV_ADDR="127.0.0.1:1") == []
