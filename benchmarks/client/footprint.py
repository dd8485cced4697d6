"""What a client takes before it does anything: memory of consumers, time to import it; in new processes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

_TIMEOUT_SECONDS = 120
_IMPORT = """
import time
started = time.perf_counter()
from rmq_spark.client import LitePullConsumer, Producer, PushConsumer
print(time.perf_counter() - started)
"""
_CONSUMERS = """
import sys, time
from pathlib import Path
from rmq_spark.client import ClientInstance, LitePullConsumer

name_server, topic, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
kept = []

def rss():
    time.sleep(1)  # until pulls are held
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0])

def add(instance):
    consumer = LitePullConsumer(f"holders-{time.time_ns()}-{len(kept)}", instance)
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


def import_seconds() -> float:
    """What importing takes, once Python runs."""
    return float(_said_by(_IMPORT))


def memory_per_consumer(name_server: str, topic: str, count: int) -> Sequence[float]:
    """Megabytes of a process with one; KiB of each of so many more, in the same instance and in their own."""
    one, shared, own = map(float, _said_by(_CONSUMERS, name_server, topic, str(count)).split())
    return one * 1_024 / 1e6, max(shared, 0.0), max(own, 0.0)


def _said_by(script: str, *arguments: str) -> str:
    done = subprocess.run(  # noqa: S603  # our own
        [sys.executable, "-c", script, *arguments],
        check=True,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_SECONDS,
    )
    return done.stdout
