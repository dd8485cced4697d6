"""The rocketpoll side: name server and broker in one process, with default settings."""

from __future__ import annotations

import os
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.broker.process import Process
from benchmarks.broker.running import NAME, RunningBroker, free_port, wait_for_route, write_settings
from rocketpoll.broker.store.config import FlushDiskType

_ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class RocketPoll:
    """The side of ``python -m rocketpoll.broker``, with either kind of flush."""

    flush: FlushDiskType = FlushDiskType.ASYNC_FLUSH

    @property
    def name(self) -> str:
        """The name with the kind of flush, if senders wait for it."""
        return "rocketpoll" + ", sync flush" * (self.flush is FlushDiskType.SYNC_FLUSH)

    def start(self, directory: Path, clients_max: int | None = None) -> RunningBroker:
        """Start a broker for at least ``clients_max`` clients, and wait until it is ready."""
        port = free_port()
        settings: dict[str, object] = {
            "brokerName": NAME,
            "listenPort": port,
            "storePathRootDir": directory / "store",
            "flushDiskType": self.flush.value,
        }
        if clients_max is not None:
            limits = (
                "maxConnections",
                "maxConnectionsPerAddress",
                "maxAcceptsPerSecond",
                "maxHolds",
            )
            settings |= dict.fromkeys(limits, clients_max)
        file = write_settings(directory / "broker.conf", settings)
        started = time.perf_counter()
        process = Process(
            [sys.executable, "-m", "rocketpoll.broker", "-c", str(file)],
            directory / "broker.log",
            _ROOT,
            env=_as_installed(),
        )
        with ExitStack() as failing:
            failing.callback(process.stop)
            wait_for_route(port, [process])
            seconds = time.perf_counter() - started
            failing.pop_all()
        return RunningBroker(port, port, [process], seconds)


def _as_installed() -> dict[str, str]:
    """Return an environment in which Python keeps its byte code, as an installation does."""
    kept = {**os.environ, "PYTHONPYCACHEPREFIX": str(_ROOT / "build" / "pycache")}
    kept.pop("PYTHONDONTWRITEBYTECODE", None)
    return kept
