"""Fixture for tests of the Spark source: a broker of some kind, topics, reads, streams by batch."""

import json
import re
from contextlib import ExitStack

from pyspark.errors import StreamingQueryException
from support.clients.conformance_clients import Clients

from rmq_spark.spark.data_source import FORMAT

_NOT_STARTED = "Python worker failed to connect back"
"""Spark's error when a new Python process takes more than ten seconds, as on a busy machine."""

_STARTS_MAX = 20
_COMPLAINT = re.compile(
    r"(?:^|: )(?:rocketpoll\.(?:spark|errors)|pyspark\.\w+(?:\.\w+)*)\.(\w+: .*)$", re.MULTILINE
)
"""The last line of an error, which follows a traceback until Spark 4.2 (and 4.3 if asked)."""


class SourceRoom:
    """Reads and streams of one broker; the fixture stops running streams at the end."""

    def __init__(self, spark, cluster, directory, source=FORMAT):
        """``source`` is the format to read."""
        self.spark = spark
        self.cluster = cluster
        self.clients = Clients(cluster)
        self._directory = directory
        self._source = source
        self._streams = ExitStack()

    def load(self, schema=None, **options):
        """Return a data frame; ``topic`` and all others are options."""
        return self._loaded(self.spark.read, schema, options)

    def stream(self, schema=None, **options):
        """Return a streaming data frame."""
        return self._loaded(self.spark.readStream, schema, options)

    def _loaded(self, reader, schema, options):
        reader = reader.format(self._source).options(
            **{"namesrvAddr": self.cluster.name_server, **options}
        )
        return (reader if schema is None else reader.schema(schema)).load()

    def bodies(self, **options):
        """Return the rows of a read, sorted by body."""
        return bodies_of(self.load(columns="body", **options).collect())

    def checkpoint(self, name="checkpoint"):
        """Return a new checkpoint directory."""
        return self._directory / name

    def start(self, frame, checkpoint=None, **trigger):
        """Start a stream, by default with Spark's usual trigger."""
        batches = Batches(
            frame, checkpoint or self.checkpoint(f"checkpoint-of-{id(frame)}"), trigger
        )
        self._streams.callback(batches.stop)
        return batches

    def run(self, frame, checkpoint=None):
        """Run a stream over all current messages; return the ended query."""
        batches = self.start(frame, checkpoint, availableNow=True)
        batches.ended()
        return batches

    def close(self):
        self._streams.close()


class Running:
    """A query that is started again if Spark could not start the source's process."""

    def __init__(self, writer):
        self._writer = writer
        self.query = writer.start()

    def caught_up(self):
        """Wait until the query has read everything; return it."""
        self._wait("processAllAvailable")
        return self

    def ended(self):
        """Wait until the query has ended; return it."""
        self._wait("awaitTermination")
        return self

    def _wait(self, how):
        __tracebackhide__ = True
        assert any(self._has_come(how) for _ in range(_STARTS_MAX)), _NOT_STARTED

    def _has_come(self, how):
        """Return whether the query has started; start it again if it could not."""
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
        """Return the number of rows of each non-empty batch."""
        return [len(rows) for rows in self._by_batch() if rows]

    @property
    def bodies(self):
        return bodies_of(self.rows)

    def _by_batch(self):
        return [self._rows[batch_id] for batch_id in sorted(self._rows)]


def where(progress, name):
    """Return an offset from a query's progress; pyspark 4.0 has it only in the JSON."""
    found = json.loads(progress.json)["sources"][0][name]
    return json.loads(found) if isinstance(found, str) else found


def bodies_of(rows):
    return sorted(row.body.decode() for row in rows)


def complaint(raised):
    """Return the last line of a Python error as users see it: type and text."""
    __tracebackhide__ = True
    found = _COMPLAINT.findall(str(raised.value))
    assert found, raised.value
    return found[-1]
