"""CPU of a send and a pull in the broker as messages, clients and queues become more.

    python -m benchmarks.turns.flatness
    python -m benchmarks.turns.flatness --messages 10000000
    python -m benchmarks.turns.flatness --json benchmarks/results/flatness.json

Each row increases one of the three a hundredfold or more, and the figures of one kind should stay
the same. They are processor time of the loop's thread in microseconds, the median of the rounds.
Turns have 20 sends, or one pull of 32 messages, and come from one client after the other, without
sockets. There are no targets; a figure that has grown says where to look.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.machine import describe_machine, load_average
from benchmarks.turns import BATCH, LIBRARIES, Turns, batch, pull, send

_BUILD = Path(__file__).parents[2] / "build"
_ROUNDS = 15
_TURNS = 60
_SENDS = 20
_PULLED = 32
_CLIENTS = (1, 10, 100, 1_000)
_QUEUES = (4, 40, 400, 4_000)
_FILL_TURNS = 500


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure in a directory that is removed afterwards, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--messages", type=int, default=1_000_000, help="in the log at the end")
    parser.add_argument("--clients", type=int, default=_CLIENTS[-1], help="the most of them")
    parser.add_argument("--queues", type=int, default=_QUEUES[-1], help="the most of a topic")
    parser.add_argument("--rounds", type=int, default=_ROUNDS)
    parser.add_argument("--json", type=Path, help="where the figures go besides")
    given = parser.parse_args(arguments)
    _BUILD.mkdir(exist_ok=True)
    machine = {**describe_machine(LIBRARIES), "load_average_before": load_average()}
    with tempfile.TemporaryDirectory(prefix="bench-flatness-", dir=_BUILD) as directory:
        turns = Turns(Path(directory))
        try:
            results = list(_each(turns, given))
        finally:
            turns.shutdown()
    if given.json:
        machine["load_average_after"] = load_average()
        report = {"benchmark": "flatness", "machine": machine, "results": results}
        given.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def _each(turns: Turns, given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    sys.stdout.write("                      a send   a message pulled\n")
    turns.make_topic("few", 4)
    stored = 0
    for count in _steps(1_000, given.messages):
        while stored < count:
            batches = min(-(-(count - stored) // BATCH), _FILL_TURNS)
            turns.play(batch("few", number % 4) for number in range(batches))
            stored += batches * BATCH
        last = stored // 4 - _PULLED
        yield _measured(turns, given.rounds, count, "messages", "few", range(4), last)
    for count in (each for each in _CLIENTS if each <= given.clients):
        turns.connect(count)
        yield _measured(turns, given.rounds, count, "clients", "few", range(4), 0, clients=count)
    for count in (each for each in _QUEUES if each <= given.queues):
        topic = f"topic-{count}"
        turns.make_topic(topic, count)
        turns.play(batch(topic, queue_id) for queue_id in range(count))
        yield _measured(turns, given.rounds, count, "queues", topic, range(count), 0)


def _steps(first: int, last: int) -> Iterable[int]:
    """Return powers of ten below the maximum, and the maximum."""
    return itertools.chain(
        itertools.takewhile(lambda count: count < last, (first * 10**n for n in range(9))), [last]
    )


def _measured(
    turns: Turns,
    rounds: int,
    there_are: int,
    what: str,
    topic: str,
    queues: range,
    queue_offset: int,
    *,
    clients: int = 1,
) -> dict[str, Any]:
    count = max(_TURNS, clients)
    sends, pulls = [], []
    in_turn = itertools.cycle(queues)
    for _ in range(rounds):
        pieces = [b"".join(send(topic, next(in_turn)) for _ in range(_SENDS)) for _ in range(count)]
        sends.append(_seconds(turns, pieces, clients) / (count * _SENDS))
        pieces = [pull(topic, next(in_turn), queue_offset, _PULLED) for _ in range(count)]
        pulls.append(_seconds(turns, pieces, clients) / (count * _PULLED))
    send_us, pulled_us = (statistics.median(each) * 1e6 for each in (sends, pulls))
    sys.stdout.write(f"{there_are:>9,} {what:8} {send_us:9.2f}          {pulled_us:9.2f}\n")
    return {"kind": what, "count": there_are, "send_us": send_us, "pulled_us": pulled_us}


def _seconds(turns: Turns, pieces: Iterable[bytes], clients: int) -> float:
    began = time.thread_time()
    turns.play(pieces, clients)
    return time.thread_time() - began


if __name__ == "__main__":
    main()
