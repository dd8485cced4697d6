"""One Spark session for a whole test run, with two threads of this process or on the cluster of
spark-submit; and the settings of Spark drivers.

The driver's log goes to a file, so that tests can assert that it lacks some text, and the output of
a run stays short.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

LOCAL = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
}
PATIENT = {
    **LOCAL,
    "spark.python.authenticate.socketTimeout": "90s",  # workers start slowly on a busy machine
    # A driver killed while it writes its first offset leaves an incomplete file; by default, Spark
    # then refuses the checkpoint
    "spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart": "false",
}


_LOG4J = """rootLogger.level = info
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {log}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %p %c: %m%n%ex
"""
_LOG_NAME = "spark.log"
_SETTINGS = {
    **LOCAL,
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.showConsoleProgress": "false",
}


def java_options(directory: Path) -> str:
    """Return the driver's JVM options that write a log to a directory."""
    settings = directory / "log4j2.properties"
    settings.write_text(_LOG4J.format(log=directory / _LOG_NAME), encoding="utf-8")
    return f"-Dlog4j2.configurationFile={settings.as_uri()}"


def is_submitted() -> bool:
    """Return whether spark-submit has started this program and chosen the master."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def started_session(directory: Path):
    """Return a session; Spark finds data sources with the Python that runs the tests."""
    from pyspark.sql import SparkSession  # noqa: PLC0415  # imported late: most tests need no Spark

    builder = SparkSession.builder.appName("tests").config(map=_SETTINGS)
    builder = builder.config("spark.sql.warehouse.dir", str(directory / "warehouse"))
    if not is_submitted():
        builder = builder.master("local[2]").config(
            "spark.driver.extraJavaOptions", java_options(directory)
        )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        return builder.getOrCreate()


def log_of(session) -> Path:
    settings = session.sparkContext._jvm.java.lang.System.getProperty("log4j2.configurationFile")
    return Path(settings.removeprefix("file://")).with_name(_LOG_NAME)
