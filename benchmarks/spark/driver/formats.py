"""The compared formats: options, columns, and how one message is sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from benchmarks.spark.driver import ready_made
from rocketpoll import Message, Producer

Send = Callable[[bytes], object]

_KAFKA_DELIVERY_MS = "900000"
"""Kafka's default, two minutes, ends a run on a machine that has many times as much to do."""


class Format(Protocol):
    """A format that is compared, as a query sees it."""

    name: str
    body: str

    def options(self, topic: str) -> Mapping[str, str]:
        """Return the options for the address and the topic, for source and sink."""

    def bodies_alone(self, topic: str) -> Mapping[str, str]:
        """Return the options of a source that reads only the body column."""

    def rows(self, numbered: DataFrame) -> DataFrame:
        """Return the rows for the sink, made from messages with an id each."""

    def sender(self, spark: SparkSession, topic: str) -> Send:
        """Return a function that sends one message, and waits until the broker has it."""


class Kafka:
    """Spark's own source and sink for Kafka, and Kafka's Java producer."""

    name = "kafka"
    body = "value"

    def __init__(self, address: str, queues: int) -> None:
        self._address = address
        self._queues = queues

    def options(self, topic: str) -> Mapping[str, str]:
        """Return the options; the source ignores ``topic``, and the sink ignores ``subscribe``."""
        return {
            "kafka.bootstrap.servers": self._address,
            "kafka.delivery.timeout.ms": _KAFKA_DELIVERY_MS,
            "subscribe": topic,
            "topic": topic,
        }

    def bodies_alone(self, topic: str) -> Mapping[str, str]:
        """Return the same options, as the source has none for its columns."""
        return self.options(topic)

    def rows(self, numbered: DataFrame) -> DataFrame:
        """Return rows that name their partitions, so that these become equally long.

        A message's tag and properties are its record's headers.
        """
        partition = (f.col("id") % self._queues).cast("int")
        columns = [f.col("body").alias("value"), partition.alias("partition")]
        if "keys" in numbered.columns:
            headers = (
                "transform(map_entries(map_concat(map('tags', tags), properties)), "
                "pair -> struct(pair.key as key, cast(pair.value as binary) as value)) as headers"
            )
            columns += [f.col("keys").alias("key"), f.expr(headers)]
        return numbered.select(*columns)

    def sender(self, spark: SparkSession, topic: str) -> Send:
        """Return a sender by a producer in Spark's JVM, which has the source's jars."""
        java: Any = spark.sparkContext._jvm  # the only way to a Java class
        settings = java.java.util.HashMap()
        settings.put("bootstrap.servers", self._address)
        for side in ("key", "value"):
            serializer = "org.apache.kafka.common.serialization.ByteArraySerializer"
            settings.put(f"{side}.serializer", serializer)
        kafka = java.org.apache.kafka.clients.producer
        producer = kafka.KafkaProducer(settings)
        return lambda body: producer.send(kafka.ProducerRecord(topic, bytearray(body))).get()


class RocketPoll:
    """The format ``rocketpoll``, and our producer."""

    name = "rocketpoll"
    body = "body"

    def __init__(self, address: str, queues: int) -> None:  # noqa: ARG002  # brokers make four of their own accord
        self._address = address

    def options(self, topic: str) -> Mapping[str, str]:
        """Return the address of the name server, and the topic."""
        return {"namesrvAddr": self._address, "topic": topic}

    def bodies_alone(self, topic: str) -> Mapping[str, str]:
        """Return the options with the one column."""
        return {**self.options(topic), "columns": self.body}

    def rows(self, numbered: DataFrame) -> DataFrame:
        """Return the messages without their ids: the queues take turns."""
        return numbered.drop("id")

    def sender(self, spark: SparkSession, topic: str) -> Send:  # noqa: ARG002  # it needs no JVM
        """Return a sender with a producer in this process that lives as long as the process."""
        producer = Producer("benchmarks", self._address)
        producer.start()
        return lambda body: producer.send(Message(topic, body))


class ReadyMadeRows:
    """The cost of any source and sink in Python; there are no messages to send."""

    name = ready_made.FORMAT
    body = "body"

    def __init__(self, address: str, queues: int) -> None:
        """Create the format from the directory with the files of record batches."""
        self._directory = Path(address)
        self._queues = queues

    def options(self, topic: str) -> Mapping[str, str]:
        """Return the file of the topic, and how many rows are to be made of it."""
        file = self._directory / f"{topic}.arrow"
        rows = (
            (self._directory / f"{topic}.rows").read_text(encoding="ascii")
            if file.exists()
            else "0"
        )
        return {
            ready_made.FILE: str(file),
            ready_made.ROWS: rows,
            ready_made.PARTITIONS: str(self._queues),
        }

    def bodies_alone(self, topic: str) -> Mapping[str, str]:
        """Return the options with the one column."""
        return {**self.options(topic), ready_made.COLUMN: self.body}

    def rows(self, numbered: DataFrame) -> DataFrame:
        """Return the messages without their ids."""
        return numbered.drop("id")

    def sender(self, spark: SparkSession, topic: str) -> Send:
        """Refuse: this format cannot send."""
        raise NotImplementedError(f"nothing can be sent to {topic} of {spark}")


FORMATS: Mapping[str, Callable[[str, int], Format]] = {
    "kafka": Kafka,
    "rocketpoll": RocketPoll,
    ready_made.FORMAT: ReadyMadeRows,
}
