"""One Spark for all tests of the folder, as a user's laptop has it."""

from __future__ import annotations

import shutil
import sys

import pytest
from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark_builder(tmp_path_factory):
    if shutil.which("java") is None:
        pytest.skip("Spark needs Java 17")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYSPARK_PYTHON", sys.executable)
        yield (
            SparkSession.builder.master("local[2]")
            .config("spark.ui.enabled", "false")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        )
        session = SparkSession.getActiveSession()
        if session is not None:
            session.stop()


@pytest.fixture
def spark(spark_builder):
    """Made anew if another test has stopped it."""
    return spark_builder.getOrCreate()
