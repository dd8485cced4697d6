"""The demo's producer: messages at a rate, some at a time as a table, on a thread of its own."""

from __future__ import annotations

import random
import threading
import time
from typing import Final

import pyarrow as pa

from rmq_spark.client.producer.producer import Producer

_TURN_SECONDS: Final = 0.05
_TAGS: Final = ("created", "paid", "sent")
_BODIES: Final = 1_000


class Sender:
    """A thread that sends messages until it is told to stop."""

    def __init__(self, address: str, topic: str, per_second: int, body_bytes: int) -> None:
        self._address = address
        self._topic = topic
        self._per_second = per_second
        self._body_bytes = body_bytes
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="demo-sender", daemon=True)
        self.sent = 0
        self.fault: Exception | None = None

    def start(self) -> None:
        """Start the thread that sends."""
        self._thread.start()

    def stop(self) -> None:
        """Send nothing more; all that was counted is stored."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            with Producer("demo-producer", self._address) as producer:
                self._send_on(producer)
        except Exception as error:  # noqa: BLE001  # the thread that waits for the figures reports it
            self.fault = error

    def _send_on(self, producer: Producer) -> None:
        bodies = [random.randbytes(self._body_bytes) for _ in range(_BODIES)]  # noqa: S311  # no secrets
        started = time.monotonic()
        while not self._stopping.wait(_TURN_SECONDS):
            due = int((time.monotonic() - started) * self._per_second) - self.sent
            # What fell behind while the machine was busy is made up for a piece at a time.
            count = min(due, max(int(self._per_second * _TURN_SECONDS * 4), 1))
            if count <= 0:
                continue
            rows = range(self.sent, self.sent + count)
            table = pa.table(
                {
                    "body": [bodies[row % _BODIES] for row in rows],
                    "keys": [f"order-{row}" for row in rows],
                    "tags": [_TAGS[row % len(_TAGS)] for row in rows],
                }
            )
            producer.send_table(table, self._topic)
            self.sent += count
