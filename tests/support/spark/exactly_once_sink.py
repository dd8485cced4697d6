"""An exactly-once sink without Spark: its tasks, their attempts, and its driver.

It treats a writer as Spark does: it pickles the writer to tasks, commits with a new one, and runs a
batch again if its commit is unknown.
"""

import pickle
from contextlib import contextmanager
from itertools import count

import pyarrow as pa
from support.spark.source_queries import schema_of
from support.spark.task_context import FakeTaskContext

from rmq_spark.client.api.admin_api import StagingApi
from rmq_spark.spark import writer as writers
from rmq_spark.spark.data_source import RocketPollDataSource
from rmq_spark.spark.write import sender

_numbers = count()
_PROPERTIES = (
    "sql.streaming.queryId",
    "streaming.sql.batchId",
    "spark.jobGroup.id",
    "spark.sql.execution.root.id",
)


@contextmanager
def own_producers(monkeypatch):
    """Yield producers that are closed with the test, unlike those of Spark's tasks, which live as
    long as the process."""
    made = {}
    monkeypatch.setattr(sender, "_producers", made)
    yield
    for producer in made.values():
        producer.shutdown()


def behind_look(monkeypatch, number, call):
    """Call a function right after a task has asked for the sink's last commit."""
    look, looks = StagingApi.last_batch, []

    def last_batch(self, address, name):
        found = look(self, address, name)
        looks.append(found)
        if len(looks) == number:
            call()
        return found

    monkeypatch.setattr(StagingApi, "last_batch", last_batch)


class CommittingSink:
    """A query that writes to a topic, or with ``query=None`` a batch program."""

    schema = "body string, keys string"

    def __init__(self, monkeypatch, broker, topic, query="query", **options):
        self._monkeypatch = monkeypatch
        self.query = query
        self.run = "run-0"  # the run id of the stream or of the foreachBatch driver
        self.job_group = None  # set by the program in foreachBatch
        self.call = 0  # number of the foreachBatch call
        self.fails = False  # whether tasks fail after their rows
        self.topic_of = None  # topic of a row by its number, if rows name their topics
        self.is_batch_write = query is None or "writeName" in options
        given = {
            "namesrvAddr": broker.address,
            "topic": topic,
            "delivery": "exactly_once",
            **({} if query is None else {"checkpointLocation": f"of-{query}"}),
            **options,
        }
        self.options = {name: value for name, value in given.items() if value is not None}

    def rows(self, *sizes):
        """Return partitions with new rows."""
        return [[f"{self.query} {next(_numbers)}" for _ in range(size)] for size in sizes]

    def attempt(self, batch, partition, rows, writer=None):
        """Run one attempt at a partition's rows; return its commit message."""
        given = (self.query, str(batch), self.job_group or self.run, str(self.call))
        properties = {} if self.query is None else dict(zip(_PROPERTIES, given, strict=True))

        class Contexts:
            @staticmethod
            def get():
                return FakeTaskContext(partition, properties)

        self._monkeypatch.setattr(writers, "TaskContext", Contexts)
        columns = {"body": rows, "keys": ["k"] * len(rows)}
        if self.topic_of is not None:
            columns["topic"] = [self.topic_of(number) for number in range(len(rows))]
        sent = pickle.loads(pickle.dumps(writer or self.writer())).write(self._batches(columns))  # noqa: S301  # what Spark does
        return pickle.loads(pickle.dumps(sent))  # noqa: S301  # what Spark does

    def _batches(self, columns):
        yield pa.record_batch(columns)
        if self.fails:
            raise RuntimeError("a step before the sink fails")

    def send(self, batch, partitions):
        """Run one attempt at each partition; return their commit messages."""
        return [self.attempt(batch, number, rows) for number, rows in enumerate(partitions)]

    def commit(self, batch, sent):
        """Commit as a driver in a new process does."""
        self.writer().commit(sent, batch)

    def write(self, batch, partitions):
        """Write a batch without faults; return all its rows."""
        self.commit(batch, self.send(batch, partitions))
        return [body for rows in partitions for body in rows]

    def write_batch(self, batch, partitions):
        """Write a batch, within the query's foreachBatch if there is one."""
        writer = self.writer()
        writer.commit([self.attempt(batch, at, rows, writer) for at, rows in enumerate(partitions)])
        return [body for rows in partitions for body in rows]

    def writer(self):
        """Return a new writer; each step uses its own."""
        self._monkeypatch.setenv("SPARK_LOCAL_DIRS", f"blockmgr-{self.run}")
        source = RocketPollDataSource(self.options)
        schema = schema_of(self.schema + (", topic string" if self.topic_of else ""))
        make = source.writer if self.is_batch_write else source.streamWriter
        return make(schema, overwrite=False)
