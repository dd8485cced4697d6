"""Creation of 10,000 topics on an empty broker: in one call, by threads, and by one thread.

    .venv/bin/python -m benchmarks.client.topics [topics]

Each answer is on the disk. Seconds depend on the disk; the processor time of client and broker
together depends less on what else the machine does.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, NamedTuple

from benchmarks.spark.process_tree import embedded_broker, process_cpu_seconds
from rocketpoll import Admin, EmbeddedBroker

TOPICS: Final = 10_000
_OTHERS_MAX: Final = 100
"""The broker's own topics count as well."""


class Took(NamedTuple):
    """The time that the creation of all topics took."""

    seconds: float
    cpu_seconds: float


def in_one_call(admin: Admin, names: list[str]) -> None:
    """Create all topics by one call."""
    admin.create_topics(names, queues=1)


def by_threads(threads: int, admin: Admin, names: list[str]) -> None:
    """Create one topic after the other, in several threads."""
    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(partial(admin.create_topic, queues=1), names):
            pass


WAYS: Final[Mapping[str, Callable[[Admin, list[str]], None]]] = {
    "one call of create_topics": in_one_call,
    "create_topic by 16 threads": partial(by_threads, 16),
    "create_topic by one thread": partial(by_threads, 1),
}


def measured(way: str, topics: int) -> Took:
    """Create topics on a new broker, and check that it has them."""
    names = [f"topic-{number}" for number in range(topics)]
    with (
        tempfile.TemporaryDirectory() as directory,
        EmbeddedBroker(
            directory,
            own_process=True,
            flushDiskType="SYNC_FLUSH",
            maxTopics=topics + _OTHERS_MAX,
        ) as broker,
        Admin(broker.address) as admin,
    ):
        admin.topics()
        process = embedded_broker()

        def cpu_seconds() -> float:
            return process_cpu_seconds(process) + time.process_time()

        begin, cpu_begin = time.perf_counter(), cpu_seconds()
        WAYS[way](admin, names)
        took = Took(time.perf_counter() - begin, cpu_seconds() - cpu_begin)
        if not admin.topics() >= set(names):
            raise RuntimeError(f"{way}: topics are not there")
        return took


def main(topics: int) -> None:
    """Print a line for each way."""
    sys.stdout.write(f"{topics:,} topics\n{'':30}{'seconds':>10}{'processor seconds':>20}\n")
    for way in WAYS:
        took = measured(way, topics)
        sys.stdout.write(f"{way:30}{took.seconds:10.1f}{took.cpu_seconds:20.1f}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else TOPICS)
