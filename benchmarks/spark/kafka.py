"""The peer's broker: Kafka, one node, with default settings.

It acknowledges before the messages are on the disk, as ours does here with ASYNC_FLUSH.
"""

from __future__ import annotations

import subprocess
import uuid
from base64 import urlsafe_b64encode
from pathlib import Path

from benchmarks.broker.java import java_executable
from benchmarks.broker.process import Process
from benchmarks.broker.running import free_port, is_listening, wait_until, write_settings
from benchmarks.spark.jars import bring_jars

VERSION = "4.1.0"
_FORMAT_SECONDS_MAX = 60
_FILL_SECONDS_MAX = 900
_HEAP = ("-Xms1g", "-Xmx1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-Djava.awt.headless=true")
"""The options of Kafka's own start script."""


def start_kafka(directory: Path, queues: int) -> tuple[str, Process]:
    """Start a broker that creates topics of so many partitions; return its address and process."""
    port = free_port()
    address, controller = f"127.0.0.1:{port}", f"127.0.0.1:{port + 1}"
    settings = {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@{controller}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://{address},CONTROLLER://{controller}",
        "log.dirs": directory / "kafka-logs",
        "num.partitions": queues,
        # There is one node: what its sample settings have, too.
        "offsets.topic.replication.factor": 1,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
    }
    file = write_settings(directory / "server.properties", settings)
    java = _java(*_HEAP)
    cluster = urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
    subprocess.run(  # noqa: S603  # what we have put together ourselves
        [*java, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(file)],
        capture_output=True,
        timeout=_FORMAT_SECONDS_MAX,
        check=True,
    )
    process = Process([*java, "kafka.Kafka", str(file)], directory / "kafka.log", directory)
    try:
        wait_until(lambda: is_listening(port), [process])
    except BaseException:
        process.stop()
        raise
    return address, process


def fill_topic(address: str, topic: str, messages: int, body_bytes: int) -> None:
    """Fill a topic with Kafka's own tool, so that its partitions become equally long."""
    command = [
        *_java("-Xmx512m"),
        *("org.apache.kafka.tools.ProducerPerformance", "--topic", topic, "--throughput", "-1"),
        *("--num-records", str(messages), "--record-size", str(body_bytes), "--producer-props"),
        *(f"bootstrap.servers={address}", "partitioner.adaptive.partitioning.enable=false"),
    ]
    run = subprocess.run(  # noqa: S603  # what we have put together ourselves
        command, capture_output=True, text=True, timeout=_FILL_SECONDS_MAX, check=False
    )
    if run.returncode:
        raise RuntimeError(f"{topic} cannot be filled:\n{run.stdout}{run.stderr}")


def _java(*options: str) -> list[str]:
    return [java_executable(), *options, "-cp", f"{bring_jars('kafka-broker')}/*"]
