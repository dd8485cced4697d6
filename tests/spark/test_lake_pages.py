"""How-to pages on Delta Lake and Iceberg: their programs are killed, and each message becomes one
row.

Maven has releases of both for Spark 4.1, so the programs run with that version.
"""

import os
import re
import subprocess
import sys

import pyspark
import pytest
from support.faults.preloaded_libraries import KILL_AT_A_CHANGE, kill_variables, preload
from support.programs.python_programs import ROOT

from rocketpoll import EmbeddedBroker

pytestmark = [pytest.mark.deep, pytest.mark.timeout(3_600)]

SPARK = "4.1"
PATIENCE_SECONDS = 900
HOME = ROOT / "build" / "lake-home"
"""Home directory for Spark's Maven downloads; those in the user's home may be incomplete."""

QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

COMMIT_OF_QUERY = 3
"""The number of the checkpoint change at which Spark records a batch that the table already has."""


@pytest.fixture(scope="module")
def spark_python():
    """Return the Python of the Spark for which releases exist."""
    if pyspark.__version__.startswith(SPARK):
        return sys.executable
    python = ROOT / "build" / f"spark-{SPARK}" / "bin" / "python"
    if not python.exists():
        pytest.skip(f"there is no Spark {SPARK}: run make build/spark-{SPARK}/.ready")
    return str(python)


@pytest.mark.parametrize(("page", "change"), [("into-delta", 8), ("into-iceberg", 22)])
def test_page_program_writes_each_message_once_through_kills(
    page, change, spark_python, tmp_path, monkeypatch
):
    """Kills come before the table's commit, at a change of its files, and before Spark's own
    commit."""
    text = (ROOT / "docs" / "how-to" / f"{page}.md").read_text(encoding="utf-8")
    [program] = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    preload(tmp_path, monkeypatch, KILL_AT_A_CHANGE)
    HOME.mkdir(parents=True, exist_ok=True)
    (tmp_path / "spark-defaults.conf").write_text(
        "spark.ui.enabled false\nspark.databricks.delta.snapshotPartitions 1\n", encoding="utf-8"
    )

    def run(directory, change):
        variables = {
            **kill_variables(tmp_path / directory, change),
            "PYSPARK_PYTHON": spark_python,
            "SPARK_CONF_DIR": str(tmp_path),
            "JAVA_TOOL_OPTIONS": f"-Duser.home={HOME} {QUICK_JVM}",
        }
        return subprocess.run(
            [spark_python, "program.py"],
            cwd=tmp_path,
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_SECONDS,
        )

    with EmbeddedBroker() as broker:
        broker.create_topic("orders", queues=2)
        text = program.replace("localhost:9876", broker.address)
        (tmp_path / "program.py").write_text(text, encoding="utf-8")
        for kills, (directory, at) in enumerate(
            [("lake", change), ("checkpoints", COMMIT_OF_QUERY)]
        ):
            for number in range(4):
                broker.send("orders", f"order {4 * kills + number}")
            killed = run(directory, at)
            assert killed.returncode, f"no kill at change {at} of {directory}"
            assert "rows of" not in killed.stdout
        for _ in range(2):  # in Spark 4.1 a run that repeats a batch ends after it
            ended = run("lake", 0)
            assert ended.returncode == 0, ended.stderr
            [rows, messages] = re.findall(r"(\d+) rows of (\d+) messages\n", ended.stdout)[-1]
            assert rows == messages
            if rows == "8":
                break
        assert rows == "8"
