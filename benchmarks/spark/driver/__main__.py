"""One side's Spark session, which reads commands and writes responses as lines of JSON.

PYTHON -m benchmarks.spark.driver '{"format": "kafka", "address": "127.0.0.1:9092", "queues": 4,
                                    "settings": {"spark.driver.memory": "4g"},
                                    "directory": "/where/checkpoints/lie"}'

{"do": "ingest", "topic": "t"} is a call of `Queries.ingest`; its response is {"answer": ...} or
{"error": ...}.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any, TextIO

from pyspark.sql import SparkSession

from benchmarks.spark.driver.formats import FORMATS
from benchmarks.spark.driver.queries import Queries
from benchmarks.spark.driver.ready_made import ReadyMade

_DOES = ("ingest", "latency", "start_idling", "stop_idling", "write", "write_stream")


def main() -> None:
    """Answer commands until the input ends."""
    asked = json.loads(sys.argv[1])
    answers = _redirect_stdout()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # What is installed has its byte code, as pip makes it; here the first process that imports
    # leaves it.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    spark = _session(asked)
    form = FORMATS[asked["format"]](asked["address"], asked["queues"])
    queries = Queries(spark, form, Path(asked["directory"]))
    _say(answers, {"answer": spark.version})
    for line in sys.stdin:
        fields = json.loads(line)
        name = fields.pop("do")
        if name not in _DOES:
            raise SystemExit(f"it does {_DOES}, and not {name!r}")
        try:
            answer = {"answer": getattr(queries, name)(**fields)}
        except Exception:  # noqa: BLE001  # the asker has to know of any of them
            answer = {"error": traceback.format_exc()}
        _say(answers, answer)
    spark.stop()


def _session(asked: dict[str, Any]) -> SparkSession:
    builder: Any = SparkSession.builder
    builder = (
        builder.master("local[2]")
        .config("spark.local.dir", asked["directory"])
        .config("spark.sql.warehouse.dir", f"{asked['directory']}/warehouse")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
    )
    for name, value in asked["settings"].items():
        builder = builder.config(name, value)
    spark: SparkSession = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    if asked["format"] == ReadyMade.name():
        spark.dataSource.register(ReadyMade)
    return spark


def _redirect_stdout() -> TextIO:
    """Return the pipe for responses; other output, including the JVM's, goes to the log."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return answers


def _say(answers: TextIO, answer: object) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()
