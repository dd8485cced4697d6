"""CPU of ingest without Spark: a broker, and a task from pulls to the Arrow stream for Spark.

    .venv/bin/python -m benchmarks.spark.tasks
    .venv/bin/python -m benchmarks.spark.tasks --megabytes 400 --rounds 9
    .venv/bin/python -m benchmarks.spark.tasks --pulled   # as from another machine
    .venv/bin/python -m benchmarks.spark.tasks --only varied --steps  # what a task spends it on

The tasks run in this process, one after the other, and their output is dropped; the broker has a
process of its own. The CPU of both counts; Spark is not involved. The result is the least CPU of
all rounds, because other programs can only add to it. The ratio compares both with the case above,
which omits the check of the bodies' CRCs.

With ``--steps``, a further run gives the CPU and page faults of each step of a task, without those
of the steps within it. Bodies are copied by two of them: from the file or the connection to a
chunk, and from there to their column.
"""

from __future__ import annotations

import argparse
import io
import os
import resource
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from typing import Any, Final, NamedTuple
from unittest import mock

import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.spark.process_tree import embedded_broker, process_cpu_seconds
from benchmarks.spark.sink_tasks import varied_rows
from rmq_spark.client.reading import log_files, readable_chunks, record_batches
from rmq_spark.client.reading.bulk_pull import BulkPull
from rmq_spark.spark.options.options import read_options
from rmq_spark.spark.plan.partition_planner import OffsetRange
from rmq_spark.spark.read.partition_reader import read_range
from rmq_spark.spark.schemas.columns import BROKER_NAME, DEFAULT_COLUMNS
from rmq_spark.wire.chunk import COLUMNS, RecordChunk
from rocketpoll import EmbeddedBroker, Producer

_COLUMNS: Final = {"default": DEFAULT_COLUMNS, "body": ("body",)}
_ROWS_AT_ONCE: Final = 20_000
_STEP: Final = 7
"""The difference between the lengths of successive bodies: a prime number, so that all occur."""

_TARGET_CRC_SHARE: Final = 1.05
"""The target for the CPU of ingest with the check of bodies, relative to ingest without."""


def _keyed_rows(least: int, most: int, numbers: range) -> pa.Table:
    """Return rows with a key and a tag; all lengths of bodies in between are equally frequent."""
    lengths = range(least, most + 1)
    bodies = [b"%0*d" % (lengths[row * _STEP % len(lengths)], row) for row in numbers]
    keys = [f"order-{row:08}" for row in numbers]
    return pa.table({"body": bodies, "keys": keys, "tags": ["paid"] * len(numbers)})


@cache
def _varied_rows_at_once() -> pa.Table:
    return varied_rows(_ROWS_AT_ONCE)


_KINDS: Final[dict[str, Callable[[range], pa.Table]]] = {
    "100 B": partial(_keyed_rows, 100, 100),
    "80 to 120 B": partial(_keyed_rows, 80, 120),
    "1000 B": partial(_keyed_rows, 1_000, 1_000),
    "800 to 1200 B": partial(_keyed_rows, 800, 1_200),
    "varied": lambda numbers: _varied_rows_at_once().slice(0, len(numbers)),
}
"""The rows with these numbers, of each kind; varied ones as services send them."""


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
    parser.add_argument("--only", default="", help="kinds with this in their names")
    parser.add_argument("--steps", action="store_true", help="CPU and page faults of each step")
    options = parser.parse_args(arguments)
    with EmbeddedBroker(own_process=True) as broker, Producer("tasks", broker.address) as producer:
        broker_process = embedded_broker()
        for number, (kind, make) in enumerate(_KINDS.items()):
            if options.only not in kind:
                continue
            mean_bytes = pc.mean(pc.binary_length(make(range(_ROWS_AT_ONCE))["body"])).as_py()
            rows = max(int(options.megabytes * 1e6 / mean_bytes), 1)
            piece = _filled(broker, producer, f"tasks-{number}", rows, make)
            for name, columns in _COLUMNS.items():
                measured = _Measured(
                    broker.address,
                    broker_process,
                    piece,
                    columns,
                    reads_files=not options.pulled,
                )
                measured.report(f"{kind}, columns {name}", options.rounds)
                if options.steps:
                    measured.report_steps()


def _filled(
    broker: EmbeddedBroker,
    producer: Producer,
    topic: str,
    rows: int,
    make: Callable[[range], pa.Table],
) -> OffsetRange:
    """Send rows to one queue; return the offset range that holds them all."""
    broker.create_topic(topic, 1)
    for first in range(0, rows, _ROWS_AT_ONCE):
        producer.send_table(make(range(first, min(first + _ROWS_AT_ONCE, rows))), topic)
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

    def report_steps(self) -> None:
        """Read once more, and print what each step took, the longest first."""
        with _timed_steps() as steps:
            self._cpu_seconds("true")
        rows = self.piece.end
        for name, (seconds, faults, calls) in sorted(steps.items(), key=lambda step: -step[1][0]):
            sys.stdout.write(
                f"  {name:16} {seconds / rows * 1e6:.3f} s and {faults / rows * 1e6:6.0f} page "
                f"faults for 1,000,000 rows, {calls:.0f} calls\n"
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


_STEPS: Final[tuple[tuple[Any, str, str], ...]] = (
    (BulkPull, "_pull", "request"),
    (BulkPull, "_await_result", "wait"),
    (log_files.LogDirectory, "read", "read file"),
    (log_files.LogFiles, "read_records", "rest of files"),
    (log_files, "_match_queue", "compare queue"),
    (readable_chunks, "_first_mismatch", "compare queue"),
    (RecordChunk, "__init__", "find fields"),
    (RecordChunk.__dict__["stored_bodies"], "func", "gather bodies"),
    (record_batches, "damaged_bodies", "check bodies"),
    (record_batches, "_cast", "cast"),
)
"""Where each step of a task is called: an object, the name of its function, and the step."""

_Steps = defaultdict[str, list[float]]
"""Seconds of CPU, page faults and calls by step."""


@contextmanager
def _timed_steps() -> Iterator[_Steps]:
    """Replace the functions of all steps by ones that measure, until the end of the block."""
    steps: _Steps = defaultdict(lambda: [0.0, 0.0, 0.0])
    inner: list[list[float]] = [[0.0, 0.0]]

    def measured(step: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*given: Any, **named: Any) -> Any:
            inner.append([0.0, 0.0])
            began = _used()
            try:
                return function(*given, **named)
            finally:
                used = [now - before for now, before in zip(_used(), began, strict=True)]
                within = inner.pop()
                for number, amount in enumerate(used):
                    inner[-1][number] += amount
                    steps[step][number] += amount - within[number]
                steps[step][2] += 1

        return run

    with ExitStack() as patches:
        for owner, name, step in _STEPS:
            patches.enter_context(
                mock.patch.object(owner, name, measured(step, getattr(owner, name)))
            )
        columns = {
            name: column._replace(build=measured(name, column.build))
            for name, column in COLUMNS.items()
        }
        patches.enter_context(mock.patch.dict(COLUMNS, columns))
        yield steps


def _used() -> tuple[float, float]:
    usage = resource.getrusage(resource.RUSAGE_THREAD)
    return usage.ru_utime + usage.ru_stime, usage.ru_minflt


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
