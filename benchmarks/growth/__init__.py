"""Benchmark of growth: what a message costs the broker with more executors, messages and queues.

    .venv/bin/python -m benchmarks.growth

Two cores cannot hold 64 executors or a log of 1 G messages. So one process plays the executors,
each with a connection of its own that pulls chunks as Spark's tasks do; and logs of 10 M to 1 G
messages are simulated by fewer messages in files that are as many times smaller: the log, its
queues and its index then have as many files as the large log would have at the default sizes. That
a file is created so many times more often makes sends look dearer than they would be.

The figures are the lowest processor times of the loop's thread, in microseconds.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.turns import BATCH, BODY_BYTES, Turns, batch, chunk_pull, pull, send
from rmq_spark.wire.extensions import Extension
from rocketpoll.broker.store.config import StoreConfig

EXECUTORS = (1, 8, 64)
QUEUES = (4, 40, 400, 4_000)
MESSAGES = (10_000_000, 100_000_000, 1_000_000_000)
_TOPIC = "growth"
_FEW_QUEUES = 4
_FILL_TURNS = 100
_SENDS, _PULLED, _CHUNK = 20, 32, 10_000
_TURNS = 20


class Growth(NamedTuple):
    """What a message costs where there are so many; a figure is None if it does not depend on it.

    A ``chunk`` message is one that Spark pulls.
    """

    kind: str
    number: int
    send_us: float | None
    pulled_us: float | None
    chunk_us: float | None


def measure(directory: Path, filled: int, rounds: int) -> Iterator[Growth]:
    """Measure each, in stores below a directory that have at most this many messages."""
    with _turns(directory) as turns:
        _fill(turns, filled)
        for executors in EXECUTORS:
            size = min(_CHUNK, filled // _FEW_QUEUES)
            cost = _chunks(turns, executors, size, rounds)
            yield Growth("executors", executors, None, None, cost)
        for queues in QUEUES:
            topic = f"{_TOPIC}-{queues}"
            turns.make_topic(topic, queues)
            turns.play(batch(topic, queue_id) for queue_id in range(queues))
            turns.play(send(topic, queue_id) for queue_id in range(queues))  # the first costs more
            yield Growth("queues", queues, *_singles(turns, topic, queues, 0, rounds), None)
    for messages in MESSAGES:
        times = max(messages // filled, 1)
        with _turns(directory, _settings(times)) as turns:
            _fill(turns, filled)
            last = filled // _FEW_QUEUES - _PULLED
            costs = _singles(turns, _TOPIC, _FEW_QUEUES, last, rounds)
            yield Growth("messages", messages, *costs, None)  # small files cut chunks short


class _turns:  # noqa: N801  # a context manager that is used as a function
    """A broker in a directory of its own, which is removed afterwards."""

    def __init__(self, below: Path, settings: Sequence[str] = ()) -> None:
        self._directory = tempfile.TemporaryDirectory(dir=below)
        self._turns = Turns(Path(self._directory.name), settings)

    def __enter__(self) -> Turns:
        return self._turns

    def __exit__(self, *_: object) -> None:
        self._turns.shutdown()
        self._directory.cleanup()


def _settings(times: int) -> list[str]:
    """Return settings of files that are so many times smaller than by default."""
    default = StoreConfig(store_path_root_dir=Path())
    entry_bytes = 20
    queue_entries = default.mapped_file_size_consume_queue // entry_bytes // times
    return [
        "maxMessageSize=65536",
        f"mappedFileSizeCommitLog={default.mapped_file_size_commit_log // times}",
        f"mappedFileSizeConsumeQueue={queue_entries * entry_bytes}",
        f"maxIndexNum={default.max_index_num // times}",
        f"maxHashSlotNum={default.max_hash_slot_num // times}",
    ]


def _fill(turns: Turns, messages: int) -> None:
    turns.make_topic(_TOPIC, _FEW_QUEUES)
    left = -(-messages // BATCH)
    while left > 0:
        turns.play(batch(_TOPIC, number % _FEW_QUEUES) for number in range(min(left, _FILL_TURNS)))
        left -= _FILL_TURNS


def _singles(
    turns: Turns, topic: str, queues: int, queue_offset: int, rounds: int
) -> tuple[float, float]:
    """Return the costs of a send and of a message that is pulled."""
    in_turn = itertools.cycle(range(queues))
    sends, pulls = [], []
    for _ in range(rounds):
        pieces = [
            b"".join(send(topic, next(in_turn)) for _ in range(_SENDS)) for _ in range(_TURNS)
        ]
        sends.append(_cpu(turns, pieces, 1) / (_TURNS * _SENDS))
        pieces = [pull(topic, next(in_turn), queue_offset, _PULLED) for _ in range(_TURNS)]
        pulls.append(_cpu(turns, pieces, 1) / (_TURNS * _PULLED))
    return min(sends), min(pulls)


def _chunks(turns: Turns, executors: int, size: int, rounds: int) -> float:
    """Return the cost of a message of chunks of this size, pulled by so many executors in turn."""
    turns.connect(executors, frozenset(Extension))
    count = max(executors, _FEW_QUEUES)
    pieces = [chunk_pull(_TOPIC, number % _FEW_QUEUES, 0, size) for number in range(count)]
    answered = turns.play(pieces, executors)
    if answered < count * size * BODY_BYTES:
        raise ValueError(f"{count} chunks of {size} messages came to only {answered} bytes")
    return min(_cpu(turns, pieces, executors) for _ in range(rounds)) / (count * size)


def _cpu(turns: Turns, pieces: Sequence[bytes], clients: int) -> float:
    began = time.thread_time()
    turns.play(pieces, clients)
    return (time.thread_time() - began) * 1e6
