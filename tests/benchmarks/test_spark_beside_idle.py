import subprocess
import sys

import pytest

pytestmark = pytest.mark.wide


def test_busy_spark_source_is_timed_beside_each_number_of_idle_ones():
    """In a process of its own, as the benchmark ends the Spark that it finds."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "benchmarks.spark.beside_idle",
            "--idle",
            "0",
            "1",
            "--seconds",
            "1",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    lines = done.stdout.splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        "beside 0 idle sources",
        "beside 1 idle sources",
    ], done.stderr
