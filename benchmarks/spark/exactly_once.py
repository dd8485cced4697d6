"""The cost of exactly once compared with at least once: the same rows written and read each way.

    .venv/bin/python -m benchmarks.spark.exactly_once
    .venv/bin/python -m benchmarks.spark.exactly_once --rows 1000000 --rounds 5

A ratio of 1.10 means that exactly once takes a tenth longer; the ways take turns. The processor
time of Spark, its workers and the broker is also printed, which a busy machine changes less. The
broker has a process of its own.

The last figure is the time of a commit of one row, in addition to Spark's own time: the manifest,
and with visibleTo=all the broker's commit before it. Each has connections of its own, because Spark
commits each batch in a new process.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import pyarrow as pa
from pyspark.sql import SparkSession

from benchmarks.spark.process_tree import tree_cpu_seconds
from rmq_spark.client.manifest import ManifestId
from rmq_spark.spark.exactly_once.manifest_commit import commit, create_commits_topic
from rmq_spark.spark.exactly_once.staged_commit import commit_staged, stage_rows
from rmq_spark.spark.options.options import WriteOptions, write_options
from rmq_spark.spark.options.sink_columns import SinkColumn
from rmq_spark.spark.write.reports import WriteTask
from rmq_spark.spark.write.sender import producer_of, send_rows
from rmq_spark.wire.headers.members import BatchRequestHeader
from rocketpoll import EmbeddedBroker

_BODY = "cast(lpad(id, 100, '.') as binary) as body"
_PARTITIONS = 4
_COMMITS_A_ROUND = 20
_WAYS: Final[Mapping[str, Mapping[str, str]]] = {
    "at least once": {},
    "exactly once": {"delivery": "exactly_once"},
    "visible to all": {"delivery": "exactly_once", "visibleTo": "all"},
}


class Took(NamedTuple):
    """Elapsed time of an action, and processor time of all processes involved, in seconds."""

    seconds: float
    cpu_seconds: float

    @classmethod
    def now(cls) -> Took:
        """Return the current elapsed and processor times."""
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
            for way, commits in _committed(broker, _COMMITS_A_ROUND * options.rounds).items():
                took = Took(*map(statistics.median, zip(*commits, strict=True)))
                sys.stdout.write(
                    f"a commit of one row, {way}: {took.seconds * 1e3:.1f} ms, the fastest "
                    f"{min(commits).seconds * 1e3:.1f} ms, on an average "
                    f"{statistics.mean(each.cpu_seconds for each in commits) * 1e3:.1f} ms of "
                    "processors\n"
                )
    finally:
        session.stop()


def _measured(
    spark: SparkSession, broker: EmbeddedBroker, rows: int, rounds: int
) -> dict[str, dict[str, list[Took]]]:
    """Return the times of each round, by action and way."""
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


def _committed(broker: EmbeddedBroker, count: int) -> dict[str, list[Took]]:
    """Return the times of the commits of batches of one row, by way of writing."""
    found: dict[str, list[Took]] = {}
    timeouts_ms = itertools.count(10_000)
    for way, told in _WAYS.items():
        if not told:  # nothing is committed
            continue
        topic = f"commits-{way.replace(' ', '-')}"
        broker.create_topic(topic, 1)
        to = {"namesrvAddr": broker.address, "topic": topic, **told}
        options = write_options(to)
        columns = [SinkColumn("body", 0, "binary")]
        rows = pa.RecordBatch.from_pydict({"body": [b"." * 100]})
        create_commits_topic(options)
        for number in range(count):
            batch = BatchRequestHeader(topic, number, "query")
            named = ManifestId("query", "", number, "run")
            task = WriteTask("query", number, 0)
            # another access, so that nothing has been connected before
            anew = write_options({**to, "requestTimeoutMs": str(next(timeouts_ms))})
            if options.sink_name is None:
                spans = send_rows(options, columns, task, [rows]).spans
                began = Took.now()
                commit(anew, named, spans)
            else:
                staged = stage_rows(options, columns, task, [rows], batch, named).staged
                began = Took.now()
                commit_staged(anew, named, [] if staged is None else [staged])
            found.setdefault(way, []).append(Took.now().since(began))
            _end(anew)
    _end(write_options({"namesrvAddr": broker.address, "topic": "any"}))
    return found


def _end(options: WriteOptions) -> None:
    """Close the producers of rows and manifests, which would live as long as the process."""
    for producer in (producer_of(options), producer_of(options, topic_queues=1)):
        producer.shutdown()
        producer.instance.shutdown()


if __name__ == "__main__":
    main()
