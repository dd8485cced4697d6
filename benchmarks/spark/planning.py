"""Time to plan a batch of many topics: the first batch, and the next one after a message.

    .venv/bin/python -m benchmarks.spark.planning
    .venv/bin/python -m benchmarks.spark.planning --topics 500 --queues 4 --rounds 5

The benchmark calls the reader as Spark does, but without Spark, so Spark's own time is not
included. The broker has a process of its own.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence

from rmq_spark.spark.brokers.fan_out import instance_for
from rmq_spark.spark.brokers.queue_client import QueueClient
from rmq_spark.spark.options.options import read_options
from rmq_spark.spark.plan.micro_batch_planner import NO_LIMITS, MicroBatchPlanner
from rocketpoll import EmbeddedBroker, Message, Producer


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the medians of some rounds."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark.planning")
    parser.add_argument("--topics", type=int, default=500)
    parser.add_argument("--queues", type=int, default=4, help="of each topic")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(arguments)
    with EmbeddedBroker(own_process=True, maxTopics=str(options.topics + 100)) as broker:
        for number in range(options.topics):
            broker.create_topic(f"planned-{number}", options.queues)
        with Producer("planning", broker.address) as producer:
            rounds = [_plan(broker.address, producer) for _ in range(options.rounds)]
    first, next_one = (statistics.median(each) for each in zip(*rounds, strict=True))
    sys.stdout.write(
        f"{options.topics} topics of {options.queues} queues, median of {options.rounds}: the "
        f"first batch {first:.2f} s (routes, starts and ends), the next {next_one:.2f} s (ends)\n"
    )


def _plan(address: str, producer: Producer) -> tuple[float, float]:
    """Plan two batches as a new query does; a message between them keeps it from waiting."""
    options = read_options(
        {"namesrvAddr": address, "subscribePattern": "planned-.*", "startingOffsets": "earliest"}
    )
    instance = instance_for(options.access)
    try:
        batches = MicroBatchPlanner(options, QueueClient(options, instance), time.monotonic)
        began = time.perf_counter()
        start = batches.initial_offset()
        end = batches.latest_offset(start, NO_LIMITS)
        first = time.perf_counter() - began
        producer.send(Message("planned-0", b"news"))
        began = time.perf_counter()
        batches.latest_offset(end, NO_LIMITS)
        return first, time.perf_counter() - began
    finally:
        instance.shutdown()


if __name__ == "__main__":
    main()
