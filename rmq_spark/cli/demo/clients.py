"""Demo clients: the producer, and the reader without Spark.

DemoSender sends several messages at a time at a given rate, on its own thread, as a table or a
batch. A table is faster for many messages; a batch needs no pyarrow, which takes longer to load
than a broker to start. DemoConsumer is a pull consumer that reports figures each half second.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Final

from rmq_spark.cli.demo.display import DemoBatch
from rmq_spark.client.consumer.lite_pull_consumer import Consumer
from rmq_spark.client.consumer.settings import LitePullSettings
from rmq_spark.client.message import Message
from rmq_spark.client.producer.producer import Producer

_SEND_INTERVAL_SECONDS: Final = 0.05
_CATCH_UP_INTERVALS_MAX: Final = 4
"""After a delay, the sender sends the messages of at most this many intervals at a time."""
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
            import pyarrow as pa  # noqa: PLC0415  # only with Spark

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
        pending_count, last = 0.0, time.monotonic()
        while not self._stop_event.wait(_SEND_INTERVAL_SECONDS):
            now, rate = time.monotonic(), self.per_second
            most = max(rate * _SEND_INTERVAL_SECONDS * _CATCH_UP_INTERVALS_MAX, 1)
            pending_count, last = min(pending_count + (now - last) * rate, rate), now
            count = int(min(pending_count, most))
            if count:
                self.send(count)
                pending_count -= count


_BATCH_SECONDS: Final = 0.5
_POLL_MS: Final = 100
_PULL_BATCH_SIZE: Final = 512


class DemoConsumer:
    """A consumer of all queues of a topic, on its own thread."""

    def __init__(self, address: str, topic: str, on_batch: Callable[[DemoBatch], None]) -> None:
        """Start to read; the thread calls ``on_batch`` with the figures of each half second."""
        self._consumer = Consumer(
            "demo-readers", address, LitePullSettings(pull_batch_size=_PULL_BATCH_SIZE)
        )
        self._consumer.assign(self._consumer.fetch_message_queues(topic))
        self._consumer.start()
        self._on_batch = on_batch
        self._fault: Exception | None = None
        self._stop_event = threading.Event()
        self._thread = threading.Thread(target=self._run, name="demo-consumer", daemon=True)
        self._thread.start()

    def fault(self) -> str | None:
        """Return the reason why the consumer has stopped, or None while it runs."""
        return None if self._fault is None else str(self._fault)

    def finish(self) -> None:
        """Do nothing: the thread reads everything that is sent anyway."""

    def stop(self) -> None:
        """Stop the thread and the consumer."""
        self._stop_event.set()
        self._thread.join()
        self._consumer.shutdown()

    def _run(self) -> None:
        try:
            while not self._stop_event.is_set():
                self._read_batch()
        except Exception as error:  # noqa: BLE001  # the thread that waits for the figures reports it
            self._fault = error

    def _read_batch(self) -> None:
        started = time.monotonic()
        latencies: list[float] = []
        while (seconds := time.monotonic() - started) < _BATCH_SECONDS:
            messages = self._consumer.poll(_POLL_MS)
            now_ms = time.time_ns() / 1e6
            latencies += [(now_ms - message.born_timestamp) / 1000 for message in messages]
            if self._stop_event.is_set():
                break
        if latencies:
            latencies.sort()
            self._on_batch(
                DemoBatch(
                    rows=len(latencies),
                    ended_at=started + seconds,
                    seconds=seconds,
                    latency_p50=latencies[len(latencies) // 2],
                    latency_p95=latencies[len(latencies) * 95 // 100],
                )
            )
