"""The measured queries. They are the same for each format."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from math import log
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.spark.driver.formats import Format, Send

PAUSE_SECONDS = (0.1, 0.4)
"""The bounds of random pauses between timed messages, which must not keep step with batches."""

WAIT_SECONDS = 100
"""The maximum seconds to wait for anything: less than the timeout of a command."""

_PARTITIONS = 4
_BODY_BYTES = {"100 B": 100, "1 KB": 1_000}

# The logarithm is normal, by Box and Muller, of two uniform numbers.
_NORMAL = (
    "sqrt(-2 * ln((pmod(xxhash64(id, 1), 1000000) + 1) / 1000001))"
    " * cos(2 * pi() * pmod(xxhash64(id, 2), 1000000) / 1000000)"
)
_SIZE = f"cast(least(greatest(exp({log(400)} + 1.2 * {_NORMAL}), 50), 8192) as int)"
_VARIED = (
    "id",
    f"cast(substring(repeat(sha2(cast(id as string), 512), 64), 1, {_SIZE}) as binary) as body",
    (
        "array_join(transform(sequence(1, 1 + cast(pmod(xxhash64(id, 3), 3) as int)),"
        " number -> concat('order-', pmod(xxhash64(id, number), 1000000))), ' ') as keys"
    ),
    "element_at(array('created', 'paid', 'refunded'), 1 + cast(pmod(id, 3) as int)) as tags",
    "map_from_entries(slice(array("
    "struct('tenant' as key, concat('tenant-', pmod(id, 50)) as value), "
    + ", ".join(
        f"struct('{name}' as key, hex(xxhash64(id, '{name}')) as value)"
        for name in ("source", "version", "region", "trace")
    )
    + "), 1, 2 + cast(pmod(xxhash64(id, 4), 4) as int))) as properties",
)
"""The columns of varied rows."""


class Queries:
    """The commands that one side's Spark can run."""

    def __init__(self, spark: SparkSession, form: Format, directory: Path) -> None:
        """Take a directory for checkpoints, which lie there while they are needed."""
        self._spark = spark
        self._check_format = form
        self._directory = directory
        self._running: StreamingQuery | None = None

    # ---- reading

    def ingest(self, topic: str, *, bodies_alone: bool = False) -> dict[str, Any]:
        """Read a whole topic as a stream that writes nothing: all default columns, or one."""
        options = (
            self._check_format.bodies_alone(topic)
            if bodies_alone
            else self._check_format.options(topic)
        )
        with self._checkpoint() as checkpoint:
            rows = self._read(options, "earliest")
            if bodies_alone:
                rows = rows.select(self._check_format.body)
            writer = rows.writeStream.format("noop")
            return _run(writer.option("checkpointLocation", checkpoint).trigger(availableNow=True))

    def latency(self, topic: str, seconds: float) -> list[float]:
        """Return the milliseconds from sending a message to its row in foreachBatch, sorted.

        Both clocks are this process's: it sends in one thread and collects in another.
        """
        send = self._check_format.sender(self._spark, topic)
        send(_now())
        seen: list[tuple[int, int]] = []

        def collect(batch: DataFrame, _: int) -> None:
            bodies = [bytes(row[0]) for row in batch.select(self._check_format.body).collect()]
            arrived = time.time_ns()
            seen.extend((int(body), arrived) for body in bodies)

        with self._checkpoint() as checkpoint:
            writer = self._read(
                self._check_format.options(topic), "latest"
            ).writeStream.foreachBatch(collect)
            query = writer.option("checkpointLocation", checkpoint).start()
            try:
                _send_until(
                    lambda: bool(seen), send, query
                )  # the first batch compiles what the others run
                began = time.time_ns()
                sent = _send_until(lambda: time.time_ns() - began >= seconds * 1e9, send, query)
                _wait_for(lambda: len(_since(began, seen)) >= sent, query)
            finally:
                query.stop()
        return sorted(_since(began, seen))

    def start_idling(self, topic: str) -> None:
        """Start a query, send it a few messages, and let it idle until `stop_idling`."""
        send = self._check_format.sender(self._spark, topic)
        send(_now())
        query = (
            self._read(self._check_format.options(topic), "latest")
            .writeStream.format("noop")
            .start()
        )
        self._running = query
        _send_until(lambda: any(each["numInputRows"] for each in query.recentProgress), send, query)

    def stop_idling(self) -> None:
        """Stop the query that idles."""
        if self._running is not None:
            self._running.stop()
            self._running = None

    # ---- writing

    def write(self, topic: str, rows: int, kind: str) -> dict[str, Any]:
        """Write a batch of generated rows of a kind to a topic."""
        writer = self._check_format.rows(
            _generated(self._spark.range(rows, numPartitions=_PARTITIONS), kind)
        )
        started = time.perf_counter()
        writer.write.format(self._check_format.name).options(
            **self._check_format.options(topic)
        ).mode("append").save()
        return {"rows": rows, "seconds": time.perf_counter() - started}

    def write_stream(self, topic: str, rows: int, kind: str) -> dict[str, Any]:
        """Write the rows as one batch of a stream, and return its figures."""
        source = self._spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows)
        numbers = (
            source.option("numPartitions", _PARTITIONS).load().select(f.col("value").alias("id"))
        )
        with self._checkpoint() as checkpoint:
            writer = self._check_format.rows(_generated(numbers, kind)).writeStream.format(
                self._check_format.name
            )
            writer = writer.options(**self._check_format.options(topic)).option(
                "checkpointLocation", checkpoint
            )
            return _run(writer.trigger(availableNow=True))

    # ---- what they share

    def _read(self, options: Mapping[str, str], starting_offsets: str) -> DataFrame:
        reader = self._spark.readStream.format(self._check_format.name).options(**options)
        return reader.option("startingOffsets", starting_offsets).load()

    @contextmanager
    def _checkpoint(self) -> Iterator[str]:
        with TemporaryDirectory(prefix="checkpoint-", dir=self._directory) as path:
            yield path


def _generated(numbers: DataFrame, kind: str) -> DataFrame:
    """Return messages: bodies alone, or with keys, tags and properties as services send them.

    Varied rows have log-normal bodies, one of three tags, one to three keys, and two to five
    properties, one of which names one of 50 tenants. Hashes of their numbers make them differ, and
    the same in each run.
    """
    if kind in _BODY_BYTES:
        body = f.lpad(f.col("id").cast("string"), _BODY_BYTES[kind], "0").cast("binary")
        return numbers.select("id", body.alias("body"))
    return numbers.selectExpr(*_VARIED)


def _run(writer: Any) -> dict[str, Any]:
    """Run a stream from start to end; return rows, seconds in all, and those of addBatch."""
    started = time.perf_counter()
    query = writer.start()
    query.awaitTermination()
    seconds = time.perf_counter() - started
    progress = query.recentProgress
    return {
        "rows": sum(each["numInputRows"] for each in progress),
        "seconds": seconds,
        "add_batch_seconds": sum(each["durationMs"].get("addBatch", 0) for each in progress) / 1e3,
        "durations": [each["durationMs"] for each in progress],
    }


def _since(began: int, seen: list[tuple[int, int]]) -> list[float]:
    """Return the milliseconds of the messages that were sent since ``began``."""
    return [(arrived - sent) / 1e6 for sent, arrived in seen if sent >= began]


def _send_until(condition: Callable[[], bool], send: Send, query: StreamingQuery) -> int:
    """Send the current time repeatedly; return the number of messages."""
    sent = 0

    def is_enough() -> bool:
        nonlocal sent
        if condition():
            return True
        send(_now())
        sent += 1
        return False

    _wait_for(is_enough, query, PAUSE_SECONDS)
    return sent


def _now() -> bytes:
    return str(time.time_ns()).encode()


def _wait_for(
    condition: Callable[[], bool], query: StreamingQuery, pauses: tuple[float, float] = (0.05, 0.05)
) -> None:
    deadline = time.perf_counter() + WAIT_SECONDS
    while not condition():
        error = query.exception()
        if error is not None:
            raise error
        if time.perf_counter() > deadline:
            raise TimeoutError(f"nothing has come for {WAIT_SECONDS} s: {query.lastProgress}")
        time.sleep(random.uniform(*pauses))
