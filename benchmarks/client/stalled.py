"""Memory of a producer whose broker accepts nothing: a thousand sends of 1 MiB, and their ends.

    .venv/bin/python -m benchmarks.client.stalled

The broker is stopped (SIGSTOP) behind the first message, so that the system's buffers fill up and
nothing is answered. What the producer may hold is `pending_bytes_max`.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections import Counter
from concurrent.futures import Future
from pathlib import Path

from rmq_spark.client import Message, Producer
from rmq_spark.client.errors import TooManyPending
from rmq_spark.client.results import SendResult
from rocketpoll import EmbeddedBroker

SENDS = 1_000
BODY_BYTES = 1 << 20
TIMEOUT_MS = 100
TOPIC = "stalled"
_MIB = 1 << 20


def memory_mib() -> float:
    """Return the resident memory of this process in MiB."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) * 1024 / _MIB


def main() -> None:
    """Print what it took, and what became of the sends."""
    with EmbeddedBroker(own_process=True) as broker:
        broker.create_topic(TOPIC)
        with Producer("senders", broker.address, retry_times_when_send_async_failed=0) as producer:
            producer.send(Message(TOPIC, b"first"))
            pid = _child()
            os.kill(pid, signal.SIGSTOP)
            try:
                _send(producer)
            finally:
                os.kill(pid, signal.SIGCONT)


def _child() -> int:
    """Return the broker's process id; it is the only child of this process."""
    [child] = {
        int(pid)
        for task in Path("/proc/self/task").glob("*/children")
        for pid in task.read_text().split()
    }
    return child


def _send(producer: Producer) -> None:
    body = os.urandom(BODY_BYTES)
    before = most = memory_mib()
    futures: list[Future[SendResult]] = []
    ends: Counter[str] = Counter()
    began = time.perf_counter()
    for _ in range(SENDS):
        try:
            # Each has a body of its own, as a program's messages have.
            futures.append(
                producer.send_async(Message(TOPIC, bytes(bytearray(body))), timeout_ms=TIMEOUT_MS)
            )
        except TooManyPending:
            ends["refused at the call: TooManyPending"] += 1
        most = max(most, memory_mib())
    for future in futures:
        error = future.exception()
        ends["sent" if error is None else f"failed: {type(error).__name__}"] += 1
    took = time.perf_counter() - began
    health = producer.health()
    sys.stdout.write(
        f"{SENDS} sends of {BODY_BYTES / _MIB:.0f} MiB, each with {TIMEOUT_MS} ms: {took:.1f} s\n"
    )
    for end, count in ends.items():
        sys.stdout.write(f"  {count:5} {end}\n")
    sys.stdout.write(
        f"memory {before:.0f} MiB before, {most:.0f} MiB at most, {memory_mib():.0f} MiB behind "
        "it\n"
    )
    sys.stdout.write(f"still pending: {health.pending_sends} sends, {health.pending_bytes} bytes\n")


if __name__ == "__main__":
    logging.getLogger("rmq_spark").setLevel(logging.ERROR)  # that the broker is silent is warned of
    main()
