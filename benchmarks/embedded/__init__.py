"""Benchmark of the embedded broker: the time until it is ready, and until it has stopped.

python -m benchmarks.embedded [--rounds N] [--only SUBSTRING] [--json PATH]

All modules are imported beforehand. Each broker has a new temporary directory, on the disk that
holds temporary files.
"""

from __future__ import annotations

from functools import partial
from types import TracebackType

from benchmarks.harness import Case, Target
from rocketpoll.broker.embedded import EmbeddedBroker

LIBRARIES = ("uvloop", "numpy")

READY_MICROSECONDS_MAX = 100_000
_UNIT = "broker"
_READY = "started, and ready"
_USED = "started, a topic made, a message sent and seen"
_STOPPED = "stopped, its directory removed"


class OneAtATime:
    """A holder of at most one running broker; use it in a with statement."""

    def __init__(self) -> None:
        self._broker: EmbeddedBroker | None = None

    def __enter__(self) -> OneAtATime:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self, *, own_process: bool) -> EmbeddedBroker:
        """Start a new embedded broker and return it."""
        self._broker = EmbeddedBroker(own_process=own_process).start()
        return self._broker

    def use(self, *, own_process: bool) -> None:
        """Start a broker, and do the minimum that a test does with it."""
        broker = self.start(own_process=own_process)
        broker.create_topic("orders")
        broker.send("orders", "one")
        if len(broker.messages("orders")) != 1:
            raise AssertionError("the message is not there")

    def stop(self) -> None:
        """Stop the last broker."""
        if self._broker is not None:
            self._broker.stop()
            self._broker = None

    def restart(self, *, own_process: bool) -> None:
        """Start a broker for the next measurement of a stop."""
        self.stop()
        self.start(own_process=own_process)


def embedded_cases(brokers: OneAtATime) -> list[Case]:
    """Return a case for each way to run the broker."""
    found: list[Case] = []
    for own_process, variant in ((False, "in a thread"), (True, "in a process")):
        start = partial(brokers.start, own_process=own_process)
        use = partial(brokers.use, own_process=own_process)
        start_anew = partial(brokers.restart, own_process=own_process)
        peer = "in a thread" if own_process else None
        target = None if own_process else Target("microseconds", READY_MICROSECONDS_MAX)
        found += [
            Case(_READY, variant, start, 1, _UNIT, peer, target, prepare=brokers.stop),
            Case(_USED, variant, use, 1, _UNIT, peer, prepare=brokers.stop),
            Case(_STOPPED, variant, brokers.stop, 1, _UNIT, peer, prepare=start_anew),
        ]
    return sorted(found, key=lambda case: case.subject)
