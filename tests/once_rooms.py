"""A broker with a topic that Spark copies to another one, exactly once, and what is there to be
seen; and sinks whose tasks do something behind their rows."""

from __future__ import annotations

import json

import pytest
from changed_sinks import registered_sink
from pyspark.errors import PySparkException, StreamingQueryException
from source_rooms import Running, bodies_of, complaint

from rmq_spark.spark.data_source import FORMAT
from rocketpoll import Message, Producer

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
