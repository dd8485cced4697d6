"""DemoSender: the demo's producer: sends messages at a rate, several at a time, on its own thread.

It sends either a table or a batch of messages. A table is faster for many of them; a batch needs no
pyarrow, which takes longer to load than a broker to start.
"""

from __future__ import annotations

import random
import threading
import time
from typing import Final

from rmq_spark.client.message import Message
from rmq_spark.client.producer.producer import Producer

_SEND_INTERVAL_SECONDS: Final = 0.05
_CATCH_UP_INTERVALS_MAX: Final = 4
"""Most intervals made up for at a time after a busy machine delayed the sender."""
_TAGS: Final = ("created", "paid", "sent")
_BODY_COUNT: Final = 1_000


class DemoSender:
    """A producer of orders, and the thread on which it sends until it is stopped."""

    def __init__(self, address: str, topic: str, body_bytes: int, *, by_table: bool) -> None:
        self._topic = topic
        self._by_table = by_table
        self._bodies = [random.randbytes(body_bytes) for _ in range(_BODY_COUNT)]  # noqa: S311  # no secrets
        self._producer = Producer("demo-producer", address)
        self._stop_event = threading.Event()
        self._thread = threading.Thread(target=self._run, name="demo-sender", daemon=True)
        self.per_second = 0
        """The rate, which may be changed at any time."""
        self.sent = 0
        """How many messages were stored."""
        self.fault: Exception | None = None

    def __enter__(self) -> DemoSender:
        self._producer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._producer.shutdown()

    def send(self, count: int) -> None:
        """Send messages at once, on the caller's thread; before `start`."""
        rows = range(self.sent, self.sent + count)
        bodies = [self._bodies[row % _BODY_COUNT] for row in rows]
        keys = [f"order-{row}" for row in rows]
        tags = [_TAGS[row % len(_TAGS)] for row in rows]
        if self._by_table:
            import pyarrow as pa  # noqa: PLC0415  # not without Spark

            table = pa.table({"body": bodies, "keys": keys, "tags": tags})
            self._producer.send_table(table, self._topic)
        else:
            self._producer.send_batch(
                Message(self._topic, body, keys=key, tags=tag)
                for body, key, tag in zip(bodies, keys, tags, strict=True)
            )
        self.sent += count

    def start(self, per_second: int) -> None:
        """Start the thread that sends."""
        self.per_second = per_second
        self._thread.start()

    def stop(self) -> None:
        """Stop sending; all messages that were counted are stored."""
        self._stop_event.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            self._send_at_rate()
        except Exception as error:  # noqa: BLE001  # the thread that waits for the figures reports it
            self.fault = error

    def _send_at_rate(self) -> None:
        owed, last = 0.0, time.monotonic()
        while not self._stop_event.wait(_SEND_INTERVAL_SECONDS):
            now, rate = time.monotonic(), self.per_second
            most = max(rate * _SEND_INTERVAL_SECONDS * _CATCH_UP_INTERVALS_MAX, 1)
            owed, last = min(owed + (now - last) * rate, rate), now
            count = int(min(owed, most))
            if count:
                self.send(count)
                owed -= count
