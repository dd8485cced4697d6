"""CPU of ingest without Spark: a broker, and a task from pulls to the Arrow stream for Spark.

    .venv/bin/python -m benchmarks.spark.tasks
    .venv/bin/python -m benchmarks.spark.tasks --megabytes 400 --rounds 9
    .venv/bin/python -m benchmarks.spark.tasks --pulled   # as from another machine

The tasks run in this process, one after the other, and their output is dropped; the broker has a
process of its own. The CPU of both counts; Spark is not involved. The result is the least CPU of
all rounds, because other programs can only add to it. The ratio compares both with the case above,
which omits the check of the bodies' CRCs.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from typing import Final, NamedTuple

import pyarrow as pa

from benchmarks.spark.process_tree import embedded_broker, process_cpu_seconds
from rmq_spark.spark.options.options import read_options
from rmq_spark.spark.plan.partition_planner import OffsetRange
from rmq_spark.spark.read.partition_reader import read_range
from rmq_spark.spark.schemas.columns import BROKER_NAME, DEFAULT_COLUMNS
from rmq_spark.wire.chunk import COLUMNS
from rocketpoll import EmbeddedBroker, Producer

_LENGTHS: Final = {
    "100 B": (100, 100),
    "80 to 120 B": (80, 120),
    "1000 B": (1_000, 1_000),
    "800 to 1200 B": (800, 1_200),
}
"""The minimum and maximum bytes of a body; all lengths between them are equally frequent."""

_COLUMNS: Final = {"default": DEFAULT_COLUMNS, "body": ("body",)}
_ROWS_AT_ONCE: Final = 20_000
_STEP: Final = 7
"""The difference between the lengths of successive bodies: a prime number, so that all occur."""

_TARGET_CRC_SHARE: Final = 1.05
"""The target for the CPU of ingest with the check of bodies, relative to ingest without."""


class _Nowhere(io.RawIOBase):
    """A file that discards all writes."""

    def writable(self) -> bool:
        return True

    def write(self, data: object, /) -> int:
        return memoryview(data).nbytes  # type: ignore[arg-type]  # buffers, as pyarrow writes them


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the CPU for a million rows, of each size, with each choice of columns."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark.tasks")
    parser.add_argument("--megabytes", type=int, default=100, help="of bodies of each size")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--pulled", action="store_true", help="read no files of the broker's")
    options = parser.parse_args(arguments)
    with EmbeddedBroker(own_process=True) as broker, Producer("tasks", broker.address) as producer:
        broker_process = embedded_broker()
        for number, (lengths, (least, most)) in enumerate(_LENGTHS.items()):
            rows = max(options.megabytes * 2_000_000 // (least + most), 1)
            piece = _filled(broker, producer, f"tasks-{number}", rows, range(least, most + 1))
            for name, columns in _COLUMNS.items():
                measured = _Measured(
                    broker.address,
                    broker_process,
                    piece,
                    columns,
                    reads_files=not options.pulled,
                )
                measured.report(f"{lengths}, columns {name}", options.rounds)


def _filled(
    broker: EmbeddedBroker, producer: Producer, topic: str, rows: int, lengths: Sequence[int]
) -> OffsetRange:
    """Send rows with keys and tags to one queue; return the offset range that holds them all."""
    broker.create_topic(topic, 1)
    for first in range(0, rows, _ROWS_AT_ONCE):
        numbers = range(first, min(first + _ROWS_AT_ONCE, rows))
        table = pa.table(
            {
                "body": pa.array(
                    [b"%0*d" % (lengths[row * _STEP % len(lengths)], row) for row in numbers]
                ),
                "keys": pa.array([f"order-{row:08}" for row in numbers]),
                "tags": pa.array(["paid"] * len(numbers)),
            }
        )
        producer.send_table(table, topic)
    (queue,) = producer.publish_queues(topic)
    return OffsetRange(queue, 0, rows)


class _Measured(NamedTuple):
    """An offset range, and the processes that serve and read it."""

    address: str
    broker_process: int
    piece: OffsetRange
    columns: Sequence[str]
    reads_files: bool

    def report(self, subject: str, rounds: int) -> None:
        """Measure with and without the check alternately, and print both."""
        took: dict[str, list[tuple[float, float]]] = {"false": [], "true": []}
        for number in range(rounds + 1):
            for checked, rounds_of in took.items():
                of_both = self._cpu_seconds(checked)
                if number:  # the first one learns how many messages the broker gives at once
                    rounds_of.append(of_both)
        least = {
            checked: tuple(min(each) / self.piece.end * 1e6 for each in zip(*of_both, strict=True))
            for checked, of_both in took.items()
        }
        for checked, (task, broker) in least.items():
            sys.stdout.write(
                f"{subject}, checkCrc={checked}: {task:.3f} s of CPU of the task and "
                f"{broker:.3f} s of the broker for 1,000,000 rows\n"
            )
        share = sum(least["true"]) / sum(least["false"])
        reached = "reached" if share <= _TARGET_CRC_SHARE else "missed"
        sys.stdout.write(
            f"{subject}, with the check: {share:.2f} times (<= {_TARGET_CRC_SHARE}: {reached})\n"
        )

    def _cpu_seconds(self, checked: str) -> tuple[float, float]:
        """Read the piece as a task does; return the CPU of this process and of the broker's."""
        topic = self.piece.queue.topic
        given = {"namesrvAddr": self.address, "topic": topic, "checkCrc": checked}
        options = read_options({**given, "localFiles": str(self.reads_files).lower()})
        schema = schema_of(self.columns)
        processes = (os.getpid(), self.broker_process)
        began = [process_cpu_seconds(each) for each in processes]
        rows = 0
        with pa.ipc.new_stream(_Nowhere(), schema) as stream:
            for batch in read_range(options, schema, self.piece):
                stream.write_batch(batch)
                rows += batch.num_rows
        task, broker = (
            process_cpu_seconds(each) - before
            for each, before in zip(processes, began, strict=True)
        )
        if rows != self.piece.end:
            raise AssertionError(f"{rows} of {self.piece.end} rows of {self.piece.queue}")
        return task, broker


def schema_of(columns: Sequence[str]) -> pa.Schema:
    """Return the columns in the types in which Spark wants them."""
    return pa.schema([pa.field(name, _type(name)) for name in columns])


def _type(column: str) -> pa.DataType:
    if column == BROKER_NAME:
        return pa.string()
    found = COLUMNS[column].type
    return pa.timestamp("us", found.tz) if pa.types.is_timestamp(found) else found


if __name__ == "__main__":
    main()
