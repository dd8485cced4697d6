"""Benchmark of sends with OpenTelemetry tracing, compared with sends without.

python -m benchmarks.telemetry [--rounds N] [--seconds S] [--only SUBSTRING] [--json PATH]

The broker is a process of its own. The span provider is the SDK's without an exporter, because an
exporter's cost is its own. The cost of a send without tracing is measured separately, because it is
far below the variation between sends.
"""

from __future__ import annotations

from functools import partial
from types import TracebackType

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import TracerProvider

from benchmarks.harness import Case
from rmq_spark.client import observer
from rocketpoll import EmbeddedBroker, Message, Producer, opentelemetry

LIBRARIES = ("uvloop", "opentelemetry-sdk")

SENDS = 100
_MESSAGE = Message("orders", b"x" * 100, tags="paid", keys="order-42")
_SENT = "a send, one at a time"
_ASKED = "asking whether anybody watches"
_PLAIN = "not watched"
_WATCHED = "watched"


class Stage:
    """A broker and a producer; use it in a with statement."""

    def __init__(self) -> None:
        self._broker = EmbeddedBroker(own_process=True)
        self._providers = (TracerProvider(), MeterProvider())

    def __enter__(self) -> Stage:
        self._broker.start()
        self._producer = Producer("bench", self._broker.address)
        self._producer.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._producer.shutdown()
        self._broker.stop()

    def send(self, *, watched: bool) -> None:
        """Send some messages one after the other."""
        if watched:
            opentelemetry.instrument(*self._providers)
        try:
            for _ in range(SENDS):
                self._producer.send(_MESSAGE)
        finally:
            opentelemetry.uninstrument()


def _ask() -> None:
    for _ in range(SENDS):
        observer.observe_send((_MESSAGE,))


def telemetry_cases(stage: Stage) -> list[Case]:
    """Return the cases."""
    return [
        Case(_SENT, _PLAIN, partial(stage.send, watched=False), SENDS),
        Case(_SENT, _WATCHED, partial(stage.send, watched=True), SENDS, peer=_PLAIN),
        Case(_ASKED, _PLAIN, _ask, SENDS),
    ]
