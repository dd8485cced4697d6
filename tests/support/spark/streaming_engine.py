"""Spark's engine for a streaming source without Spark: offset log, commit log, batches, restarts.

With it, hundreds of crashes cost seconds. It uses the real reader; offsets go through JSON, readers
and partitions through pickle, as between Spark's processes. The sink identifies batches by number,
and a batch that runs again must have the same rows. `spark/faults/test_restarts` does the same with
Spark.
"""

from __future__ import annotations

import json
import pickle
from collections import Counter
from collections.abc import Callable
from contextlib import contextmanager
from itertools import count
from typing import NamedTuple

import pytest
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType

from rmq_spark.client.message import Message
from rmq_spark.client.producer.producer import Producer
from rmq_spark.spark.errors import DataLoss
from rmq_spark.spark.stream_reader import stream_reader

SCHEMA = StructType(
    [
        StructField("topic", StringType()),
        StructField("queueId", IntegerType()),
        StructField("queueOffset", LongType()),
        StructField("body", BinaryType()),
    ]
)

POINTS = (
    "latest",
    "latest-done",
    "partitions",
    "partitions-done",
    "task",
    "sink",
    "sink-done",
    "commit",
)
"""Points at which a query can crash; the names are those of `spark/programs/held_driver`."""

_numbers = count()


class Crashed(Exception):
    """Raised when the query crashes and loses its memory."""


class Row(NamedTuple):
    """The columns of a row that the sink keeps."""

    topic: str
    queue_id: int
    queue_offset: int
    body: str | None


_SEND_MS = 30_000
"""Send timeout in milliseconds: busy machines, kills and restarts take long."""


def send(broker, topic, count, name="message"):
    """Send messages round-robin to the queues; return their unique bodies."""
    bodies = [f"{topic} {name} {next(_numbers)}" for _ in range(count)]
    with Producer(
        "feeder", broker.address
    ) as producer:  # new: it has no cached route with another number of queues
        for body in bodies:
            producer.send(Message(topic, body.encode()), timeout_ms=_SEND_MS)
    return bodies


def assert_read(query, bodies, *, without=()):
    """Check that the sink has each message once, except lost ones, and nothing else."""
    __tracebackhide__ = True
    found = Counter(row.body for row in query.rows())
    assert found == Counter(bodies) - Counter(without)
    assert query.differing == []


def _text(body):
    return body if body is None or isinstance(body, str) else body.decode()


def _unpickled(data):
    return pickle.loads(data)  # noqa: S301  # pickled by this process


class Engine:
    """One query over any number of starts, with its options, checkpoint and sink."""

    def __init__(self, address, **options):
        self.options = {
            "namesrvAddr": address,
            "startingOffsets": "earliest",
            "suspendTimeoutMs": "20",
            "discoveryIntervalMs": "0",
            **{name: str(value) for name, value in options.items()},
        }
        self.schema = SCHEMA
        self.offsets: list[str] = []
        self.commits = 0
        self.sink: dict[int, list[Row]] = {}
        self.differing: list[int] = []
        self.crash_at: str | None = None
        self.before_tasks: Callable[[], None] | None = None
        self.after_first_rows: Callable[[], None] | None = None
        self._reader = None
        self._is_available_now = False

    # ---- lifecycle

    def start(self, *, available_now=False):
        """Start the query, from its checkpoint if there is one, without a request to the reader."""
        __tracebackhide__ = True
        assert self._reader is None
        self._reader = stream_reader(self.options, self.schema)
        self._is_available_now = available_now
        if available_now:
            self._reader.prepareForTriggerAvailableNow()

    def stop(self):
        """End the query as Spark does, mostly without notice to the reader, whose connections end
        with the process."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.stop()

    @property
    def is_running(self):
        """Return whether the query was started and neither stopped nor crashed."""
        return self._reader is not None

    def trigger(self):
        """Run one batch if there is one, perhaps planned before a restart; return whether there
        was."""
        try:
            return self._trigger()
        except BaseException:
            self.stop()
            raise

    def run(self, batches_max=1_000):
        """Run batches until there was nothing new twice in a row: the reader waits in
        the second."""
        idle = 0
        for _ in range(batches_max):
            idle = 0 if self.trigger() else idle + 1
            if idle == 2 or (idle and self._is_available_now):
                return
        raise AssertionError(f"there is no end to it after {batches_max} batches")

    def rows(self):
        """Return all rows in the sink."""
        return [row for batch_id in sorted(self.sink) for row in self.sink[batch_id]]

    def end(self):
        """Return the end offset of the last batch, from the checkpoint."""
        return json.loads(self.offsets[-1])

    def report(self):
        """Return the end offsets of the queues, from the progress of the running query."""
        return json.loads(json.dumps(self._reader.reportLatestOffset()))

    # ---- within

    def _trigger(self):
        batch_id = self.commits
        if len(self.offsets) == batch_id:
            start = self._start_of(batch_id)
            self._pass_by("latest")
            end = self._latest(start)
            self._pass_by("latest-done")
            if end == start:
                return False
            self.offsets.append(end)
        elif len(self.offsets) > batch_id + 1:
            raise AssertionError("more than one batch was planned and not committed")
        start, end = self._start_of(batch_id), self.offsets[batch_id]
        self._pass_by("partitions")
        pieces = pickle.dumps(self._reader.partitions(json.loads(start), json.loads(end)))
        self._pass_by("partitions-done")
        if self.before_tasks is not None:
            happens, self.before_tasks = self.before_tasks, None
            happens()
        rows = self._read(pieces)
        self._pass_by("sink")
        if self.sink.get(batch_id, rows) != rows:
            self.differing.append(batch_id)
        self.sink[batch_id] = rows
        self._pass_by("sink-done")
        self.commits += 1
        self._pass_by("commit")
        self._reader.commit(json.loads(end))
        return True

    def _start_of(self, batch_id):
        """Return the start of a batch; Spark asks for the initial offset again when batch 0 runs
        again."""
        return self.offsets[batch_id - 1] if batch_id else json.dumps(self._reader.initialOffset())

    def _latest(self, start):
        return json.dumps(
            self._reader.latestOffset(json.loads(start), self._reader.getDefaultReadLimit())
        )

    def _read(self, pieces):
        """Read each task as if in its own process."""
        rows = []
        for number, piece in enumerate(_unpickled(pieces)):
            if number:
                self._pass_by("task")
            task = _unpickled(pickle.dumps(self._reader))
            for batch in task.read(piece):
                rows += [
                    Row(row["topic"], row["queueId"], row["queueOffset"], _text(row["body"]))
                    for row in batch.to_pylist()
                ]
                if self.after_first_rows is not None:
                    happens, self.after_first_rows = self.after_first_rows, None
                    happens()
        return sorted(rows)

    def _pass_by(self, point):
        if self.crash_at == point:
            self.crash_at = None
            raise Crashed(point)


@contextmanager
def loss(*words):
    """Check that the query fails, and that its error names the loss and the remedy."""
    __tracebackhide__ = True
    with pytest.raises(DataLoss) as raised:
        yield
    for word in (*words, "failOnDataLoss"):
        assert word in str(raised.value)
