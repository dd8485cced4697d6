"""Latency from send to foreachBatch for a busy source in a query that also has idle sources.

    .venv/bin/python -m benchmarks.spark.beside_idle
    .venv/bin/python -m benchmarks.spark.beside_idle --idle 0 1 3 --seconds 20

Spark asks the sources of a query one after the other, and an idle one may wait for messages. The
difference between the lines is what that costs the busy source. The broker has a process of its
own.
"""

from __future__ import annotations

import argparse
import functools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from rocketpoll import EmbeddedBroker, Message, Producer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SETTLED = 5
"""Batches of a query that do not count, because they compile the code of later ones."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the medians for each number of idle sources."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark.beside_idle")
    parser.add_argument("--idle", type=int, nargs="+", default=[0, 1, 3], help="idle sources")
    parser.add_argument("--seconds", type=float, default=20.0, help="of sends, for each")
    options = parser.parse_args(arguments)
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    session = spark.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    try:
        with EmbeddedBroker(own_process=True) as broker:
            for idle in options.idle:
                for topic in _topics(idle):
                    broker.create_topic(topic, 4)
                times = sorted(_times(session, broker.address, idle, options.seconds))
                sys.stdout.write(
                    f"beside {idle} idle sources: p50 {statistics.median(times):.0f} ms, "
                    f"p90 {times[len(times) * 9 // 10]:.0f} ms, of {len(times)} messages\n"
                )
    finally:
        session.stop()


def _times(spark: SparkSession, address: str, idle: int, seconds: float) -> list[float]:
    """Return the milliseconds until each message arrived in foreachBatch."""
    times: list[float] = []
    batches = 0

    def collect(rows: DataFrame, _: int) -> None:
        nonlocal batches
        bodies = [bytes(row.body) for row in rows.select("body").collect()]
        batches += bool(bodies)
        if batches > _SETTLED:
            arrived = time.time_ns()
            times.extend((arrived - int(body)) / 1e6 for body in bodies)

    topics = _topics(idle)
    with tempfile.TemporaryDirectory() as checkpoint, Producer("beside", address) as producer:
        sources = (_source(spark, address, topic) for topic in topics)
        union = functools.reduce(lambda one, other: one.union(other), sources)
        writer = union.writeStream.foreachBatch(collect)
        query = writer.option("checkpointLocation", checkpoint).start()
        try:
            ended: float | None = None
            while ended is None or time.monotonic() < ended:
                producer.send(Message(topics[0], b"%d" % time.time_ns()))
                if ended is None and times:
                    ended = time.monotonic() + seconds
                if query.exception() is not None:
                    raise RuntimeError(str(query.exception()))
                time.sleep(0.1)
        finally:
            query.stop()
    return times


def _topics(idle: int) -> list[str]:
    """Return the busy topic, followed by the idle ones."""
    return [f"busy-beside-{idle}", *(f"idle-{number}-of-{idle}" for number in range(idle))]


def _source(spark: SparkSession, address: str, topic: str) -> DataFrame:
    reader = spark.readStream.format("rocketpoll").option("namesrvAddr", address)
    return reader.option("topic", topic).option("startingOffsets", "latest").load().select("body")


if __name__ == "__main__":
    main()
