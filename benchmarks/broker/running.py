"""What all compared brokers have in common: their addresses and readiness.

A broker is ready when a name server returns its route, not after a fixed time.
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
    """The processes of a broker, the storing one first, and its start time."""

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
        """The resident memory of all processes, in bytes."""
        return sum(each.rss_bytes for each in self.processes)

    def stop(self) -> None:
        """Stop all processes in order, the broker first."""
        stop_all(self.processes)


class Side(Protocol):
    """A kind of broker to be compared."""

    @property
    def name(self) -> str:
        """The name in the report."""

    def start(self, directory: Path, clients_max: int | None = None) -> RunningBroker:
        """Start a broker in an empty directory, for at least ``clients_max`` clients."""


def wait_for_route(port: int, processes: Sequence[Process], reminded: int | None = None) -> None:
    """Wait until the name server knows the broker.

    RocketMQ 5.5 often starts before it has found its name server, and would register half a minute
    later: a request makes it register if necessary.
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
    """Poll a condition while the processes run and time remains."""
    deadline = time.perf_counter() + READY_SECONDS_MAX
    while not condition():
        for each in processes:
            each.check_is_running()
        if time.perf_counter() > deadline:
            raise processes[0].failure(f"is not ready after {READY_SECONDS_MAX} s")
        time.sleep(_POLL_SECONDS)


def write_settings(path: Path, settings: Mapping[str, object]) -> Path:
    """Write a settings file that both kinds of broker read."""
    path.write_text(
        "".join(f"{name}={value}\n" for name, value in settings.items()), encoding="utf-8"
    )
    return path


def is_listening(port: int) -> bool:
    """Return whether a process listens on this port."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def free_port() -> int:
    """Return a free port whose neighbours are free.

    A RocketMQ broker also uses the second port before it and the next one.
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
