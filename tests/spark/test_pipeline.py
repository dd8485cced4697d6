"""examples/pipeline/order_totals.py, submitted to a Spark with rocketpoll installed, and with an
archive of it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.dataset
import pyspark
import pytest
from support.programs.python_programs import bare_python

from rmq_spark.cli.spark.archive_command import write_archive
from rmq_spark.cli.spark.spark_runtime import java_fault
from rocketpoll import EmbeddedBroker

ROOT = Path(__file__).parents[2]
SPARK_HOME = Path(pyspark.__file__).parent
PATIENCE_SECONDS = 500
FOR_A_SHORT_LIFE = ["--conf", "spark.ui.enabled=false", "--conf", "spark.sql.shuffle.partitions=1"]

pytestmark = pytest.mark.skipif(java_fault() is not None, reason="Spark needs Java")


def submit(python, directory, broker, *more, archive=""):
    """Submit the pipeline to read the available messages; the command must succeed."""
    program = ROOT / "examples" / "pipeline" / "order_totals.py"
    settings = [
        "--properties-file",
        ROOT / "conf" / "spark-defaults.conf",
        *FOR_A_SHORT_LIFE,
        *more,
    ]
    arguments = ["--namesrv", broker.address, "--directory", directory / "out", "--once"]
    done = subprocess.run(
        [SPARK_HOME / "bin" / "spark-submit", *settings, program, *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
        cwd=directory,
        env={
            **os.environ,
            "SPARK_HOME": str(SPARK_HOME),
            "PYSPARK_PYTHON": python,
            "PYSPARK_DRIVER_PYTHON": python,
            "PYTHONPATH": str(archive),
        },
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert "Ignoring non-Spark config" not in done.stderr


def order(at, region="EU", amount=1.5):
    return json.dumps({"region": region, "amount": amount, "at": f"2026-01-31T{at}Z"})


def in_parquet(directory):
    """Return the rows of the files: minute, region, orders, amount."""
    rows = (
        pyarrow.dataset.dataset(directory / "out" / "totals", format="parquet")
        .to_table()
        .to_pylist()
    )
    return sorted(
        (row["minute"].strftime("%H:%M"), row["region"], row["orders"], row["amount"])
        for row in rows
    )


def in_topic(broker):
    """Return the rows from the topic's messages, and their keys."""
    messages = broker.messages("order-totals")
    totals = [json.loads(message.body) for message in messages]
    found = sorted(
        (each["minute"][11:16], each["region"], each["orders"], each["amount"]) for each in totals
    )
    return found, sorted(key for message in messages for key in message.keys)


@pytest.mark.wide
def test_submitted_pipeline_resumes_from_its_checkpoint_also_with_an_archive(tmp_path):
    with EmbeddedBroker() as broker:
        broker.create_topic("order-totals", queues=2)
        broker.send(
            "orders", order("12:00:10"), order("12:00:50"), order("12:00:30", "US"), "no order"
        )
        broker.send("orders", order("12:05:00"))
        submit(sys.executable, tmp_path, broker)
        first = [("12:00", "EU", 2, 3.0), ("12:00", "US", 1, 1.5)]
        assert in_parquet(tmp_path) == first
        assert in_topic(broker) == (first, ["2026-01-31T12:00/EU", "2026-01-31T12:00/US"])

        archive = tmp_path / "rocketpoll.zip"
        write_archive(archive)
        python = bare_python(tmp_path / "python", "numpy", "pyarrow", "orjson")
        broker.send(
            "orders", order("12:05:30"), order("12:00:20"), order("12:10:00")
        )  # the second message is late
        submit(python, tmp_path, broker, "--py-files", archive, archive=archive)
        assert in_parquet(tmp_path) == [*first, ("12:05", "EU", 2, 3.0)]
        assert in_topic(broker)[0] == [*first, ("12:05", "EU", 2, 3.0)]


def test_sample_spark_conf_settings_have_one_comment_each():
    text = (ROOT / "conf" / "spark-defaults.conf").read_text(encoding="utf-8")
    _, *settings = text.strip().split("\n\n")
    assert len(settings) > 5
    for setting in settings:
        comment, line = setting.split("\n")
        assert comment.startswith("# ")
        assert line.split()[0].startswith("spark.")
        assert len(line.split()) == 2
