"""Every case of the benchmark of Spark's source and sink runs on each side; speed is not checked.

Kafka and RocketMQ take part with ROCKETPOLL_PEERS=1: Maven and pip download their parts.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import replace
from importlib.metadata import version

import pytest
from support.rocketmq import java_programs

from benchmarks.broker.figures import OURS, PEER
from benchmarks.broker.java import VERSIONS, JavaClasses, JavaUnavailable
from benchmarks.broker.rounds import run_rounds
from benchmarks.spark import __main__ as command_line
from benchmarks.spark import planning, sink_tasks, tasks
from benchmarks.spark.cases import FROM_ROCKETMQ, QUICK, READY_MADE, Arena, spark_cases
from benchmarks.spark.environment import PEER_VERSION
from benchmarks.spark.process_tree import tree_cpu_seconds
from benchmarks.spark.sides import kafka_broker, our_broker, ready_made_rows, rocketmq_broker

SMALL = replace(QUICK, rows=3_000, rocketmq_rows=300, written_rows=300, seconds=0.5)
SPARK_HERE = version("pyspark")
CHILD = (
    "import sys, time\nwhile time.process_time() < 0.3: pass\nprint('done', flush=True)\n"
    "sys.stdin.read()"
)
PARENT = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {CHILD!r}])"


def test_tree_cpu_seconds_include_running_children():
    with ExitStack() as ending:
        popen = subprocess.Popen(
            [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        ending.callback(popen.wait, 30)
        ending.callback(popen.stdin.close)
        ending.callback(popen.stdout.close)
        assert popen.stdout.readline() == "done\n"
        assert tree_cpu_seconds(popen.pid) > 0.25  # measured in clock ticks
        assert tree_cpu_seconds(os.getpid()) > tree_cpu_seconds(popen.pid)


def test_tree_cpu_seconds_include_ended_children():
    before = tree_cpu_seconds(os.getpid())
    command = [sys.executable, "-c", CHILD]
    subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True)
    assert tree_cpu_seconds(os.getpid()) - before > 0.25


@pytest.mark.peers
def test_spark_benchmark_without_peers_measures_and_reports_ours(tmp_path, capsys):
    if shutil.which("java") is None:
        java_programs.unavailable("no java on the path")
    path = tmp_path / "new" / "spark.json"
    alone = ["--peer", "none", "--rocketmq", "none", "--spark", SPARK_HERE]
    command_line.main(
        [
            *alone,
            "--quick",
            "--rows",
            "300",
            "--seconds",
            "0.5",
            "--only",
            "ingest",
            "--json",
            str(path),
        ]
    )
    assert "ingest, AvailableNow, 100 B" in capsys.readouterr().out
    report = json.loads(path.read_text())
    assert report["conditions"]["our_spark"] == SPARK_HERE
    assert {result["subject"] for result in report["results"]} >= {"ingest, AvailableNow, 1 KB"}
    for result in report["results"]:
        assert {side["role"] for side in result["sides"].values()} == {OURS, READY_MADE}
        for side in result["sides"].values():
            assert len(side["rounds"]) == 1
            assert (
                side["median"] > 0 or result["unit"] == "s"
            )  # a short run may take no tick of the clock


@pytest.mark.interop
@pytest.mark.peers
def test_spark_benchmark_cases_run_repeatedly_on_every_side(tmp_path):
    try:
        sides = {
            OURS: our_broker(PEER_VERSION, {}),
            READY_MADE: ready_made_rows(PEER_VERSION, {}),
            FROM_ROCKETMQ: rocketmq_broker(JavaClasses(VERSIONS[0]), PEER_VERSION, {}),
            PEER: kafka_broker({}),
        }
    except JavaUnavailable as error:
        java_programs.unavailable(str(error))
    with Arena(tmp_path, sides) as arena:
        results = run_rounds(spark_cases(arena, SMALL), sides, 2, lambda _: None)
    needs_messages = ("send to foreachBatch", "an idle query")
    for result in results:
        has_none = result.subject.startswith(needs_messages)
        assert set(result.rounds) == set(sides) - ({READY_MADE} if has_none else set())
        for role, rounds in result.rounds.items():
            assert len(rounds) == 2, (result.subject, role)
            assert min(rounds) > 0 or result.figure.unit == "s"


@pytest.mark.deep
def test_planning_benchmark_times_the_first_and_next_batch(capsys):
    planning.main(["--topics", "3", "--queues", "2", "--rounds", "1"])
    said = capsys.readouterr().out
    assert said.startswith("3 topics of 2 queues, median of 1: the first batch ")
    assert "the next" in said


@pytest.mark.deep
def test_routes_and_ends_of_500_topics_take_less_than_a_second(monkeypatch):
    """The test measures CPU time of this process; the broker runs in another one."""
    took, plan = [], planning._plan

    def timed(*arguments):
        began = time.process_time()
        found = plan(*arguments)
        took.append(time.process_time() - began)
        return found

    monkeypatch.setattr(planning, "_plan", timed)
    planning.main(["--topics", "500", "--queues", "4", "--rounds", "3"])
    assert min(took) < 1  # both batches together


@pytest.mark.deep
def test_spark_benchmark_measures_ingest_with_and_without_body_check(capsys):
    tasks.main(["--megabytes", "1", "--rounds", "1"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5 * 2 * 3  # kinds of rows, columns, with and without the check
    assert all("of the broker for 1,000,000 rows" in line or "times" in line for line in lines)


@pytest.mark.deep
def test_spark_benchmark_measures_sink_tasks_with_each_kind_of_rows(capsys):
    sink_tasks.main(["--rows", "400", "--rounds", "1"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["100 B", "1 KB", "varied"]
    assert all("of the broker for 1,000,000 rows" in line for line in lines)


@pytest.mark.wide
@pytest.mark.parametrize(
    ("program", "arguments", "said"),
    [
        ("beside_idle", "--idle 0 1 --seconds 1", ["beside 0 idle sources", "beside 1 idle"]),
        ("exactly_once", "--rows 50 --rounds 1", ["writing 50 rows", "reading 50 rows"]),
        ("typed_bodies", "--rows 50 --rounds 1", ["four fields", "ten fields"]),
    ],
)
def test_spark_benchmark_program_reports_each_of_its_sides(program, arguments, said):
    """The benchmark runs in a process, because it ends a Spark session that it finds."""
    command = [sys.executable, "-m", f"benchmarks.spark.{program}", *arguments.split()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    for words in said:
        assert words in done.stdout, done.stderr
