"""The demo's Spark query reads every message that was sent."""

import subprocess
import sys

import pytest

from rmq_spark.cli.spark.spark_runtime import java_fault


@pytest.mark.wide
@pytest.mark.skipif(java_fault() is not None, reason="Spark needs Java")
def test_demo_reads_every_message_that_it_sends():
    program = "import sys; from rmq_spark.cli.main import main; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", program, "demo", "--seconds", "2", "--rate", "2000"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "batch 0: " in done.stdout
    assert "every one of them once" in done.stdout
