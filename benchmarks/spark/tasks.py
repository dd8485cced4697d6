"""The CPU of a task of the source: from pulls to the Arrow stream that it gives to Spark.

    .venv/bin/python -m benchmarks.spark.tasks
    .venv/bin/python -m benchmarks.spark.tasks --megabytes 400 --rounds 9

The tasks run in this process, one after the other, and what they give goes nowhere; the broker has
a process of its own, which is not counted. Spark is not needed. The least CPU of all rounds is
given, as other programs can only add to it. A ratio says how many times as much CPU as the case
above, which leaves out the check of the bodies' CRCs.
"""

from __future__ import annotations

import argparse
import io
import sys
import time
from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from rmq_spark.client import Producer
from rmq_spark.spark.options import ReadOptions, read_options
from rmq_spark.spark.planning import Piece
from rmq_spark.spark.schema import BROKER_NAME, DEFAULT_COLUMNS
from rmq_spark.spark.tasks import read_piece
from rmq_spark.wire.chunk import COLUMNS
from rocketpoll import EmbeddedBroker

_SIZES: Final = (100, 1_000)
_COLUMNS: Final = {"default": DEFAULT_COLUMNS, "body": ("body",)}
_ROWS_AT_ONCE: Final = 20_000
_TARGET_CRC_SHARE: Final = 1.05
"""The most that the check of the bodies may make of a task's CPU, beside one without."""


class _Nowhere(io.RawIOBase):
    """A file that takes all and keeps nothing."""

    def writable(self) -> bool:
        return True

    def write(self, data: object, /) -> int:
        return memoryview(data).nbytes  # type: ignore[arg-type]  # buffers, as pyarrow writes them


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the CPU for a million rows, of each size, with each choice of columns."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark.tasks")
    parser.add_argument("--megabytes", type=int, default=100, help="of bodies of each size")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args(arguments)
    with EmbeddedBroker(own_process=True) as broker, Producer("tasks", broker.address) as producer:
        for size in _SIZES:
            rows = max(options.megabytes * 1_000_000 // size, 1)
            piece = _filled(broker, producer, f"tasks-{size}", rows, size)
            for name, columns in _COLUMNS.items():
                _report(f"{size} B, columns {name}", broker.address, piece, columns, options.rounds)


def _filled(broker: EmbeddedBroker, producer: Producer, topic: str, rows: int, size: int) -> Piece:
    """Send rows with keys and tags to one queue; return the piece that holds them all."""
    broker.create_topic(topic, 1)
    for first in range(0, rows, _ROWS_AT_ONCE):
        count = min(_ROWS_AT_ONCE, rows - first)
        table = pa.table(
            {
                "body": pa.array([b"%0*d" % (size, first + row) for row in range(count)]),
                "keys": pa.array([f"order-{first + row:08}" for row in range(count)]),
                "tags": pa.array(["paid"] * count),
            }
        )
        producer.send_table(table, topic)
    (queue,) = producer.publish_queues(topic)
    return Piece(queue, 0, rows)


def _report(subject: str, address: str, piece: Piece, columns: Sequence[str], rounds: int) -> None:
    """Measure a piece with and without the check in turn, and print both."""
    least = {"false": float("inf"), "true": float("inf")}
    for number in range(rounds + 1):
        for checked in ("false", "true"):
            options = read_options(
                {"namesrvAddr": address, "topic": piece.queue.topic, "checkCrc": checked}
            )
            took = _cpu_seconds(options, piece, columns)
            if number:  # the first one learns how many messages the broker gives at once
                least[checked] = min(least[checked], took)
    per_million = {name: took / piece.end * 1e6 for name, took in least.items()}
    share = least["true"] / least["false"]
    reached = "reached" if share <= _TARGET_CRC_SHARE else "missed"
    sys.stdout.write(
        f"{subject}, checkCrc=false: {per_million['false']:.3f} s of CPU for 1,000,000 rows\n"
        f"{subject}, checkCrc=true: {per_million['true']:.3f} s, {share:.2f} times "
        f"(<= {_TARGET_CRC_SHARE}: {reached})\n"
    )


def _cpu_seconds(options: ReadOptions, piece: Piece, columns: Sequence[str]) -> float:
    """Read a piece as a task does; return the CPU of this process, all threads of it."""
    schema = pa.schema([pa.field(name, _type(name)) for name in columns])
    began = time.process_time()
    rows = 0
    with pa.ipc.new_stream(_Nowhere(), schema) as stream:
        for batch in read_piece(options, schema, piece):
            stream.write_batch(batch)
            rows += batch.num_rows
    took = time.process_time() - began
    if rows != piece.end:
        raise AssertionError(f"{rows} of {piece.end} rows of {piece.queue}")
    return took


def _type(column: str) -> pa.DataType:
    """Return the type in which Spark wants a column."""
    if column == BROKER_NAME:
        return pa.string()
    found = COLUMNS[column].type
    return pa.timestamp("us", found.tz) if pa.types.is_timestamp(found) else found


if __name__ == "__main__":
    main()
