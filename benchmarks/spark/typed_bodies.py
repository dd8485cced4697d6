"""The cost of decoding JSON in the source, compared with Spark's from_json on the same rows.

    .venv/bin/python -m benchmarks.spark.typed_bodies
    .venv/bin/python -m benchmarks.spark.typed_bodies --rows 1000000 --rounds 5

Both read one topic alternately, and pass the same columns to a sink that writes nothing. A ratio of
1.50 means that from_json takes half as long again. The broker has a process of its own.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from rocketpoll import EmbeddedBroker

_TOPIC = "orders"
_PARTITIONS = 2
_SCHEMAS = {
    "four fields": "id BIGINT, customer STRING, total DOUBLE, paid BOOLEAN",
    "ten fields, nested": (
        "id BIGINT, customer STRING, total DOUBLE, paid BOOLEAN, at TIMESTAMP, day DATE, "
        "price DECIMAL(9,2), city STRING, inner STRUCT<a: INT, b: STRING>, items ARRAY<INT>"
    ),
}
_ROW = """
    id, concat('customer ', id) AS customer, id * 1.25D AS total, id % 2 = 0 AS paid,
    timestamp_micros(1700000000000000 + id * 1000001) AS at, date_from_unix_date(id % 20000) AS day,
    CAST(id % 100000 AS DECIMAL(9,2)) AS price, 'Lübeck' AS city,
    named_struct('a', CAST(id % 7 AS INT), 'b', 'x') AS inner, array(1, 2, 3) AS items
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the medians of both ways, and their ratio, for each schema."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark.typed_bodies")
    parser.add_argument("--rows", type=int, default=1_000_000, help="messages that are read")
    parser.add_argument("--rounds", type=int, default=5, help="counted; one more goes before them")
    options = parser.parse_args(arguments)
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    session = builder.config("spark.sql.session.timeZone", "UTC").getOrCreate()
    try:
        with EmbeddedBroker(own_process=True) as broker:
            broker.create_topic(_TOPIC, _PARTITIONS)
            at = {"namesrvAddr": broker.address, "topic": _TOPIC}
            rows = session.range(0, options.rows, 1, _PARTITIONS)
            body = rows.selectExpr(f"to_json(struct({_ROW})) AS body")
            body.write.format("rocketpoll").mode("append").options(**at).save()
            for name, schema in _SCHEMAS.items():
                ours, theirs = _measured(session, at, schema, options.rounds)
                sys.stdout.write(
                    f"{name}, {options.rows} rows: bodyFormat=json {ours * 1e3:.0f} ms, from_json "
                    f"{theirs * 1e3:.0f} ms, ratio {theirs / ours:.2f}\n"
                )
    finally:
        session.stop()


def _measured(
    spark: SparkSession, at: dict[str, str], schema: str, rounds: int
) -> tuple[float, float]:
    """Return the median seconds of both ways."""
    found: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds + 1):
        for way in (0, 1) if number % 2 else (1, 0):
            frame = (_decoded, _from_json)[way](spark, at, schema)
            began = time.perf_counter()
            frame.write.format("noop").mode("overwrite").save()
            if number:  # the first one compiles what the others run
                found[way].append(time.perf_counter() - began)
    return statistics.median(found[0]), statistics.median(found[1])


def _decoded(spark: SparkSession, at: dict[str, str], schema: str) -> DataFrame:
    source = spark.read.format("rocketpoll").options(**at, bodyFormat="json")
    return source.schema(schema).load()


def _from_json(spark: SparkSession, at: dict[str, str], schema: str) -> DataFrame:
    raw = spark.read.format("rocketpoll").options(**at, columns="body").load()
    return raw.select(f.from_json(f.col("body").cast("string"), schema).alias("v")).select("v.*")


if __name__ == "__main__":
    main()
