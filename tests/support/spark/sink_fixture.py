"""What tests of the Spark sink use: a topic on a broker, what was written to it, a topic copied
exactly once, and sinks whose tasks do something else besides.

Workers cannot import this module: what they get is defined within functions, and so is pickled
by value.
"""

from __future__ import annotations

import json
from functools import partial

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from support.spark.source_fixture import Running, SourceRoom, bodies_of, complaint

from rmq_spark.spark.data_source import FORMAT, RocketPollDataSource
from rmq_spark.spark.write.rows import ROW_ID
from rocketpoll import Message, Producer


def registered_sink(spark, name, around):
    """Register a sink, and return its name.

    ``around`` is called in each task with the real write and the rows, and returns what the task
    reports.
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

        def streamWriter(self, schema, overwrite):  # noqa: N802  # Spark's name
            return changed(super().streamWriter(schema, overwrite))

    spark.dataSource.register(ChangedSink)
    return name


QUEUES = 4


class SinkRoom(SourceRoom):
    """Also writes: to a topic of its own, unless an option or a column names another."""

    def __init__(self, spark, cluster, directory):
        super().__init__(spark, cluster, directory)
        self.topic = cluster.topic(QUEUES)

    def write(self, rows, mode="append", into=FORMAT, **options):
        """A batch; ``topic=None`` leaves the option out."""
        self._into(rows.write.mode(mode), options, into).save()

    def copy(self, rows, mode="append", into=FORMAT, **options):
        """A stream over all that there is, with one checkpoint for the room; the query,
        when it has ended."""
        checkpoint = {"checkpointLocation": str(self.checkpoint("sink"))}
        writer = self._into(rows.writeStream.outputMode(mode), {**checkpoint, **options}, into)
        running = Running(writer.trigger(availableNow=True))
        try:
            return running.ended().query
        finally:
            running.stop()

    def filled(self, *bodies, **properties):
        """Another topic, which has these messages."""
        topic = self.cluster.topic(QUEUES)
        self.cluster.send(topic, *bodies, queues=QUEUES, **properties)
        return topic

    def messages(self, count, topic=None):
        """All that are in the topic; there must be so many."""
        return self.clients.read(topic or self.topic, count, QUEUES)

    def _into(self, writer, options, into):
        given = {"namesrvAddr": self.cluster.name_server, "topic": self.topic, **options}
        given = {name: value for name, value in given.items() if value is not None}
        return writer.format(into).options(**given)


def ids_of(messages):
    """The ids of the rows that they were, each in its four parts, sorted."""
    return sorted(tuple(message.properties[ROW_ID].split(":")) for message in messages)


def forget_the_end_of_batch_0(checkpoint):
    """As after a crash between the sink and the commit log."""
    for name in ("0", ".0.crc"):
        (checkpoint / "commits" / name).unlink(missing_ok=True)


ONCE = {"delivery": "exactly_once"}
ALL = {**ONCE, "visibleTo": "all"}
REFUSED = (PySparkException, StreamingQueryException)
BODIES = [str(number) for number in range(6)]


class OnceRoom:
    """A broker, a topic that is copied to another one, and what is there to be seen."""

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
        """Copy all that is there."""
        running = self.copying(into, **options)
        try:
            running.ended()
        finally:
            running.stop()

    def copying(self, into=FORMAT, **options):
        """A query that copies all that is there; an option that is None is left out."""
        access = {"namesrvAddr": self.broker.address}
        rows = self.spark.readStream.format(FORMAT).options(**access, topic="in")
        rows = rows.options(startingOffsets="earliest", columns="body").load().coalesce(1)
        given = {**access, "topic": "out", "checkpointLocation": str(self.checkpoint), **options}
        writer = rows.writeStream.format(into)
        for name, value in given.items():
            writer = writer if value is None else writer.option(name, value)
        return Running(writer.trigger(availableNow=True))

    def refusal(self, **options):
        """The error that a copy ends with: one line, beside the page on it."""
        with pytest.raises(REFUSED) as raised:
            self.copy(**options)
        return complaint(raised)

    def counting(self, **options):
        """The bodies that count."""
        source = self.spark.read.format(FORMAT).options(
            namesrvAddr=self.broker.address, topic="out", isolation="committed", columns="body"
        )
        return bodies_of(source.options(**options).load().collect())

    def seen(self):
        """The bodies that everybody sees."""
        return sorted(message.text for message in self.broker.messages("out"))

    @property
    def manifests(self):
        return [json.loads(each.body) for each in self.broker.messages("out_COMMITS")]


def spoiling(room, spoil):
    """The name of a sink each of whose tasks does something when its rows are staged or sent."""
    directory, address = str(room.staging), room.broker.address

    def around(write, rows):
        sent = write(rows)
        spoil(directory, address)
        return sent

    return registered_sink(room.spark, "rocketpoll_spoiled", around)


def on_chunks(change):
    """What is done to each staged chunk: its bytes become others, or it goes."""

    def spoil(directory, address):
        from pathlib import Path  # noqa: PLC0415  # in a worker

        for path in Path(directory).glob("*/*"):
            data = change(path.read_bytes())
            if data is None:
                path.unlink()
            else:
                path.write_bytes(data)

    return spoil


def deleting(topic="out"):
    """What deletes the topic that rows were staged for, or sent to."""

    def delete(directory, address):  # as all of them
        from rocketpoll import Admin  # noqa: PLC0415  # in a worker

        with Admin(address) as admin:
            admin.delete_topic(topic)

    return delete
