import re
import subprocess
import sys

import pytest

pytestmark = pytest.mark.wide


def test_json_that_the_source_decodes_is_timed_beside_from_json():
    """In a process of its own, as the benchmark ends the Spark that it finds."""
    program = [sys.executable, "-m", "benchmarks.spark.typed_bodies", "--rows", "50"]
    done = subprocess.run([*program, "--rounds", "1"], capture_output=True, text=True, check=False)
    found = re.findall(
        r"(\w+) fields.*, 50 rows: bodyFormat=json \d+ ms, from_json \d+ ms, ratio \d", done.stdout
    )
    assert found == ["four", "ten"], done.stderr
