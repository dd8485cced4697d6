"""Runs pytest through spark-submit, on a Spark cluster of a master and two workers on this machine.

    PYTHONPATH=tests python -m support.spark.cluster tests/spark -k columns
    PYTHONPATH=tests python -m support.spark.cluster --conf spark.speculation=true tests/spark

All processes listen on loopback, on free ports, keep their files in a temporary directory, and are
ended by their own process ids. Each worker has an address of its own, so that Spark treats them as
two hosts.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark
import pytest
from support.brokers.broker_kinds import wait_until
from support.spark.sessions import java_options

HOME = Path(pyspark.__file__).parent
WORKERS = ("127.0.0.1", "127.0.0.2")
READY_SECONDS_MAX = 120
STOP_SECONDS_MAX = 30
_MASTER_READY = re.compile(r"Starting Spark master at (spark://[\d.]+:\d+)")
_WORKER_READY = re.compile(r"(Successfully registered with master)")


def environment(directory):
    """Return the environment of all programs of the cluster; only they need PYTHONPATH."""
    return {
        **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        "SPARK_HOME": str(HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(directory / "local"),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }


@contextmanager
def started(directory, name, main_class, ready, *arguments):
    """Yield a running Spark program after its log shows that it is ready."""
    log = directory / f"{name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [HOME / "bin" / "spark-class", f"org.apache.spark.deploy.{main_class}", *arguments],
            env=environment(directory),
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:

        def said():
            __tracebackhide__ = True
            text = log.read_text(encoding="utf-8", errors="replace")
            assert process.poll() is None, f"{name} has ended:\n{text[-4000:]}"
            return ready.search(text)

        yield wait_until(f"{name} that is ready", said, READY_SECONDS_MAX)[1]
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def at(host):
    """Return the address of a program of the cluster."""
    return ("--host", host, "--port", "0", "--webui-port", "0")


@contextmanager
def cluster(directory):
    """Yield the URL of a master with its workers."""
    with ExitStack() as running:
        master = running.enter_context(
            started(directory, "master", "master.Master", _MASTER_READY, *at("127.0.0.1"))
        )
        for number, host in enumerate(WORKERS):
            name = f"worker-{number}"
            own = ("--cores", "1", "--memory", "1g", "--work-dir", str(directory / name))
            running.enter_context(
                started(directory, name, "worker.Worker", _WORKER_READY, *at(host), *own, master)
            )
        yield master


def submit(directory, master, settings, arguments):
    """Run pytest as the driver, with more settings for Spark; return its exit code."""
    program = Path(pytest.__file__).with_name("__main__.py")
    command = [
        *(HOME / "bin" / "spark-submit", "--master", master),
        *("--driver-java-options", java_options(directory)),
        *("--conf", "spark.executor.memory=512m", "--conf", f"spark.cores.max={len(WORKERS)}"),
        *(word for setting in settings for word in ("--conf", setting)),
        *(program, *arguments),
    ]
    return subprocess.run(command, env=environment(directory), check=False).returncode


def main(arguments):
    parser = argparse.ArgumentParser(
        description="Run pytest on a Spark cluster.", allow_abbrev=False
    )
    parser.add_argument(
        "--conf", action="append", default=[], help="a setting of Spark's: name=value"
    )
    known, others = parser.parse_known_args(arguments)
    with tempfile.TemporaryDirectory(prefix="spark-cluster-") as name:
        directory = Path(name)
        with cluster(directory) as master:
            return submit(directory, master, known.conf, others)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
