"""Cases of the client benchmark: what our client does at each side's broker, and the figures."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from typing import Any

from benchmarks.broker.arena import Arena
from benchmarks.broker.cases import CPU_UNITS, Case
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
    varied_batches: int = 1_000
    consumers: int = 20


QUICK = Scale(seconds=0.1, rows=2_000, filled_messages=2_000, varied_batches=20, consumers=2)
"""A scale to see that every case works; its figures mean nothing."""


def client_cases(arena: Arena, scale: Scale) -> list[Case]:
    """Return all cases, or those that need no Java clients if there are none."""
    clients = Clients(arena)
    java = [_java_batches(arena, scale, varied=varied) for varied in (False, True)]
    return [
        *_sends(clients, scale),
        *(java if arena.has_java_clients else ()),
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
    topic = subject.partition(",")[0].replace(" ", "-")

    def send_for_some_time(role: Role) -> int:
        sent = 0
        started = time.perf_counter()
        while time.perf_counter() - started < seconds or not sent:
            sent += send(role, topic)
        return sent

    def measure(role: Role) -> Sequence[float]:
        clients.queues(role, topic)
        return _measured(clients, role, lambda: send_for_some_time(role))

    return Case(subject, _figures(), measure, _SENDING)


def _figures(units: int = CPU_UNITS, **more: Any) -> Sequence[Figure]:
    return [
        Figure("messages", "msg/s", **more),
        Figure(f"broker's CPU for {units:,}", "s"),
        Figure(f"client's CPU for {units:,}", "s"),
    ]


def _measured(
    clients: Clients, role: Role, work: Callable[[], int], units: int = CPU_UNITS
) -> Sequence[float]:
    """Return the messages a second of some work, and the CPU of broker and client for ``units``."""
    process = clients.broker(role).process
    cpu, own_cpu = process.cpu_seconds, time.process_time()
    started = time.perf_counter()
    messages = work()
    took = time.perf_counter() - started
    own_cpu = time.process_time() - own_cpu
    cpu = process.cpu_seconds - cpu
    return [messages / took, cpu / messages * units, own_cpu / messages * units]


def _java_batches(arena: Arena, scale: Scale, *, varied: bool) -> Case:
    kind = "varied batches" if varied else "batches"

    def measure(role: Role) -> Sequence[float]:
        process = arena.broker(role).process
        cpu = process.cpu_seconds
        answer = arena.load().ask(
            "send batches",
            nameServer=arena.broker(role).name_server,
            topic=f"java-{kind.replace(' ', '-')}",
            seconds=scale.seconds,
            bodyBytes=100,
            threads=1,
            batch=JAVA_BATCH,
            varied=varied,
        )
        messages = answer["messages"]
        cpu = process.cpu_seconds - cpu
        return [messages / answer["seconds"], cpu / messages * CPU_UNITS]

    return Case(f"Java's producer, {kind} of {JAVA_BATCH}", _figures()[:2], measure, _SENDING)


def _table(clients: Clients, scale: Scale) -> Case:
    rows = table(scale.rows)

    def measure(role: Role) -> Sequence[float]:
        clients.queues(role, "tables")
        producer = clients.producer(role)

        def send() -> int:
            producer.send_table(rows, "tables")
            return scale.rows

        return _measured(clients, role, send, 1_000_000)

    figures = _figures(1_000_000, target=Target("value", 1e6))
    return Case(f"send_table, {scale.rows:,} rows", figures, measure, _SENDING)


# ---- pulling


def _pulls(arena: Arena, clients: Clients, scale: Scale) -> list[Case]:
    topic, varied_topic = "filled", "varied-filled"

    def fill(role: Role, into: str) -> None:
        clients.queues(role, into)
        producer = clients.producer(role)
        if into == topic:
            producer.send_table(table(scale.filled_messages), into)
            return
        varied = varied_messages(into, BATCH)
        for _ in range(scale.varied_batches):
            producer.send_batch(varied)

    def case(subject: str, pull: Callable[[Role], int], filled: str = topic, **more: Any) -> Case:
        def measure(role: Role) -> Sequence[float]:
            arena.once(role, filled, lambda: fill(role, filled))
            return _measured(clients, role, lambda: pull(role))

        return Case(subject, _figures(**more), measure, _BOTH)

    def lite(size: int) -> Case:
        return case(
            f"lite pull, pull_batch_size {size:,}",
            lambda role: lite_pull(clients.name_server(role), topic, scale.filled_messages, size),
        )

    def varied_lite(role: Role) -> int:
        count = scale.varied_batches * BATCH
        return lite_pull(clients.name_server(role), varied_topic, count, LITE_BATCH_SIZES[1])

    def bulk(role: Role, extensions: frozenset[Extension]) -> int:
        queues = clients.queues(role, topic)
        return bulk_pull(clients.api(extensions), clients.address(role), queues)

    return [
        *map(lite, LITE_BATCH_SIZES),
        case(f"varied lite pull, pull_batch_size {LITE_BATCH_SIZES[1]}", varied_lite, varied_topic),
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
