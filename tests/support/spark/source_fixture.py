"""What a test of the Spark source has at hand: a broker of some kind, topics, reads,
and streams by batch."""

from __future__ import annotations

import json
import re
from contextlib import ExitStack

from pyspark.errors import StreamingQueryException
from support.clients.conformance_clients import Clients

from rmq_spark.spark.data_source import FORMAT

_NOT_STARTED = "Python worker failed to connect back"
"""Spark gives a new Python process ten seconds; a busy machine may need more."""

_STARTS_MAX = 20
_COMPLAINT = re.compile(
    r"^(?:rmq_spark\.\w+\.errors|pyspark\.\w+(?:\.\w+)*)\.(\w+: .*)$", re.MULTILINE
)


class SourceRoom:
    """Reads and streams of one broker; what a test leaves running ends with it."""

    def __init__(self, spark, cluster, directory, source=FORMAT):
        """``source`` is the format that is read."""
        self.spark = spark
        self.cluster = cluster
        self.clients = Clients(cluster)
        self._directory = directory
        self._source = source
        self._streams = ExitStack()

    def load(self, schema=None, **options):
        """A data frame; ``topic`` and all else are options."""
        return self._loaded(self.spark.read, schema, options)

    def stream(self, schema=None, **options):
        """The same as a stream."""
        return self._loaded(self.spark.readStream, schema, options)

    def _loaded(self, reader, schema, options):
        reader = reader.format(self._source).options(
            **{"namesrvAddr": self.cluster.name_server, **options}
        )
        return (reader if schema is None else reader.schema(schema)).load()

    def bodies(self, **options):
        """What a read gives, in the order of bodies."""
        return bodies_of(self.load(columns="body", **options).collect())

    def checkpoint(self, name="checkpoint"):
        """A directory for one."""
        return self._directory / name

    def start(self, frame, checkpoint=None, **trigger):
        """A stream that runs; Spark's usual trigger, unless another is given."""
        batches = Batches(
            frame, checkpoint or self.checkpoint(f"checkpoint-of-{id(frame)}"), trigger
        )
        self._streams.callback(batches.stop)
        return batches

    def run(self, frame, checkpoint=None):
        """A stream over all that is there now, when it has ended."""
        batches = self.start(frame, checkpoint, availableNow=True)
        batches.ended()
        return batches

    def close(self):
        self._streams.close()


class Running:
    """A query; should Spark not even get the source's process started,
    the query is started again."""

    def __init__(self, writer):
        self._writer = writer
        self.query = writer.start()

    def caught_up(self):
        """Itself, when nothing is left to be read at once."""
        self._wait("processAllAvailable")
        return self

    def ended(self):
        """Itself, when the query has come to its end."""
        self._wait("awaitTermination")
        return self

    def _wait(self, how):
        assert any(self._has_come(how) for _ in range(_STARTS_MAX)), _NOT_STARTED

    def _has_come(self, how):
        """Whether the query has; if it could not start, it is started again."""
        try:
            getattr(self.query, how)()
        except StreamingQueryException as error:
            if _NOT_STARTED not in str(error):
                raise
            self.query = self._writer.start()
            return False
        return True

    def stop(self):
        self.query.stop()


class Batches(Running):
    """A query, and the rows of its batches so far."""

    def __init__(self, frame, checkpoint, trigger):
        self._rows = {}
        writer = frame.writeStream.foreachBatch(self._keep).option(
            "checkpointLocation", str(checkpoint)
        )
        super().__init__(writer.trigger(**trigger) if trigger else writer)

    def _keep(self, frame, batch_id):
        self._rows[batch_id] = frame.collect()

    @property
    def rows(self):
        return [row for rows in self._by_batch() for row in rows]

    @property
    def sizes(self):
        """How many rows the batches had that had any."""
        return [len(rows) for rows in self._by_batch() if rows]

    @property
    def bodies(self):
        return bodies_of(self.rows)

    def _by_batch(self):
        return [self._rows[batch_id] for batch_id in sorted(self._rows)]


def where(progress, name):
    """An offset that a query's progress tells: pyspark 4.0 has it as JSON only in the whole."""
    found = json.loads(progress.json)["sources"][0][name]
    return json.loads(found) if isinstance(found, str) else found


def bodies_of(rows):
    return sorted(row.body.decode() for row in rows)


def complaint(raised):
    """The last line of what a user sees of an error in Python: its kind and its text."""
    found = _COMPLAINT.findall(str(raised.value))
    assert found, raised.value
    return found[-1]
