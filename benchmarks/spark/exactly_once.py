"""The price of exactly once beside at least once: the same rows written and read both ways.

    .venv/bin/python -m benchmarks.spark.exactly_once
    .venv/bin/python -m benchmarks.spark.exactly_once --rows 1000000 --rounds 5

A ratio of 1.10 says that exactly once takes a tenth longer; both take turns. The time of one row is
that of a commit: what it has on top of the other's is the manifest. The broker has a process of its
own.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Sequence

from pyspark.sql import SparkSession

from rocketpoll import EmbeddedBroker

_BODY = "cast(lpad(id, 100, '.') as binary) as body"
_PARTITIONS = 4
_WAYS = ("at_least_once", "exactly_once")


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the medians of both ways, and their ratio."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark.exactly_once")
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of 100 B of a write")
    parser.add_argument("--rounds", type=int, default=3, help="counted; one more goes before them")
    options = parser.parse_args(arguments)
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    session = spark.getOrCreate()
    try:
        with EmbeddedBroker(own_process=True) as broker:
            for rows in (options.rows, 1):
                for what, times in _measured(session, broker, rows, options.rounds).items():
                    once, least = (statistics.median(times[way]) for way in reversed(_WAYS))
                    sys.stdout.write(
                        f"{what} {rows} rows: at least once {least * 1e3:.0f} ms, exactly once "
                        f"{once * 1e3:.0f} ms, ratio {once / least:.2f}\n"
                    )
    finally:
        session.stop()


def _measured(
    spark: SparkSession, broker: EmbeddedBroker, rows: int, rounds: int
) -> dict[str, dict[str, list[float]]]:
    """Return the seconds of each round, by what is done and how."""
    found: dict[str, dict[str, list[float]]] = {
        what: {way: [] for way in _WAYS} for what in ("writing", "reading")
    }
    for number in range(rounds + 1):
        for way in _WAYS if number % 2 else reversed(_WAYS):
            topic = f"{way}-{rows}-{number}"
            broker.create_topic(topic, _PARTITIONS)
            to = {"namesrvAddr": broker.address, "topic": topic}
            frame = spark.range(0, rows, 1, _PARTITIONS).selectExpr(_BODY)
            began = time.perf_counter()
            writer = frame.write.format("rocketpoll").mode("append").options(**to)
            writer.option("delivery", way).save()
            written = time.perf_counter()
            isolation = "committed" if way == "exactly_once" else "uncommitted"
            source = spark.read.format("rocketpoll").options(**to, columns="body")
            read = source.option("isolation", isolation).load()
            read.write.format("noop").mode("overwrite").save()
            ended = time.perf_counter()
            if number:  # the first one compiles what the others run
                found["writing"][way].append(written - began)
                found["reading"][way].append(ended - written)
    return found


if __name__ == "__main__":
    main()
