import re
import subprocess
import sys

import pytest

pytestmark = pytest.mark.wide


def test_exactly_once_benchmark_times_and_compares_both_ways():
    """In a process of its own, as the benchmark ends the Spark that it finds."""
    program = [sys.executable, "-m", "benchmarks.spark.exactly_once", "--rows", "50"]
    done = subprocess.run([*program, "--rounds", "1"], capture_output=True, text=True, check=False)
    found = re.findall(r"^(\w+) (\d+) rows: (.*)$", done.stdout, re.MULTILINE)
    assert [(what, rows) for what, rows, _ in found] == [
        (what, rows) for rows in ("50", "1") for what in ("writing", "reading")
    ], done.stderr
    commits = re.findall(r"^a commit of one row, ([\w ]+): \d+\.\d ms", done.stdout, re.MULTILINE)
    assert commits == ["exactly once", "visible to all"], done.stderr
    for *_, told in found:
        times = r"\d+ ms \(ratio \d+\.\d\d\) and \d+ ms of processors \(\d+\.\d\d\)"
        assert len(re.findall(times, told)) == told.count(", ") + 1 == 3
