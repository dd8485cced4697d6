"""What a test of the Spark sink has at hand: a topic at a broker of some kind,
and what was written to it."""

from __future__ import annotations

from source_rooms import Running, SourceRoom

from rmq_spark.spark.data_source import FORMAT
from rmq_spark.spark.write.rows import ROW_ID

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
