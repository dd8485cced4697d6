"""Java clients under load that survive their broker's restarts: a producer and a consumer, each in
its own JVM.

Each reports every action in a line. The acknowledgements that the producer reports are the ledger.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from threading import Thread
from typing import Any

from support.rocketmq.java_programs import java_program
from support.rocketmq.real_broker import Process

FINISH_SECONDS_MAX = 60

Report = Mapping[str, Any]
Place = tuple[int, int]
"""A queue id and a queue offset."""


class Load:
    """A JVM that reports until it is asked to finish."""

    def __init__(self, version: str, home: Path, main_class: str, *arguments: str) -> None:
        home.mkdir(exist_ok=True)
        self._process = Process(
            home,
            java_program("clients", version),
            f"rocketpoll.clients.{main_class}",
            "256m",
            arguments,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            encoding="utf-8",
        )
        self.reported: list[Report] = []
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self._process.process.stdout:
            self.reported.append(json.loads(line))

    def check_is_running(self) -> None:
        self._process.check_is_running()

    def finish(self) -> None:
        """Ask the JVM to finish, and read to its last line."""
        __tracebackhide__ = True
        self._process.check_is_running()
        self._process.process.stdin.close()
        self._process.process.wait(FINISH_SECONDS_MAX)
        self._reader.join(FINISH_SECONDS_MAX)
        assert self._process.process.returncode == 0

    def close(self) -> None:
        """Kill the JVM if it is still running."""
        self._process.kill()
        self._reader.join(FINISH_SECONDS_MAX)
        self._process.process.stdin.close()
        self._process.process.stdout.close()


def differences(
    acknowledged: Sequence[Report], consumed: Sequence[Report], ends: Mapping[int, int]
) -> Iterator[str]:
    """Return lost and unconsumed messages of the queues up to these end offsets."""
    seen = by_place(consumed)
    for place in sorted(set(places(ends)) ^ seen.keys()):
        why = "consumed, but is beyond the end" if place in seen else "not consumed"
        yield f"{place} was {why}"
    for place, bodies in seen.items():
        if len(bodies) > 1:
            yield f"{place} was one message and then another: {sorted(bodies)}"
    for place, bodies in by_place(acknowledged).items():
        if len(bodies) > 1:
            yield f"{place} was acknowledged for {sorted(bodies)}"
        if not bodies <= seen.get(place, set()):
            yield (
                f"{place} was acknowledged for {sorted(bodies)}, and is "
                f"{sorted(seen.get(place, ()))}"
            )


def by_place(reported: Sequence[Report]) -> dict[Place, set[str]]:
    """Return the reported bodies by queue and offset."""
    bodies: dict[Place, set[str]] = {}
    for each in reported:
        bodies.setdefault((each["queueId"], each["queueOffset"]), set()).add(each["body"])
    return bodies


def places(ends: Mapping[int, int]) -> list[Place]:
    """Return all positions in queues with these end offsets."""
    return [
        (queue_id, queue_offset) for queue_id, end in ends.items() for queue_offset in range(end)
    ]
