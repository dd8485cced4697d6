"""Benchmark of an honest client in calm and beside each kind of abuse.

python -m benchmarks.abuse [--requests N] [--seconds S] [--only SUBSTRING] [--json PATH]

A figure is the processor time that the broker, a process of its own, takes from an honest request
to its answer, for any client. In calm that is the price of the request; beside an abuse it includes
what the broker did for others first. A busy machine changes wall time more than this, but if the
honest client itself waits for a core, the broker works for others meanwhile.

Linux tells the processor time of another process to 4 ms while it runs, exactly when it waits. So a
broker that is never idle has a coarse p99, and the usual price is a median of the means of parts of
the series, in which these errors cancel out.
"""

from __future__ import annotations

import socket
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE
from typing import Final

from benchmarks.abuse.honest import HonestClient, Refused
from benchmarks.broker.process import Process

LIBRARIES = ("uvloop", "orjson")

_ROOT: Final = Path(__file__).parents[2]
_FEW: Final = 3
_PARTS: Final = 5


@dataclass(frozen=True)
class Abuse:
    """A kind of abuse: who commits it (`benchmarks.abuse.abusers`), and which requests suffer."""

    name: str
    what: str
    actions: tuple[str, ...]
    settings: tuple[str, ...] = ()


ABUSES: Final = (
    Abuse("S3", "4,000 held pulls with a filter each", ("send", "heartbeat", "wake")),
    Abuse("S4", "100 connections ask for dear statistics", ("send", "heartbeat", "wake")),
    Abuse("S5", "two addresses open and close connections", ("send", "heartbeat", "newcomer")),
    Abuse("S7", "34 silent sockets on metricsPort", ("send", "heartbeat", "health")),
    Abuse("S9", "200 clients pull 60 MB each and read nothing", ("send", "heartbeat", "wake")),
    Abuse(
        "S14",
        "idle connections up to the limit of the client's own address",
        ("send", "heartbeat", "newcomer"),
        ("maxAcceptsPerSecond=100000",),
    ),
)
"""Those of the review of the broker's security that one client can commit against all others."""


@dataclass(frozen=True)
class Latencies:
    """The processor seconds of the broker until each answer, and how many requests had none."""

    seconds: tuple[float, ...]
    refused: int = 0

    @property
    def usual(self) -> float:
        """The median of the means of successive parts of the series, in microseconds."""
        size = -(-len(self.seconds) // _PARTS)
        parts = [self.seconds[at : at + size] for at in range(0, len(self.seconds), size)]
        return statistics.median(map(statistics.fmean, parts)) * 1e6

    @property
    def p99(self) -> float:
        """The value that one of a hundred exceeds, in microseconds."""
        ordered = sorted(self.seconds)
        return ordered[min(len(ordered) * 99 // 100, len(ordered) - 1)] * 1e6


@dataclass(frozen=True)
class Comparison:
    """One kind of honest request, in calm and beside an abuse."""

    abuse: Abuse
    action: str
    calm: Latencies
    beside: Latencies


def compare(abuse: Abuse, directory: Path, requests: int, seconds: float) -> Iterator[Comparison]:
    """Measure each action of an abuse: so many requests, or those of so many seconds."""
    with ExitStack() as opened:
        metrics_port = _free_port()
        broker = Process(
            [
                *(sys.executable, "-m", "rocketpoll.broker", "listenPort=0"),
                *("vipChannelEnable=false", "flushDiskType=ASYNC_FLUSH"),
                *(f"storePathRootDir={directory / 'store'}", f"metricsPort={metrics_port}"),
                *abuse.settings,
            ],
            directory / "broker.log",
            _ROOT,
            stdout=PIPE,
            text=True,
        )
        opened.callback(broker.stop)
        port = int(broker.read_line().rpartition(":")[2])
        clock = _processor_clock(broker.popen.pid)
        honest = opened.enter_context(HonestClient(port, metrics_port))
        actions: Mapping[str, Callable[[], float]] = {
            name: honest.action(name, clock) for name in abuse.actions
        }
        calm = {name: _measured(run, requests, seconds) for name, run in actions.items()}
        abuser = Process(
            [
                *(sys.executable, "-m", "benchmarks.abuse.abusers"),
                *(abuse.name, str(port), str(metrics_port)),
            ],
            directory / "abuser.log",
            _ROOT,
            stdout=PIPE,
            text=True,
        )
        opened.callback(abuser.stop)
        abuser.read_line()
        for name, run in actions.items():
            yield Comparison(abuse, name, calm[name], _measured(run, requests, seconds))
        abuser.check_is_running()


def _measured(run: Callable[[], float], requests: int, seconds: float) -> Latencies:
    """Run until there are so many requests, or so many seconds are over."""
    until = time.monotonic() + seconds
    found: list[float] = []
    refused = 0
    while len(found) + refused < requests:
        try:
            found.append(run())
        except Refused:
            refused += 1
        if time.monotonic() > until and len(found) + refused >= _FEW:
            break
    return Latencies(tuple(found), refused)


def _processor_clock(pid: int) -> Callable[[], float]:
    """Return a clock of all processor time of a process: Linux's clockid of another process."""
    clock_id = (~pid << 3) | 2
    return lambda: time.clock_gettime(clock_id)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


COLUMNS: Final = (
    *("honest request", "calm: usual", "p99", "beside: usual", "p99"),
    *("usual ratio", "p99 ratio", "answered"),
)


def row_of(compared: Comparison) -> Sequence[str]:
    """Return the cells of a comparison: microseconds, and ratios to calm."""
    calm, beside = compared.calm, compared.beside
    asked = len(beside.seconds) + beside.refused
    answered = f"{len(beside.seconds)} of {asked}"
    if not beside.seconds or not calm.seconds:
        return (compared.action, *("",) * 6, answered)
    return (
        compared.action,
        *(f"{value:,.0f}" for value in (calm.usual, calm.p99, beside.usual, beside.p99)),
        _ratio(beside.usual, calm.usual),
        _ratio(beside.p99, calm.p99),
        answered,
    )


def _ratio(beside: float, calm: float) -> str:
    return f"{beside / calm:.2f}" if calm else "-"  # a few requests take less than the clock tells
