"""Cases of the client benchmark: what our client does at each side's broker, and the figures."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from typing import Any

from benchmarks.broker.arena import Arena
from benchmarks.broker.cases import Case
from benchmarks.broker.figures import OURS, OURS_SYNC, PEER, Figure, Role, Target, percentile
from benchmarks.client.clients import Clients, message, table, varied_messages
from benchmarks.client.footprint import import_seconds, memory_per_consumer
from benchmarks.client.pulling import bulk_pull, lite_pull, wakes
from rmq_spark.wire.extensions import Extension

OUTSTANDING = 1_000
BATCH = 100
JAVA_BATCH = 100
_VARIED_MESSAGES = 1_000
LITE_BATCH_SIZES = (10, 32, 1_000)
NO_EXTENSIONS: frozenset[Extension] = frozenset()

_BOTH = (OURS, PEER)
_SENDING = (OURS, OURS_SYNC, PEER)
_MS = 1e3


@dataclass(frozen=True)
class Scale:
    """The durations and sizes of a run."""

    seconds: float = 2.0
    rows: int = 1_000_000
    filled_messages: int = 400_000
    consumers: int = 20


QUICK = Scale(seconds=0.1, rows=2_000, filled_messages=2_000, consumers=2)
"""A scale to see that every case works; its figures mean nothing."""


def client_cases(arena: Arena, scale: Scale) -> list[Case]:
    """Return all cases, or those that need no Java clients if there are none."""
    clients = Clients(arena)
    java = [_java_batches(arena, scale)] if arena.has_java_clients else []
    return [
        *_sends(clients, scale),
        *java,
        _table(clients, scale),
        *_pulls(arena, clients, scale),
        _waking(clients, scale),
        _memory(clients, scale),
        _importing(),
    ]


# ---- sending


def _sends(clients: Clients, scale: Scale) -> list[Case]:
    def one_by_one(role: Role, topic: str) -> int:
        clients.producer(role).send(message(topic))
        return 1

    def futures(role: Role, topic: str) -> int:
        producer = clients.producer(role)
        for future in [producer.send_async(message(topic)) for _ in range(OUTSTANDING)]:
            future.result()
        return OUTSTANDING

    def batches(role: Role, topic: str) -> int:
        clients.producer(role).send_batch([message(topic)] * BATCH)
        return BATCH

    varied = cycle(varied_messages("", _VARIED_MESSAGES))

    def varied_batches(role: Role, topic: str) -> int:
        messages = [replace(each, topic=topic) for each in islice(varied, BATCH)]
        clients.producer(role).send_batch(messages)
        return BATCH

    ways = {
        "send, one after the other": one_by_one,
        f"send_async, {OUTSTANDING} at a time": futures,
        f"send_batch, {BATCH} at a time": batches,
        f"varied send_batch, {BATCH} at a time": varied_batches,
    }
    return [_rate(clients, subject, send, scale.seconds) for subject, send in ways.items()]


def _rate(clients: Clients, subject: str, send: Callable[[Role, str], int], seconds: float) -> Case:
    topic = subject.partition(",")[0]

    def measure(role: Role) -> Sequence[float]:
        clients.queues(role, topic)
        sent = 0
        started = time.perf_counter()
        while (took := time.perf_counter() - started) < seconds or not sent:
            sent += send(role, topic)
        return [sent / took]

    return Case(subject, [Figure("messages", "msg/s")], measure, _SENDING)


def _java_batches(arena: Arena, scale: Scale) -> Case:
    def measure(role: Role) -> Sequence[float]:
        answer = arena.load().ask(
            "send batches",
            nameServer=arena.broker(role).name_server,
            topic="java-batches",
            seconds=scale.seconds,
            bodyBytes=100,
            threads=1,
            batch=JAVA_BATCH,
        )
        return [answer["messages"] / answer["seconds"]]

    return Case(
        f"Java's producer, batches of {JAVA_BATCH}",
        [Figure("messages", "msg/s")],
        measure,
        _SENDING,
    )


def _table(clients: Clients, scale: Scale) -> Case:
    rows = table(scale.rows)

    def measure(role: Role) -> Sequence[float]:
        clients.queues(role, "tables")
        broker = clients.broker(role)
        cpu, own_cpu = broker.process.cpu_seconds, time.process_time()
        started = time.perf_counter()
        clients.producer(role).send_table(rows, "tables")
        took = time.perf_counter() - started
        own_cpu = time.process_time() - own_cpu
        per_million = 1e6 / scale.rows
        return [
            scale.rows / took,
            (broker.process.cpu_seconds - cpu) * per_million,
            own_cpu * per_million,
        ]

    figures = [
        Figure("messages", "msg/s", Target("value", 1e6)),
        Figure("broker's CPU for 1,000,000", "s"),
        Figure("client's CPU for 1,000,000", "s"),
    ]
    return Case(f"send_table, {scale.rows:,} rows", figures, measure, _SENDING)


# ---- pulling


def _pulls(arena: Arena, clients: Clients, scale: Scale) -> list[Case]:
    topic = "filled"

    def fill(role: Role) -> None:
        clients.queues(role, topic)
        clients.producer(role).send_table(table(scale.filled_messages), topic)

    def case(subject: str, pull: Callable[[Role], int], **more: Any) -> Case:
        def measure(role: Role) -> Sequence[float]:
            arena.once(role, topic, lambda: fill(role))
            started = time.perf_counter()
            messages = pull(role)
            return [messages / (time.perf_counter() - started)]

        return Case(subject, [Figure("messages", "msg/s", **more)], measure, _BOTH)

    def lite(size: int) -> Case:
        return case(
            f"lite pull, pull_batch_size {size:,}",
            lambda role: lite_pull(clients.name_server(role), topic, scale.filled_messages, size),
        )

    def bulk(role: Role, extensions: frozenset[Extension]) -> int:
        queues = clients.queues(role, topic)
        return bulk_pull(clients.api(extensions), clients.address(role), queues)

    return [
        *map(lite, LITE_BATCH_SIZES),
        case("bulk pull, what the broker offers", lambda role: bulk(role, frozenset(Extension))),
        case("bulk pull, without extensions", lambda role: bulk(role, NO_EXTENSIONS)),
    ]


def _waking(clients: Clients, scale: Scale) -> Case:
    def measure(role: Role) -> Sequence[float]:
        queue = clients.queues(role, "wakes")[0]
        api = clients.api(frozenset(Extension))
        took = wakes(api, clients.address(role), clients.producer(role), queue, scale.seconds)
        return [percentile(took, percent) * _MS for percent in (50, 99)]

    figures = [Figure("p50", "ms", Target("value", 0.5)), Figure("p99", "ms")]
    return Case("a held pull, from send to answer", figures, measure, _BOTH)


# ---- one process alone


def _memory(clients: Clients, scale: Scale) -> Case:
    def measure(role: Role) -> Sequence[float]:
        clients.queues(role, "held")
        return memory_per_consumer(clients.name_server(role), "held", scale.consumers)

    figures = [
        Figure("a process with one", "MB"),
        Figure("each more, in the same instance", "KiB"),
        Figure("each more, with its own", "KiB"),
    ]
    return Case(
        f"memory of lite consumers, {scale.consumers} more",
        figures,
        measure,
        (OURS,),
        is_warmed=False,
    )


def _importing() -> Case:
    def measure(_: Role) -> Sequence[float]:
        return [seconds * _MS for seconds in import_seconds()]

    figures = [
        Figure("producer and consumers", "ms", Target("value", 100.0)),
        Figure("asyncio", "ms"),
    ]
    return Case("importing", figures, measure, (OURS,), is_warmed=False)
