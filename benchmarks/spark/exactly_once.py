"""The price of exactly once beside at least once: the same rows written and read in each way.

    .venv/bin/python -m benchmarks.spark.exactly_once
    .venv/bin/python -m benchmarks.spark.exactly_once --rows 1000000 --rounds 5

A ratio of 1.10 says that exactly once takes a tenth longer; the ways take turns. The time of one
row is that of a commit: what it has on top of the other's is the manifest, and where all see a
batch at once, the broker's commit before it. The broker has a process of its own.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Final

from pyspark.sql import SparkSession

from rocketpoll import EmbeddedBroker

_BODY = "cast(lpad(id, 100, '.') as binary) as body"
_PARTITIONS = 4
_WAYS: Final[Mapping[str, Mapping[str, str]]] = {
    "at least once": {},
    "exactly once": {"delivery": "exactly_once"},
    "visible to all": {"delivery": "exactly_once", "visibleTo": "all"},
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the medians of all ways, and their ratios."""
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
                    medians = {way: statistics.median(times[way]) for way in _WAYS}
                    least = next(iter(medians.values()))
                    said = (
                        f"{way} {seconds * 1e3:.0f} ms (ratio {seconds / least:.2f})"
                        for way, seconds in medians.items()
                    )
                    sys.stdout.write(f"{what} {rows} rows: {', '.join(said)}\n")
                    sys.stdout.flush()
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
        for way in list(_WAYS) if number % 2 else reversed(list(_WAYS)):
            topic = f"{way.replace(' ', '-')}-{rows}-{number}"
            broker.create_topic(topic, _PARTITIONS)
            to = {"namesrvAddr": broker.address, "topic": topic}
            frame = spark.range(0, rows, 1, _PARTITIONS).selectExpr(_BODY)
            began = time.perf_counter()
            writer = frame.write.format("rocketpoll").mode("append").options(**to)
            writer.options(**_WAYS[way]).save()
            written = time.perf_counter()
            isolation = "committed" if _WAYS[way] else "uncommitted"
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
