"""Each verb's help shows an example, and each of these runs as it is written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from broker_kinds import wait_until
from staged_rows import commit_batch

from rmq_spark.cli import main as cli
from rmq_spark.cli.tree import Verb
from rmq_spark.client.manifest import Manifest, ManifestId, commits_topic

WITHOUT_A_CLUSTER = {
    *("broker", "demo", "doctor", "checkpoint", "archive", "store", "exporter", "console"),
}
"""Commands with tests of their own: they take Spark, a directory of this machine, or for ever."""


def verbs(command, words):
    """All verbs below a command, by the words that name them."""
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            below = command.get_command(click.Context(command), name)
            yield from verbs(below, (*words, name))
    else:
        yield words, command


EVERY = {" ".join(words): verb for words, verb in verbs(cli.command_tree(), ())}
EXAMPLES = [
    (name, line)
    for name, verb in EVERY.items()
    if name.split()[0] not in WITHOUT_A_CLUSTER
    for line in verb.example.splitlines()
]


@pytest.fixture(scope="module")
def shell(addresses, tmp_path_factory):
    """Start a line as it is written, in a shell in which ``rocketpoll`` is installed."""
    directory = tmp_path_factory.mktemp("shell")
    program = directory / "rocketpoll"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m rocketpoll "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    root = Path(__file__).parents[2]
    path = f"{directory}{os.pathsep}{os.environ['PATH']}"
    variables = {"PATH": path, "NAMESRV_ADDR": addresses[0], "PYTHONPATH": str(root)}

    def ran(line):
        return subprocess.Popen(
            ["/bin/sh", "-c", line],
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, cwd=directory,
        )  # fmt: skip

    return ran


@pytest.mark.parametrize("name", EVERY)
def test_each_verb_has_an_example_and_its_help_shows_it(run, name):
    if name == "broker":  # its help is the broker's own
        return
    verb = EVERY[name]
    assert isinstance(verb, Verb)
    assert verb.example.startswith(("rocketpoll ", "echo ", "seq "))
    assert f"rocketpoll {name}" in verb.example
    said = run(*name.split(), "--help")
    assert said.code == 0
    for line in verb.example.splitlines():
        assert f"\n  {line}\n" in said.out


@pytest.fixture
def stage(run, cluster, kind):
    """The topics and groups that examples speak of; dead letters and committed batches, too."""

    def set_for(name):
        run("topic", "delete", "orders", "--yes")
        for topic in ("payments", "orders-copy", "bench", "orders", "%DLQ%billing"):
            if (name, topic) != ("topic create", "orders"):
                cluster.topic(name=topic)
                cluster.send(topic, *range(20), KEYS="order-42", TAGS="paid", RETRY_TOPIC="orders")
        if name.startswith("sink"):
            cluster.topic(1, "bills")
            cluster.topic(1, commits_topic("bills"))
            batch = Manifest("bills", ManifestId("query", "", 0), ())
            cluster.send(commits_topic("bills"), batch.last_message((), ()).decode())
        if name == "sink forget":
            if kind != "rocketpoll":
                pytest.skip("rows are staged on brokers of ours")
            commit_batch(cluster.api, cluster.address, "bills-writer", 0, "bills")
        if name != "topic create":
            cluster.store_offset("billing", "orders", 2)
            cluster.store_offset("billing-test", "orders", 2)

    return set_for


@pytest.mark.deep
@pytest.mark.parametrize(("name", "line"), EXAMPLES)
def test_an_example_runs_as_it_is_written(cluster, stage, shell, name, line):
    stage(name)
    if name == "tail":
        with shell(line) as running:
            wait_until(
                "a message that came after it began",
                lambda: cluster.send("orders", "x") or running.poll() is not None,
            )
            out, err = running.communicate()
    else:
        with shell(line) as running:
            out, err = running.communicate(timeout=60)
    assert running.returncode == 0, err
    assert err in ("", "moved\n", "nothing was changed: a dry run\n")
    assert out
