"""Fixture for tests of the Spark sink: a topic, its messages, a topic copied exactly once, and
sinks with modified tasks.

Workers cannot import this module. Functions for workers are nested, and so are pickled by value.
"""

import json
from functools import partial

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from support.spark.source_fixture import Running, SourceRoom, bodies_of, complaint

from rmq_spark.spark.data_source import FORMAT, RocketPollDataSource
from rmq_spark.spark.write.reports import ROW_ID
from rocketpoll import Message, Producer


def registered_sink(spark, name, around):
    """Register a sink; return its name.

    Each task calls ``around`` with the real write and the rows; ``around`` returns the task's
    commit message.
    """

    def changed(writer):
        original = type(writer).write

        def write(self, rows):
            return around(partial(original, self), rows)

        writer.__class__ = type("ChangedWriter", (type(writer),), {"write": write})
        return writer

    class ChangedSink(RocketPollDataSource):
        @classmethod
        def name(cls):
            return name

        def writer(self, schema, overwrite):
            return changed(super().writer(schema, overwrite))

        def streamWriter(self, schema, overwrite):  # noqa: N802  # name in Spark's interface
            return changed(super().streamWriter(schema, overwrite))

    spark.dataSource.register(ChangedSink)
    return name


QUEUES = 4


class SinkRoom(SourceRoom):
    """A `SourceRoom` that also writes, by default to its own topic."""

    def __init__(self, spark, cluster, directory):
        super().__init__(spark, cluster, directory)
        self.topic = cluster.topic(QUEUES)

    def write(self, rows, mode="append", into=FORMAT, **options):
        """Write a batch; ``topic=None`` omits the option."""
        self._into(rows.write.mode(mode), options, into).save()

    def copy(self, rows, mode="append", into=FORMAT, **options):
        """Copy all messages by a stream whose checkpoint all copies share; return the
        ended query."""
        checkpoint = {"checkpointLocation": str(self.checkpoint("sink"))}
        writer = self._into(rows.writeStream.outputMode(mode), {**checkpoint, **options}, into)
        running = Running(writer.trigger(availableNow=True))
        try:
            return running.ended().query
        finally:
            running.stop()

    def filled(self, *bodies, **properties):
        """Return another topic with these messages."""
        topic = self.cluster.topic(QUEUES)
        self.cluster.send(topic, *bodies, queues=QUEUES, **properties)
        return topic

    def messages(self, count, topic=None):
        """Return all messages in the topic, and check their number."""
        return self.clients.read(topic or self.topic, count, QUEUES)

    def _into(self, writer, options, into):
        given = {"namesrvAddr": self.cluster.name_server, "topic": self.topic, **options}
        given = {name: value for name, value in given.items() if value is not None}
        return writer.format(into).options(**given)


def ids_of(messages):
    """Return the ids of the rows, each split into its four parts, sorted."""
    return sorted(tuple(message.properties[ROW_ID].split(":")) for message in messages)


def forget_the_end_of_batch_0(checkpoint):
    """Remove batch 0 from the commit log, as if a crash came between sink and commit log."""
    for name in ("0", ".0.crc"):
        (checkpoint / "commits" / name).unlink(missing_ok=True)


ONCE = {"delivery": "exactly_once"}
ALL = {**ONCE, "visibleTo": "all"}
REFUSED = (PySparkException, StreamingQueryException)
BODIES = [str(number) for number in range(6)]


class OnceRoom:
    """A broker, a topic that is copied to another one, and the visible results."""

    def __init__(self, spark, broker, directory):
        self.spark = spark
        self.broker = broker
        self.checkpoint = directory / "checkpoint"
        self.staging = broker.directory / "staging"

    def send(self, topic, *bodies):
        with Producer("room", self.broker.address) as producer:
            for body in bodies:
                producer.send(Message(topic, body if isinstance(body, bytes) else body.encode()))

    def copy(self, into=FORMAT, **options):
        running = self.copying(into, **options)
        try:
            running.ended()
        finally:
            running.stop()

    def copying(self, into=FORMAT, **options):
        """Return a query that copies all messages; an option that is None is omitted."""
        access = {"namesrvAddr": self.broker.address}
        rows = self.spark.readStream.format(FORMAT).options(**access, topic="in")
        rows = rows.options(startingOffsets="earliest", columns="body").load().coalesce(1)
        given = {**access, "topic": "out", "checkpointLocation": str(self.checkpoint), **options}
        writer = rows.writeStream.format(into)
        for name, value in given.items():
            writer = writer if value is None else writer.option(name, value)
        return Running(writer.trigger(availableNow=True))

    def refusal(self, **options):
        """Return the error that ends a copy: one line, without the link to its page."""
        with pytest.raises(REFUSED) as raised:
            self.copy(**options)
        return complaint(raised)

    def counting(self, **options):
        """Return the number of committed rows by body."""
        source = self.spark.read.format(FORMAT).options(
            namesrvAddr=self.broker.address, topic="out", isolation="committed", columns="body"
        )
        return bodies_of(source.options(**options).load().collect())

    def seen(self):
        """Return the bodies that an ordinary consumer receives."""
        return sorted(message.text for message in self.broker.messages("out"))

    @property
    def manifests(self):
        return [json.loads(each.body) for each in self.broker.messages("out_COMMITS")]


def spoiling(room, spoil):
    """Return the name of a sink whose tasks call a function after their rows are staged or sent."""
    directory, address = str(room.staging), room.broker.address

    def around(write, rows):
        sent = write(rows)
        spoil(directory, address)
        return sent

    return registered_sink(room.spark, "rocketpoll_spoiled", around)


def on_chunks(change):
    """Return a function that changes each staged chunk, or removes it."""

    def spoil(directory, address):
        from pathlib import Path  # noqa: PLC0415  # runs in a worker

        for path in Path(directory).glob("*/*"):
            data = change(path.read_bytes())
            if data is None:
                path.unlink()
            else:
                path.write_bytes(data)

    return spoil


def deleting(topic="out"):
    """Return a function that deletes the topic of the staged or sent rows."""

    def delete(directory, address):  # the signature of all such functions
        from rocketpoll import Admin  # noqa: PLC0415  # runs in a worker

        with Admin(address) as admin:
            admin.delete_topic(topic, missing_ok=True)

    return delete
