"""The benchmark of Spark's source and sink: every case does its work on each side; how fast is no matter here.

Kafka and RocketMQ take part with ROCKETPOLL_PEERS=1: Maven and pip bring what they need.
"""

import os
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace

import java_programs
import pytest

from benchmarks.broker.figures import OURS, PEER
from benchmarks.broker.java import JavaClasses, JavaUnavailable
from benchmarks.broker.rounds import run_rounds
from benchmarks.spark import __main__ as command_line
from benchmarks.spark.cases import FROM_ROCKETMQ, QUICK, Arena, spark_cases
from benchmarks.spark.environment import PEER_VERSION
from benchmarks.spark.process_tree import tree_cpu_seconds
from benchmarks.spark.sides import kafka_broker, our_broker, rocketmq_broker

SMALL = replace(QUICK, rows=3_000, rocketmq_rows=300, written_rows=300, seconds=0.5)
CHILD = "import sys, time\nwhile time.process_time() < 0.3: pass\nprint('done', flush=True)\nsys.stdin.read()"
PARENT = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {CHILD!r}])"


def test_what_a_child_uses_of_the_cores_is_its_starters_too():
    with ExitStack() as ending:
        popen = subprocess.Popen(
            [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        ending.callback(popen.wait, 30)
        ending.callback(popen.stdin.close)
        ending.callback(popen.stdout.close)
        assert popen.stdout.readline() == "done\n"
        assert 0.3 <= tree_cpu_seconds(popen.pid) < 30
        assert tree_cpu_seconds(os.getpid()) >= tree_cpu_seconds(popen.pid)


def test_what_a_child_has_used_that_has_ended_is_still_counted():
    before = tree_cpu_seconds(os.getpid())
    subprocess.run(
        [sys.executable, "-c", CHILD], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True
    )
    assert tree_cpu_seconds(os.getpid()) - before >= 0.3


def test_a_case_that_nobody_has_is_refused(tmp_path):
    with pytest.raises(SystemExit, match="no case has 'nonsense' in its name"):
        command_line.main(
            ["--peer", "none", "--rocketmq", "none", "--only", "nonsense", "--json", str(tmp_path / "x.json")]
        )
    assert not (tmp_path / "x.json").exists()
