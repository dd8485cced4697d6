"""DemoConsumer: the demo's reader without Spark: a pull consumer, with figures each half second."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from rmq_spark.cli.demo.display import DemoBatch
from rmq_spark.client.consumer.lite_pull_consumer import LitePullConsumer
from rmq_spark.client.consumer.settings import LitePullSettings
from rmq_spark.client.message import MessageExt

_BATCH_SECONDS: Final = 0.5
_POLL_MS: Final = 100
_PULL_BATCH_SIZE: Final = 512


class DemoConsumer:
    """A consumer of all queues of a topic, on its own thread."""

    def __init__(self, address: str, topic: str, on_batch: Callable[[DemoBatch], None]) -> None:
        """Start to read; ``on_batch`` gets the figures of each half second, on that thread."""
        self._consumer = LitePullConsumer(
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
        """Return the reason why it has stopped, or None while it runs."""
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
            latencies += _latencies(messages)
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


def _latencies(messages: Sequence[MessageExt]) -> list[float]:
    now_ms = time.time_ns() / 1e6
    return [(now_ms - message.born_timestamp) / 1000 for message in messages]
