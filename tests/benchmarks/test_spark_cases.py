"""Every case of the benchmark of Spark's source and sink runs on each side; speed is not checked.

Kafka and RocketMQ take part with ROCKETPOLL_PEERS=1: Maven and pip bring what they need.
"""

import json
import os
import shutil
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace
from importlib.metadata import version

import pytest
from support.rocketmq import java_programs

from benchmarks.broker.figures import OURS, PEER
from benchmarks.broker.java import VERSIONS, JavaClasses, JavaUnavailable
from benchmarks.broker.rounds import run_rounds
from benchmarks.spark import __main__ as command_line
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


def test_spark_benchmark_cases_have_the_projects_targets(tmp_path):
    with Arena(tmp_path, {}) as arena:
        targets = {
            (case.subject, figure.name): figure.target and figure.target.bound
            for case in spark_cases(arena, QUICK)
            for figure in case.figures
        }
    ingest = "ingest, AvailableNow"
    expected = {
        (f"{ingest}, 100 B", "addBatch"): 2.2,
        (f"{ingest}, 100 B", "whole query"): 1.8,
        (f"{ingest}, 100 B", "CPU for 1,000,000"): 0.7,
        (f"{ingest}, 1 KB", "addBatch"): 2.2,
        (f"{ingest}, 1 KB", "whole query"): 1.8,
        (f"{ingest}, 1 KB", "CPU for 1,000,000"): 2.0,
        (f"{ingest}, 100 B, bodies alone", "addBatch"): None,
        (f"{ingest}, 1 KB, bodies alone", "addBatch"): None,
        ("send to foreachBatch, a message now and then", "p50"): 0.2,
        ("a batch written, 100 B", "whole write"): 1.5,
        ("a stream written, 100 B", "addBatch"): 1.5,
    }
    assert {key: targets[key] for key in expected} == expected


def test_tree_cpu_seconds_include_running_children():
    with ExitStack() as ending:
        popen = subprocess.Popen(
            [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        ending.callback(popen.wait, 30)
        ending.callback(popen.stdin.close)
        ending.callback(popen.stdout.close)
        assert popen.stdout.readline() == "done\n"
        assert tree_cpu_seconds(popen.pid) > 0.25  # by the clock's ticks
        assert tree_cpu_seconds(os.getpid()) > tree_cpu_seconds(popen.pid)


def test_tree_cpu_seconds_include_ended_children():
    before = tree_cpu_seconds(os.getpid())
    command = [sys.executable, "-c", CHILD]
    subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True)
    assert tree_cpu_seconds(os.getpid()) - before > 0.25


def test_unknown_benchmark_case_is_refused(tmp_path):
    path = tmp_path / "spark.json"
    with pytest.raises(SystemExit, match="no case has 'nonsense' in its name"):
        command_line.main(
            ["--peer", "none", "--rocketmq", "none", "--only", "nonsense", "--json", str(path)]
        )
    assert not path.exists()


@pytest.mark.peers
def test_ours_alone_is_measured_and_reported(tmp_path, capsys):
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
