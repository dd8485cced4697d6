"""Cost of an idle client in a new process: memory of consumers, import time."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence

_TIMEOUT_SECONDS = 120
_IMPORTS = (
    "from rocketpoll import LitePullConsumer, Producer, PushConsumer",
    "import asyncio",  # the yardstick: what many programs import anyhow, on the same machine
)
_IMPORTS_OF_EACH = 9
_TIMED = "import time; started = time.process_time(); {}; print(time.process_time() - started)"
_CONSUMERS = """
import sys, time
from pathlib import Path
from rocketpoll import ClientInstance, LitePullConsumer

name_server, topic, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
kept = []

def rss():
    time.sleep(1)  # until pulls are held
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0])

def add(instance):
    consumer = LitePullConsumer(f"holders-{time.time_ns()}-{len(kept)}", instance=instance)
    consumer.subscribe(topic)
    consumer.start()
    kept.append(consumer)

shared = ClientInstance(name_server)
add(shared)
one = rss()
for _ in range(count):
    add(shared)
more = rss()
for _ in range(count):
    add(ClientInstance(name_server))
most = rss()
for consumer in kept:
    consumer.shutdown()
print(one, (more - one) / count, (most - more) / count)
"""


def import_seconds() -> Sequence[float]:
    """Return the median seconds of a core for imports: producer and consumers, then asyncio.

    They are measured with byte code, as pip leaves packages behind: a checkout may have none, and
    be told to write none.
    """
    with tempfile.TemporaryDirectory() as directory:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": directory}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        took = [
            [float(_said_by(_TIMED.format(each), env=environment)) for each in _IMPORTS]
            for _ in range(1 + _IMPORTS_OF_EACH)  # the first writes the byte code
        ]
    return [statistics.median(each) for each in zip(*took[1:], strict=True)]


def memory_per_consumer(name_server: str, topic: str, count: int) -> Sequence[float]:
    """Return MB of a process with one consumer, and KiB for each more in its or an own instance."""
    one, shared, own = map(float, _said_by(_CONSUMERS, name_server, topic, str(count)).split())
    return one * 1_024 / 1e6, max(shared, 0.0), max(own, 0.0)


def _said_by(script: str, *arguments: str, env: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(  # noqa: S603  # our own
        [sys.executable, "-c", script, *arguments],
        check=True,
        capture_output=True,
        text=True,
        env=env,
        timeout=_TIMEOUT_SECONDS,
    )
    return done.stdout
