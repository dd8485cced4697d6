"""Makes golden checkpoints with this release and the installed Spark: `make golden`. For each of
two queries, one with subscribe and one with subscribePattern, it stores Spark's files after three
batches, and the broker's directory with unread messages. Later releases must continue from them, so
existing checkpoints of a release and a Spark are never replaced."""

import shutil
import sys
import tempfile
from pathlib import Path

import pyspark
from support.spark.driver_processes import Driver, Query, wait_until
from support.spark.golden_checkpoints import BATCHES, GOLDEN, QUERIES, SETTINGS, TOPICS

import rmq_spark
from rocketpoll import EmbeddedBroker

_QUEUES = 2
_MESSAGES = 3
_NOT_KEPT = ("lock", "abort", "*.crc", ".*", "*.bak", "delayOffset.json")


def make(directory, target):
    """Make the checkpoints of one release and one Spark."""
    driver = Driver(directory / "driver")
    try:
        with EmbeddedBroker(directory / "store", **SETTINGS) as broker:
            for topic in TOPICS:
                broker.create_topic(topic, _QUEUES)
            queries = {
                name: Query(
                    directory / name,
                    namesrvAddr=broker.address,
                    startingOffsets="earliest",
                    **options,
                )
                for name, options in QUERIES.items()
            }
            for query in queries.values():
                query.hold("latest")
                driver.start(query)
            for batch in range(BATCHES):
                _feed(broker, queries.values(), f"read {batch}")
                for query in queries.values():
                    query.release("latest")
                    wait_until(
                        lambda query=query, count=batch + 1: len(query.logged("commits")) == count
                    )
                    query.hold("latest")
            _feed(broker, queries.values(), "unread")
    finally:
        driver.kill()
    ignored = shutil.ignore_patterns(*_NOT_KEPT)
    shutil.copytree(directory / "store", target / "store", ignore=ignored)
    for name, query in queries.items():
        shutil.copytree(query.checkpoint, target / name, ignore=ignored)


def _feed(broker, queries, name):
    """Send messages while no query reads."""
    for query in queries:
        query.reached("latest")
    for topic in TOPICS:
        broker.send(topic, *(f"{name} {number} of {topic}" for number in range(_MESSAGES)))


def main():
    """Make checkpoints in a directory that does not exist yet."""
    release = ".".join(rmq_spark.__version__.split(".")[:2])
    target = GOLDEN / release / f"spark-{'.'.join(pyspark.__version__.split('.')[:2])}"
    if target.exists():
        sys.exit(f"{target} is there already, and stays as it is")
    with tempfile.TemporaryDirectory() as directory:
        make(Path(directory), target)
    sys.stdout.write(f"made {target}\n")


if __name__ == "__main__":
    main()
