"""What every broker has in common that is compared: where it is found, and when it is ready.

It is ready when a name server answers where it is, and not after some time.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from random import randrange
from typing import Protocol

from benchmarks.broker.process import Process, stop_all
from benchmarks.broker.requests import Connection, is_route_known, registration_request

READY_SECONDS_MAX = 60
NAME = "bench"
_POLL_SECONDS = 0.002
_REMINDER_SECONDS = 0.5


@dataclass(frozen=True)
class RunningBroker:
    """The processes that it takes, of which the first stores messages, and how long it took to start."""

    name_server_port: int
    port: int
    processes: Sequence[Process]
    start_seconds: float

    @property
    def name_server(self) -> str:
        """The address of the name server, as clients take it."""
        return f"127.0.0.1:{self.name_server_port}"

    @property
    def process(self) -> Process:
        """The process of the broker itself."""
        return self.processes[0]

    @property
    def rss_bytes(self) -> int:
        """The memory of all of it."""
        return sum(each.rss_bytes for each in self.processes)

    def stop(self) -> None:
        """In order, the broker first."""
        stop_all(self.processes)


class Side(Protocol):
    """One of those that are compared."""

    @property
    def name(self) -> str:
        """The name in the report."""

    def start(self, directory: Path, clients_max: int | None = None) -> RunningBroker:
        """A new broker in an empty directory, ready; for so many clients, if they are more than usual."""


def wait_for_route(port: int, processes: Sequence[Process], reminded: int | None = None) -> None:
    """Ask the name server until it knows of the broker, which is reminded, if need be, of registering.

    RocketMQ 5.5 often starts before it has found its name server, and would register half a minute later.
    """
    remind_at = time.perf_counter() + _REMINDER_SECONDS

    def is_ready() -> bool:
        nonlocal remind_at
        if is_route_known(port):
            return True
        if reminded is not None and time.perf_counter() >= remind_at:
            remind_at += _REMINDER_SECONDS
            if is_listening(reminded):
                with Connection(reminded) as connection:
                    connection.ask(registration_request())
        return False

    wait_until(is_ready, processes)


def wait_until(condition: Callable[[], bool], processes: Sequence[Process]) -> None:
    """Ask again and again, as long as the processes are there and have time."""
    deadline = time.perf_counter() + READY_SECONDS_MAX
    while not condition():
        for each in processes:
            each.check_is_running()
        if time.perf_counter() > deadline:
            raise processes[0].failure(f"is not ready after {READY_SECONDS_MAX} s")
        time.sleep(_POLL_SECONDS)


def write_settings(path: Path, settings: Mapping[str, object]) -> Path:
    """A file as both kinds of broker read it."""
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()), encoding="utf-8")
    return path


def is_listening(port: int) -> bool:
    """Return whether a process listens on this port."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def free_port() -> int:
    """A port that nobody listens on, and whose neighbours are free.

    A RocketMQ broker also takes the second before and the next.
    """
    while True:
        port = randrange(15_000, 30_000)  # below those that the system gives to clients
        with ExitStack() as probes:
            try:
                for neighbour in (port, port - 2, port + 1):
                    probes.enter_context(socket.socket()).bind(("127.0.0.1", neighbour))
            except OSError:
                continue
            return port
