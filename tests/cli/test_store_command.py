"""``rocketpoll store`` on a store's directory: dump, verify, stat."""

import subprocess
import sys

import pytest

from rocketpoll import EmbeddedBroker


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """Return the directory of a stopped broker with two topics, and one that was deleted."""
    root = tmp_path_factory.mktemp("store")
    with EmbeddedBroker(root, mappedFileSizeCommitLog=8 << 20) as broker:
        broker.send("small", *"abc")
        broker.send("big", "x" * 3_000, "y" * 3_000)
        broker.send("gone", "z")
        broker.delete_topic("gone")
    return root


def test_store_stat_counts_the_bytes_of_topics(run, stopped):
    found = run("store", "stat", stopped, "-o", "json").json
    assert found["was_stopped_in_order"] is True
    assert found["deleted_messages"] == 1
    big, small = found["topics"]
    assert (big["topic"], big["messages"]) == ("big", 2)
    assert (small["topic"], small["messages"]) == ("small", 3)
    assert big["bytes"] > small["bytes"] > 0
    assert big["first_stored"] <= big["last_stored"]
    assert run("store", "stat", stopped).lines[0].split() == ["directory", str(stopped)]


def test_store_stat_of_an_open_store_reports_no_crash(run):
    with EmbeddedBroker() as broker:
        broker.send("orders", "x")
        directory = broker.directory
        assert run("store", "stat", directory, "-o", "json").json["was_stopped_in_order"] is False
        assert "no: the broker runs, or was killed" in run("store", "stat", directory).out


def test_store_dump_prints_the_records(run, stopped):
    said = run("store", "dump", stopped, "--limit", 1).out
    assert f"store {stopped}: stopped in order" in said
    assert "records: 6" in said


def test_store_verify_of_a_damaged_store_fails(run, stopped, tmp_path):
    assert run("store", "verify", stopped).out == "no faults found\n"
    copy = tmp_path / "copy"
    subprocess.run(["/bin/cp", "-r", stopped, copy], check=True)
    [log] = (copy / "commitlog").iterdir()
    data = bytearray(log.read_bytes())
    data[data.index(b"x" * 100) + 50] ^= 1
    log.write_bytes(data)
    ran = run("store", "verify", copy)
    assert ran.code == 10
    assert ran.lines[-1] == "2 faults"


def test_store_verify_accepts_a_deleted_topic(run, cluster, broker_directory):
    topic = cluster.topic()
    cluster.send(topic, *range(8))
    assert run("topic", "delete", topic, "--yes").code == 0
    ran = run("store", "verify", broker_directory / "store")
    assert (ran.code, ran.lines[-1]) == (0, "no faults found"), ran.out


@pytest.mark.parametrize("tool", ["dump", "verify", "stat"])
def test_store_tools_refuse_a_directory_without_store(run, tool, tmp_path):
    ran = run("store", tool, tmp_path)
    assert (ran.code, ran.out) == (1, "")
    assert "has no commit log" in ran.err
    assert len(ran.err.splitlines()) == 1
    missing = run("store", tool, tmp_path / "nothing")
    assert missing.code == 2
    assert "does not exist" in missing.err


def test_store_command_ignores_stray_modules_in_the_working_directory(stopped, tmp_path):
    for name in ("broker", "rocketpoll", "start_store"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('not ours')\n", encoding="utf-8")
    program = "import sys; from rmq_spark.cli.main import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", program, "store", "verify", stopped],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "no faults found\n"), done.stderr
