"""Cost of many held pulls for the broker: memory, idle CPU, and the time to wake them.

Another process (`holder`) holds the pulls, so that its resources are not counted for the broker.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks.broker import holder
from benchmarks.broker.figures import percentile
from benchmarks.broker.process import Process
from benchmarks.broker.requests import Connection, end_of_queue
from benchmarks.broker.running import RunningBroker

_ROOT = Path(__file__).resolve().parents[2]
_SETTLE_SECONDS_MAX = 20
_LOOK_SECONDS = 0.5
_SETTLED = 0.25  # of a core, over one look: RocketMQ takes a tenth for nothing


class Held(NamedTuple):
    """The measurements of one number of held pulls."""

    rss_bytes_per_pull: float
    idle_cpu: float
    """The share of one core."""
    wake_ms: tuple[float, float, float]
    """The milliseconds until 50 percent, 99 percent and all of the pulls were answered."""


def measure_held_pulls(
    broker: RunningBroker, count: int, idle_seconds: float, directory: Path
) -> Held:
    """Measure held pulls on a broker without other clients that allows that many connections."""
    with Connection(broker.port) as connection:
        end_of_queue(connection, holder.TOPIC)  # what only the first message needs is not counted
    _settle(broker.process)
    rss_before = broker.process.rss_bytes
    process = Process(
        [sys.executable, "-m", holder.__name__, str(broker.port), str(count)],
        directory / "holder.log",
        _ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        encoding="utf-8",
    )
    try:
        held = json.loads(process.read_line())["held"]
        _settle(broker.process)
        rss = broker.process.rss_bytes
        cpu_before, started = broker.process.cpu_seconds, time.perf_counter()
        time.sleep(idle_seconds)
        cpu = (broker.process.cpu_seconds - cpu_before) / (time.perf_counter() - started)
        process.write_line("wake")
        took = json.loads(process.read_line())["milliseconds"]
    finally:
        process.stop()
    wake_ms = (percentile(took, 50), percentile(took, 99), took[-1])
    return Held((rss - rss_before) / held, cpu, wake_ms)


def _settle(process: Process) -> None:
    """Wait until the broker no longer uses the processor, for a bounded time.

    A broker does not answer a held pull, so nothing else shows that it has read all of them.
    """
    deadline = time.perf_counter() + _SETTLE_SECONDS_MAX
    used = process.cpu_seconds
    while time.perf_counter() < deadline:
        time.sleep(_LOOK_SECONDS)
        before, used = used, process.cpu_seconds
        if used - before <= _SETTLED * _LOOK_SECONDS:
            return
