"""Each command's help has an example, and each example runs as written."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.brokers.broker_kinds import NAME, wait_until
from support.brokers.clusters import Cluster
from support.brokers.secured import OPERATOR, secured_broker
from support.clients.repliers import replying
from support.programs.cli_commands import EVERY
from support.stores.staged_batches import commit_batch

from rmq_spark.cli.shell.command_tree import CommandWithExample
from rmq_spark.cli.spark.spark_runtime import java_fault
from rmq_spark.client.manifest import CommitManifest, ManifestId, commits_topic_name

EXAMPLES = [(name, line) for name, verb in EVERY.items() for line in verb.example.splitlines()]
SERVING = {"broker": "listens on", "console": "console at", "exporter": "metrics at"}
"""Commands that serve until they are stopped, and the line that they print when ready."""

WITHOUT_A_CLUSTER = {"broker", "demo", "archive", "completion"}
NEED_SPARK = {"doctor"}
OF_USERS = ("user ", "acl ")
"""Commands that need a broker with authentication."""

SAID = (
    r"|moved\n|dry run: nothing was (changed|sent|copied)\n"
    r"|(rocketpoll: a member of billing: reads \d of \d queues of orders\n)+"
    r"|rocketpoll: a member of packing: pops orders\n"
    r"|rocketpoll: no messages found\n"
    r"|rocketpoll: NAMESRV_ADDR is set and has precedence. Unset it\n"
    r"|(created the directory \S+\n)*wrote \S+, .+\n"
)
"""Lines that stderr may contain besides the result."""


@pytest.fixture(scope="module")
def home(addresses, broker_directory, tmp_path_factory):
    """Return a home directory with a store, a broker.conf and the checkpoint of a query. The store
    is a copy made before examples delete topics."""
    home = tmp_path_factory.mktemp("home")
    program = home / "rocketpoll"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m rocketpoll "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    cluster = Cluster(*addresses, NAME)
    cluster.topic(1, "kept")
    cluster.send("kept", *range(20), queues=1)
    kept = cluster.queue("kept")
    wait_until("its queue", lambda: cluster.api.max_offset(cluster.address, kept) == 20)
    cluster.close()
    shutil.copytree(broker_directory / "store", home / "store")
    (home / "conf").mkdir()
    settings = f"listenPort=0\nstorePathRootDir={home / 'own-store'}\n"
    (home / "conf" / "broker.conf").write_text(settings, encoding="utf-8")
    began = json.dumps({"batchTimestampMs": 1_767_225_600_000})
    place = json.dumps({"v": 1, "offsets": {"orders": {"broker-a": {"0": 2, "1": 1}}}})
    for folder, lines in (("offsets", ("v1", began, place)), ("commits", ("v1", "{}"))):
        (home / "checkpoints" / "orders" / folder).mkdir(parents=True)
        file = home / "checkpoints" / "orders" / folder / "0"
        file.write_text("\n".join(lines), encoding="utf-8")
    return home


@pytest.fixture
def shell(home, addresses):
    """Return a function that runs a line in a shell in which ``rocketpoll`` is installed."""
    variables = {
        "HOME": str(home),
        "PATH": f"{home}{os.pathsep}{os.environ['PATH']}",
        "NAMESRV_ADDR": addresses[0],
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "PYSPARK_PYTHON": sys.executable,
        "COLUMNS": "200",
    }

    def started(line, **more):
        return subprocess.Popen(
            ["/bin/sh", "-c", line],
            env={**os.environ, **variables, **more},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, cwd=home,
        )  # fmt: skip

    return started


@pytest.mark.parametrize("name", EVERY)
def test_each_command_help_shows_an_example(run, name):
    verb = EVERY[name]
    assert isinstance(verb, CommandWithExample)
    assert verb.example.startswith(("rocketpoll ", "echo ", "seq "))
    assert f"rocketpoll {name}" in verb.example
    if name == "broker":  # its own process prints the help
        return
    said = run(*name.split(), "--help")
    assert said.code == 0
    for line in verb.example.splitlines():
        assert f"\n  {line}\n" in said.out


def test_broker_help_shows_its_example(shell):
    with shell("rocketpoll broker --help") as asked:
        said, _ = asked.communicate(timeout=60)
    assert f"\nexample: {EVERY['broker'].example}\n" in said


@pytest.fixture
def stage(run, cluster, kind):
    """Create the topics and groups of the examples, with dead letters and committed batches."""

    def set_for(name):
        run("topic", "delete", "orders", "--yes")
        for topic in ("payments", "orders-copy", "orders-dead", "bench", "orders", "%DLQ%billing"):
            if (name, topic) != ("topic create", "orders"):
                cluster.topic(name=topic)
                cluster.send(topic, *range(20), KEYS="order-42", TAGS="paid", RETRY_TOPIC="orders")
        if name.startswith(("sink", "sql")):
            cluster.topic(1, "bills")
        if name.startswith("sink"):
            cluster.topic(1, commits_topic_name("bills"))
            batch = CommitManifest("bills", ManifestId("query", "", 0), ())
            cluster.send(commits_topic_name("bills"), batch.encode_final_message((), ()).decode())
        if name == "sink forget":
            if kind != "rocketpoll":
                pytest.skip("rows are staged on brokers of ours")
            commit_batch(cluster.api, cluster.address, "bills-writer", 0, "bills")
        if name != "topic create":
            cluster.store_offset("billing", "orders", 2)
        if name == "group delete":
            cluster.store_offset("billing-test", "orders", 2)

    return set_for


@pytest.fixture(scope="module")
def operator_keys():
    """Return the environment of an operator for a broker that authenticates its clients."""
    with secured_broker() as broker:
        yield {
            "NAMESRV_ADDR": broker.address,
            "ROCKETPOLL_ACCESS_KEY": OPERATOR.access_key,
            "ROCKETPOLL_SECRET_KEY": OPERATOR.secret_key,
        }


@pytest.mark.deep
@pytest.mark.parametrize(
    ("name", "line"), [each for each in EXAMPLES if each[0].startswith(OF_USERS)]
)
def test_help_example_of_users_runs_as_written(home, shell, operator_keys, name, line):
    (home / "password.txt").write_text("correct-horse\n", encoding="utf-8")

    def ran(line):
        with shell(line, **operator_keys) as running:
            out, err = running.communicate(timeout=60)
        return running.returncode, out, err

    ran("rocketpoll user delete billing --yes")
    if name != "user create":
        ran("rocketpoll user create billing --password-stdin < password.txt")
        ran("rocketpoll acl grant billing Topic:orders --actions Pub")
    code, out, err = ran(line)
    assert (code, err) == (0, "")
    assert "billing" in out


@pytest.mark.deep
@pytest.mark.parametrize(
    ("name", "line"), [each for each in EXAMPLES if not each[0].startswith(OF_USERS)]
)
def test_help_example_runs_as_written(home, cluster, stage, shell, name, line):
    if name in NEED_SPARK and java_fault() is not None:
        pytest.skip("this machine has no Java for Spark")
    if name not in WITHOUT_A_CLUSTER:
        stage(name)
    if name.startswith("profile"):
        write_profiles(home, [] if name == "profile create" else ["prod", "test"])
    if name in SERVING:
        serves(shell, name, line)
        return
    with ExitStack() as stack:
        if name == "request":
            cluster.topic(name="prices")
            stack.enter_context(replying(cluster.name_server, "prices", "quotes"))
        running = stack.enter_context(shell(line))
        if name == "tail":
            wait_until(
                "a message that came after it began",
                lambda: cluster.send("orders", "x") or running.poll() is not None,
            )
        out, err = running.communicate(timeout=60)
    assert running.returncode == 0, err
    assert re.fullmatch(SAID, err)
    _, _, file = line.partition(" > ")
    said = (home / file).read_text("utf-8") if file else out
    # no message was stored in the minutes that such an example names
    assert bool(said) != ("--until 2026" in line)


def write_profiles(home, names):
    file = home / ".config" / "rocketpoll" / "profiles.ini"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"[{each}]\nnamesrv = {each}:9876\n" for each in names))
    (home / "key.txt").write_text("a-secret-key\n", encoding="utf-8")


def serves(shell, name, line):
    """Check that a serving command prints its address, and exits cleanly after SIGTERM."""
    with shell(f"exec {line}") as serving:
        try:
            said = serving.stdout.readline()
        finally:
            serving.send_signal(signal.SIGTERM)
        _, err = serving.communicate(timeout=60)
    if "Address already in use" in err:
        pytest.skip("another program has its port")
    assert SERVING[name] in said, err
    assert serving.returncode == 0, err
