"""The sides: a broker, and a Spark that reads and writes there, each in a process of its own.

Spark is the same on each side: version, memory, two threads, default settings.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.broker.java import ROOT, JavaClasses
from benchmarks.broker.process import Process
from benchmarks.broker.rocketmq import RocketMQ
from benchmarks.broker.rocketpoll import RocketPoll
from benchmarks.broker.running import Side as BrokerSide
from benchmarks.spark import kafka
from benchmarks.spark.driver import ready_made
from benchmarks.spark.environment import PEER_VERSION, python_with_spark
from benchmarks.spark.jars import bring_jars
from benchmarks.spark.process_tree import tree_cpu_seconds
from benchmarks.spark.tasks import schema_of
from rmq_spark.spark.options.options import read_options
from rmq_spark.spark.plan.partition_planner import OffsetRange
from rmq_spark.spark.read.partition_reader import read_range
from rmq_spark.spark.schemas.columns import DEFAULT_COLUMNS
from rocketpoll import Admin, EmbeddedBroker, Producer

QUEUES = 4
DRIVER_MEMORY = "4g"
_FILL_ROWS = 500_000
_KEPT_ROWS = 100_000
_ANSWER_SECONDS_MAX = 900
"""The maximum seconds to wait for an operation on millions of rows on a busy machine."""

_DRIVER = "benchmarks.spark.driver"


@dataclass(frozen=True)
class RunningSide:
    """A side whose broker and driver are running."""

    driver: Process
    broker: Process | None
    """The process that has the messages; None if the side has none."""
    fill: Callable[[str, int, int], object]
    """Fills a topic, given its name, the number of messages, and the size of their bodies."""

    def ask(self, what: str, **fields: Any) -> Any:
        """Run a method of `benchmarks.spark.driver.queries.Queries` in the driver."""
        self.driver.write_line(json.dumps({"do": what, **fields}))
        return _answer(self.driver)

    @property
    def cpu_seconds(self) -> float:
        """The processor time of driver and broker together, in seconds."""
        return self.driver_cpu_seconds + self.broker_cpu_seconds

    @property
    def driver_cpu_seconds(self) -> float:
        """The seconds of the driver, its JVM and its Python workers."""
        return tree_cpu_seconds(self.driver.popen.pid)

    @property
    def broker_cpu_seconds(self) -> float:
        """The seconds of the broker that has the messages."""
        return 0.0 if self.broker is None else self.broker.cpu_seconds


@dataclass(frozen=True)
class SparkSide:
    """The name of a side, and the function that starts it."""

    name: str
    start: Callable[[Path, ExitStack], RunningSide]
    """Starts the side in an empty directory; the steps that end it are put on the stack."""


Settings = Mapping[str, str]
"""Settings of Spark, in addition to those of every driver."""


def ours(broker: BrokerSide, name: str, spark_version: str, settings: Settings) -> SparkSide:
    """Return the side of ``format("rocketpoll")`` with a broker of either kind."""

    def start(directory: Path, ending: ExitStack) -> RunningSide:
        running = broker.start(directory)
        ending.callback(running.stop)
        address = running.name_server
        driver = _start_driver(directory, ending, "rocketpoll", address, spark_version, settings)
        return RunningSide(driver, running.process, lambda *fill: _send_table(address, *fill))

    return SparkSide(name, start)


def our_broker(spark_version: str, settings: Settings) -> SparkSide:
    """Return the side of rocketpoll: source, sink and broker."""
    return ours(RocketPoll(), "rocketpoll", spark_version, settings)


def rocketmq_broker(classes: JavaClasses, spark_version: str, settings: Settings) -> SparkSide:
    """Return the side of our source and sink with a RocketMQ broker."""
    broker = RocketMQ(classes)
    return ours(broker, f"from {broker.name}", spark_version, settings)


def kafka_broker(settings: Settings) -> SparkSide:
    """Return the side of the peer, Kafka."""

    def start(directory: Path, ending: ExitStack) -> RunningSide:
        address, broker = kafka.start_kafka(directory, QUEUES)
        ending.callback(broker.stop)
        jars = ",".join(map(str, sorted(bring_jars("kafka-source").glob("*.jar"))))
        with_jars = {**settings, "spark.jars": jars}
        driver = _start_driver(directory, ending, "kafka", address, PEER_VERSION, with_jars)

        return RunningSide(driver, broker, lambda *fill: kafka.fill_topic(address, *fill))

    return SparkSide(f"Kafka {kafka.VERSION}", start)


def ready_made_rows(spark_version: str, settings: Settings) -> SparkSide:
    """Return the side of a source that returns the same rows as ours ready-made."""

    def start(directory: Path, ending: ExitStack) -> RunningSide:
        form = ready_made.FORMAT
        driver = _start_driver(directory, ending, form, str(directory), spark_version, settings)
        return RunningSide(driver, None, lambda *fill: _keep_batches(directory, *fill))

    return SparkSide("any Python source", start)


def _start_driver(
    directory: Path,
    ending: ExitStack,
    form: str,
    address: str,
    spark_version: str,
    settings: Settings,
) -> Process:
    asked = {
        "format": form,
        "address": address,
        "queues": QUEUES,
        "settings": {"spark.driver.memory": DRIVER_MEMORY, **settings},
        "directory": str(directory),
    }
    driver = Process(
        [str(python_with_spark(spark_version)), "-m", _DRIVER, json.dumps(asked)],
        directory / "driver.log",
        ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        encoding="utf-8",
    )
    ending.callback(driver.stop)
    _answer(driver)
    return driver


def _answer(driver: Process) -> Any:
    answer = json.loads(driver.read_line(_ANSWER_SECONDS_MAX))
    if "error" in answer:
        raise driver.failure(f"failed: {answer['error']}")
    return answer["answer"]


def _keep_batches(directory: Path, topic: str, messages: int, body_bytes: int) -> None:
    """Save the batches that one of our tasks returns for some rows of a topic, to be reused."""
    schema = schema_of(DEFAULT_COLUMNS)
    rows = min(messages, _KEPT_ROWS)
    with (
        EmbeddedBroker() as broker,
        Producer("benchmarks", broker.address) as producer,
        pa.OSFile(str(directory / f"{topic}.arrow"), "wb") as file,
        pa.ipc.new_file(file, schema) as batches,
    ):
        broker.create_topic(topic, 1)
        producer.send_table(_rows(rows, body_bytes), topic)
        (queue,) = producer.publish_queues(topic)
        options = read_options({"namesrvAddr": broker.address, "topic": topic})
        for batch in read_range(options, schema, OffsetRange(queue, 0, rows)):
            batches.write_batch(batch)
    (directory / f"{topic}.rows").write_text(str(messages), encoding="ascii")


def _rows(count: int, body_bytes: int) -> pa.Table:
    return pa.table({"body": pa.array([bytes(body_bytes)] * count, pa.binary())})


def _send_table(address: str, topic: str, messages: int, body_bytes: int) -> None:
    with Admin(address) as admin:
        admin.create_topic(topic, QUEUES)
    rows = _rows(min(messages, _FILL_ROWS), body_bytes)
    with Producer("benchmarks", address) as producer:
        for sent in range(0, messages, _FILL_ROWS):
            producer.send_table(rows.slice(0, min(_FILL_ROWS, messages - sent)), topic)
