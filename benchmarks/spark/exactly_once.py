"""The price of exactly once beside at least once: the same rows written and read in each way.

    .venv/bin/python -m benchmarks.spark.exactly_once
    .venv/bin/python -m benchmarks.spark.exactly_once --rows 1000000 --rounds 5

A ratio of 1.10 says that exactly once takes a tenth longer; the ways take turns. Beside it is the
processor time of Spark, its workers and the broker, which a busy machine changes less. The time of
one row is that of a commit: what it has on top of the other's is the manifest, and where all see a
batch at once, the broker's commit before it. The broker has a process of its own.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from pyspark.sql import SparkSession

from benchmarks.spark.process_tree import tree_cpu_seconds
from rocketpoll import EmbeddedBroker

_BODY = "cast(lpad(id, 100, '.') as binary) as body"
_PARTITIONS = 4
_WAYS: Final[Mapping[str, Mapping[str, str]]] = {
    "at least once": {},
    "exactly once": {"delivery": "exactly_once"},
    "visible to all": {"delivery": "exactly_once", "visibleTo": "all"},
}


class Took(NamedTuple):
    """The time that something took, and the processor time of all that took part, in seconds."""

    seconds: float
    cpu_seconds: float

    @classmethod
    def now(cls) -> Took:
        """Return the time that has passed so far."""
        return cls(time.perf_counter(), tree_cpu_seconds(os.getpid()))

    def since(self, began: Took) -> Took:
        """Return the time between two moments."""
        return Took(self.seconds - began.seconds, self.cpu_seconds - began.cpu_seconds)


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
                    medians = {
                        way: Took(*map(statistics.median, zip(*times[way], strict=True)))
                        for way in _WAYS
                    }
                    least = next(iter(medians.values()))
                    said = (
                        f"{way} {took.seconds * 1e3:.0f} ms "
                        f"(ratio {took.seconds / least.seconds:.2f}) "
                        f"and {took.cpu_seconds * 1e3:.0f} ms of processors "
                        f"({took.cpu_seconds / least.cpu_seconds:.2f})"
                        for way, took in medians.items()
                    )
                    sys.stdout.write(f"{what} {rows} rows: {', '.join(said)}\n")
                    sys.stdout.flush()
    finally:
        session.stop()


def _measured(
    spark: SparkSession, broker: EmbeddedBroker, rows: int, rounds: int
) -> dict[str, dict[str, list[Took]]]:
    """Return what each round took, by what is done and how."""
    found: dict[str, dict[str, list[Took]]] = {
        what: {way: [] for way in _WAYS} for what in ("writing", "reading")
    }
    for number in range(rounds + 1):
        for way in list(_WAYS) if number % 2 else reversed(list(_WAYS)):
            topic = f"{way.replace(' ', '-')}-{rows}-{number}"
            broker.create_topic(topic, _PARTITIONS)
            to = {"namesrvAddr": broker.address, "topic": topic}
            frame = spark.range(0, rows, 1, _PARTITIONS).selectExpr(_BODY)
            began = Took.now()
            writer = frame.write.format("rocketpoll").mode("append").options(**to)
            writer.options(**_WAYS[way]).save()
            written = Took.now()
            isolation = "committed" if _WAYS[way] else "uncommitted"
            source = spark.read.format("rocketpoll").options(**to, columns="body")
            read = source.option("isolation", isolation).load()
            read.write.format("noop").mode("overwrite").save()
            ended = Took.now()
            if number:  # the first one compiles what the others run
                found["writing"][way].append(written.since(began))
                found["reading"][way].append(ended.since(written))
    return found


if __name__ == "__main__":
    main()
