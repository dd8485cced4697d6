"""Duration of `shutdown` for each kind of client in each state.

    .venv/bin/python -m benchmarks.client.ending

A client is brought into a state, and shut down from another thread, as a signal handler or the end
of a service does. A line has the longest of the rounds; the bound is that of docs/client.md.
"""

from __future__ import annotations

import functools
import logging
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import Any, Final, NamedTuple

from benchmarks.client.beside import TOPIC as ROUTED_TOPIC
from benchmarks.client.beside import BlackHole, NameServer
from benchmarks.client.stalled import stopped
from benchmarks.spark.process_tree import embedded_broker
from rmq_spark.client.consumer.rebalance.strategies import AllocateMessageQueueStrategy
from rmq_spark.client.errors import ClientError
from rmq_spark.client.instance.instance import SHUTDOWN_MS
from rmq_spark.wire.message_queue import MessageQueue
from rocketpoll import (
    Admin,
    ConsumeFromWhere,
    EmbeddedBroker,
    LitePullConsumer,
    LitePullSettings,
    Message,
    Producer,
    PushConsumer,
    PushSettings,
)

ROUNDS = 3
TOPIC = "ending"
FOR_EVER_MS: Final = 600_000
PATIENCE_SECONDS: Final = 30
PENDING: Final = 20
PENDING_BYTES: Final = 1 << 20
IN_SECONDS: Final = 0.3
"""Seconds that a client stays in a state that nobody can observe from outside."""

FIRST: Final = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET

Consumer = LitePullConsumer | PushConsumer
Client = Consumer | Producer | Admin


class Place(NamedTuple):
    """The environment of a round: what clients need to get into a state."""

    broker: EmbeddedBroker
    silent: str
    routed_to_silence: str
    stack: ExitStack
    """Cleanup after a round."""

    in_use: threading.Event
    """Set while a listener or a strategy is running."""

    go_on: threading.Event
    """Set after a round: listeners and strategies wait for it."""

    def wait(self, *_: object) -> None:
        """Block until the round ends."""
        self.in_use.set()
        self.go_on.wait(PATIENCE_SECONDS)


State = Callable[[Place], Client]


class _WaitsToAllocate:
    """An allocation strategy that blocks until the round ends."""

    name = "WAITS"

    def __init__(self, place: Place) -> None:
        self._place = place

    def allocate(
        self, _client: str, queues: Sequence[MessageQueue], _clients: Sequence[str]
    ) -> list[MessageQueue]:
        """Return all queues, late."""
        self._place.wait()
        return list(queues)


def _consumer(
    kind: str,
    address: str,
    place: Place,
    strategy: AllocateMessageQueueStrategy | None = None,
) -> Consumer:
    settings: dict[str, Any] = {"consume_from_where": FIRST}
    if strategy is not None:
        settings["allocate_message_queue_strategy"] = strategy
    group = f"group-{time.time_ns()}"
    if kind == "lite pull":
        return LitePullConsumer(group, address, LitePullSettings(**settings))
    if kind == "orderly":
        return PushConsumer(
            group, address, orderly_listener=place.wait, settings=PushSettings(**settings)
        )
    return PushConsumer(group, address, listener=place.wait, settings=PushSettings(**settings))


def _run_in_thread(action: Callable[[], object]) -> None:
    """Run a function in a thread, and ignore its result and errors."""

    def run() -> None:
        with suppress(ClientError):
            action()

    threading.Thread(target=run, daemon=True).start()


def _until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("a client has not come into its state")
        time.sleep(0.01)


def _joined(kind: str, place: Place) -> Consumer:
    """Start a consumer that has its queues and whose pulls are held."""
    consumer = _consumer(kind, place.broker.address, place)
    consumer.subscribe(TOPIC)
    consumer.start()
    _until(consumer.assignment)
    time.sleep(IN_SECONDS)
    return consumer


def _idle(kind: str, place: Place) -> Client:
    if kind == "producer":
        producer = Producer("senders", place.broker.address)
        producer.start()
        producer.send(Message("others", b"x"))
        return producer
    if kind == "admin":
        admin = Admin(place.broker.address)
        admin.topics()
        return admin
    return _joined(kind, place)


def _polling(place: Place) -> Client:
    consumer = _joined("lite pull", place)
    if isinstance(consumer, LitePullConsumer):
        _run_in_thread(functools.partial(consumer.poll, FOR_EVER_MS))
    time.sleep(IN_SECONDS)
    return consumer


def _listener_busy(kind: str, place: Place) -> Client:
    consumer = _joined(kind, place)
    with Producer("senders", place.broker.address) as producer:
        producer.send(Message(TOPIC, b"x"))
    _until(place.in_use.is_set)
    return consumer


def _stalled(kind: str, place: Place) -> Client:
    """Start a client whose broker accepts connections but no longer answers."""
    client = _idle(kind, place)
    place.stack.enter_context(stopped(embedded_broker()))
    if isinstance(client, Producer):
        for _ in range(PENDING):
            message = Message("others", bytes(PENDING_BYTES))
            client.send_async(message, timeout_ms=FOR_EVER_MS)
        _run_in_thread(lambda: client.send(Message("others", b"x"), timeout_ms=FOR_EVER_MS))
    elif isinstance(client, Admin):
        _run_in_thread(client.topics)
    elif isinstance(client, LitePullConsumer):
        _run_in_thread(client.commit)
    time.sleep(IN_SECONDS)
    return client


def _connecting(kind: str, place: Place) -> Client:
    """Start a client whose broker's host has vanished."""
    address = place.routed_to_silence
    if kind not in CONSUMERS:
        return _asking(kind, address, ROUTED_TOPIC, lambda admin: admin.topic_offsets(ROUTED_TOPIC))
    consumer = _consumer(kind, address, place)
    consumer.subscribe(ROUTED_TOPIC)
    consumer.start()
    time.sleep(IN_SECONDS)
    return consumer


def _starting(kind: str, place: Place) -> Client:
    """Start a client whose name server's host has vanished; a producer makes its first send."""
    if kind not in CONSUMERS:
        return _asking(kind, place.silent, TOPIC, Admin.topics)
    consumer = _consumer(kind, place.silent, place)
    consumer.subscribe(TOPIC)
    _run_in_thread(consumer.start)
    time.sleep(IN_SECONDS)
    return consumer


def _asking(kind: str, address: str, topic: str, question: Callable[[Admin], object]) -> Client:
    """Start a producer's send or an admin's query that nobody answers."""
    if kind == "producer":
        producer = Producer("senders", address)
        producer.start()
        _run_in_thread(lambda: producer.send(Message(topic, b"x"), timeout_ms=FOR_EVER_MS))
        client: Client = producer
    else:
        admin = Admin(address)
        _run_in_thread(lambda: question(admin))
        client = admin
    time.sleep(IN_SECONDS)
    return client


def _rebalancing(kind: str, place: Place) -> Client:
    consumer = _consumer(kind, place.broker.address, place, _WaitsToAllocate(place))
    consumer.subscribe(TOPIC)
    _run_in_thread(consumer.start)
    _until(place.in_use.is_set)
    return consumer


CONSUMERS = ("push", "orderly", "lite pull")
ALL = (*CONSUMERS, "producer", "admin")
STATES: Final[Sequence[tuple[str, str, State]]] = (
    *(("idle", kind, functools.partial(_idle, kind)) for kind in ALL),
    ("polling", "lite pull", _polling),
    *(("listener busy", kind, functools.partial(_listener_busy, kind)) for kind in CONSUMERS[:2]),
    *(("rebalancing", kind, functools.partial(_rebalancing, kind)) for kind in CONSUMERS),
    *(("starting", kind, functools.partial(_starting, kind)) for kind in ALL),
    *(("connecting to a black hole", kind, functools.partial(_connecting, kind)) for kind in ALL),
    *(("its broker stalled", kind, functools.partial(_stalled, kind)) for kind in ALL),
)
"""States and kinds, and what brings a client of the kind into the state. What stops the broker
comes last."""


def seconds_to_end(state: State, broker: EmbeddedBroker, silent: str, routed: str) -> float:
    """Return the seconds that `shutdown` of a client takes in a state."""
    with ExitStack() as stack:
        place = Place(broker, silent, routed, stack, threading.Event(), threading.Event())
        stack.callback(place.go_on.set)
        client = state(place)
        began = time.perf_counter()
        client.__exit__(None, None, None)  # which all of them have: `shutdown`, where there is one
        return time.perf_counter() - began


def main() -> None:
    """Print the longest of the rounds for each state and kind."""
    bound = SHUTDOWN_MS / 1_000
    with EmbeddedBroker(own_process=True) as broker, ExitStack() as stack:
        for topic in (TOPIC, "others"):
            broker.create_topic(topic)
        hole = BlackHole()
        stack.callback(hole.close)
        names = NameServer(**{"broker-a": hole.address})
        stack.callback(names.close)
        for name, kind, state in STATES:
            longest = max(
                seconds_to_end(state, broker, hole.address, names.address) for _ in range(ROUNDS)
            )
            sys.stdout.write(f"{name:28}{kind:12}{longest:6.2f} s\n")
            sys.stdout.flush()
    sys.stdout.write(f"{'at most':40}{bound:6.2f} s\n")


if __name__ == "__main__":
    logging.getLogger("rmq_spark").setLevel(logging.CRITICAL)  # what cannot be reached is told of
    main()
