"""Drivers that start in half the time: an archive of Spark's classes that a JVM maps, already
loaded and checked.

    python tests/support/spark/class_data_archive.py     make the file, below build/ and named for
                                      this release of Spark

`conftest` makes all drivers use it. A JVM that it does not fit silently ignores it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from rmq_spark.cli.spark.spark_runtime import java_fault

ROOT = Path(__file__).parents[3]
PATIENCE_SECONDS = 300
_FOR_A_SHORT_LIFE = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

# Spark's own 200 shuffle partitions mean 200 tasks in each batch of ten rows
_FOR_FEW_ROWS = "-Dspark.sql.shuffle.partitions=2 -Dspark.ui.enabled=false"

# The program whose loaded classes the archive contains.
_USUAL = """
import sys
from pyspark.sql import SparkSession
from rocketpoll import EmbeddedBroker

with EmbeddedBroker() as broker:
    broker.send("T", "a", "b")
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.getOrCreate()
    options = {"namesrvAddr": broker.address, "topic": "T", "startingOffsets": "earliest"}
    stream = spark.readStream.format("rocketpoll").options(**options).load()
    keep = lambda rows, _: rows.write.mode("append").parquet(sys.argv[1] + "/rows")
    writing = stream.writeStream.option("checkpointLocation", sys.argv[1] + "/checkpoint")
    writing.trigger(availableNow=True).foreachBatch(keep).start().awaitTermination()
    rows = spark.read.parquet(sys.argv[1] + "/rows").selectExpr("cast(body as string) body", "tags")
    writer = rows.write.format("rocketpoll").options(namesrvAddr=broker.address, topic="T")
    writer.mode("append").save()
    assert len(rows.groupBy("body").count().orderBy("body").collect()) == 2
    spark.stop()
"""


def classes_file() -> Path:
    """Return the path of the archive, or None if it does not exist."""
    return ROOT / "build" / "spark-classes" / f"{version('pyspark')}.jsa"


def quick_start() -> str:
    """Return JVM options for a short life and few rows."""
    usual = f"{_FOR_A_SHORT_LIFE} {_FOR_FEW_ROWS}"
    try:
        path = classes_file()
    except PackageNotFoundError:  # as in `make lowest`, without Spark
        return usual
    return f"{usual} -XX:SharedArchiveFile={path} -Xlog:cds*=off" if path.exists() else usual


def make() -> None:
    """Run a driver's usual work, and save its loaded classes."""
    __tracebackhide__ = True
    path = classes_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        done = subprocess.run(
            [sys.executable, "-c", _USUAL, directory],
            cwd=ROOT,
            env={
                **os.environ,
                "PYSPARK_PYTHON": sys.executable,
                "SPARK_SUBMIT_OPTS": f"{_FOR_A_SHORT_LIFE} -XX:ArchiveClassesAtExit={path}",
            },
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
    assert done.returncode == 0, done.stderr


if __name__ == "__main__":
    if java_fault() is None:  # without Java there is nothing to save
        make()
