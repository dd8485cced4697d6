"""Cases of the broker benchmark: what is done to each side's broker, and the resulting figures.

Targets are the project's goals on two cores; where a peer is named, they are relative to the peer
in the same run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.broker.arena import Arena
from benchmarks.broker.figures import OURS, OURS_SYNC, PEER, Figure, Role, Target, percentile
from benchmarks.broker.holding import measure_held_pulls
from benchmarks.broker.waking import measure_wakes

BODY_BYTES = 100
ASYNC_WINDOW = 1_000
BATCH = 100
PUSHES_PER_SECOND = 200
PUSH_TIMES = 3
"""The factor by which this case runs longer: its percentiles need many messages."""

CPU_UNITS = 100_000
"""The messages for which processor time is given, comparable where machines are not."""

_FILLED = "filled"
_PULL_BATCH_SIZES = (10, 32)  # the first is the client's default
_ALL = (OURS, OURS_SYNC, PEER)
_ASYNC_FLUSH = (OURS, PEER)
_MEGABYTE = 1e6
_MEGABYTES_MAX = 80.0
_CPU_RATIO = 2.0
"""The target of the broker's CPU for a message: half of the peer's at most."""

_KIB = 1_024


@dataclass(frozen=True)
class Scale:
    """The durations and sizes of a run."""

    seconds: float = 2.0
    filled_messages: int = 200_000
    varied_messages: int = 100_000
    held: tuple[int, ...] = (1_000, 10_000)
    idle_seconds: float = 10.0


QUICK = Scale(
    seconds=0.2, filled_messages=2_000, varied_messages=2_000, held=(50,), idle_seconds=0.2
)
"""A scale to see that every case works; its figures mean nothing."""


@dataclass(frozen=True)
class Case:
    """A comparison: ``measure`` does it once to the broker of a role, with a value for each figure.

    A case that ``is_warmed`` runs once more beforehand on each side, untimed: clients and broker,
    if they are JVMs, compile themselves while they run.
    """

    subject: str
    figures: Sequence[Figure]
    measure: Callable[[Role], Sequence[float]]
    roles: Sequence[Role] = _ALL
    is_warmed: bool = True


def broker_cases(arena: Arena, scale: Scale) -> list[Case]:
    """Return all cases, or those that need no Java clients if there are none."""
    java = [*_send_cases(arena, scale), *_lite_pull_cases(arena, scale), _push_case(arena, scale)]
    return [
        *(java if arena.has_java_clients else ()),
        _wake_case(arena, scale),
        *(_held_pulls_case(arena, count, scale.idle_seconds) for count in scale.held),
        _start_case(arena),
    ]


def _send_cases(arena: Arena, scale: Scale) -> list[Case]:
    def case(subject: str, load: str, ratio: float, **fields: Any) -> Case:
        def measure(role: Role) -> Sequence[float]:
            topic = subject.replace(",", "").replace(" ", "-")
            return _measure_rate(
                arena,
                role,
                load,
                topic=topic,
                seconds=scale.seconds,
                bodyBytes=BODY_BYTES,
                **fields,
            )

        return Case(subject, _rate_figures(ratio), measure)

    return [
        case("Java sync send, 1 thread", "send", 1.5, threads=1),
        case("Java sync send, 16 threads", "send", 1.5, threads=16),
        case(
            f"Java async send, {ASYNC_WINDOW} outstanding",
            "send asynchronously",
            1.5,
            window=ASYNC_WINDOW,
        ),
        case(f"Java batches of {BATCH}, 1 thread", "send batches", 1.5, threads=1, batch=BATCH),
        case(
            f"Java batches of {BATCH}, a tag and a key each",
            "send batches",
            1.5,
            threads=1,
            batch=BATCH,
            tagged=True,
        ),
        case("varied Java sync send, 16 threads", "send", 1.5, threads=16, varied=True),
        case(
            f"varied Java async send, {ASYNC_WINDOW} outstanding",
            "send asynchronously",
            1.5,
            window=ASYNC_WINDOW,
            varied=True,
        ),
        case(
            f"varied Java batches of {BATCH}, 1 thread",
            "send batches",
            1.5,
            threads=1,
            batch=BATCH,
            varied=True,
        ),
    ]


def _rate_figures(ratio: float) -> Sequence[Figure]:
    return (
        Figure("messages", "msg/s", Target("ratio", ratio)),
        Figure(f"broker's CPU for {CPU_UNITS:,}", "s", Target("ratio", _CPU_RATIO)),
        Figure("broker's anonymous memory", "MB", Target("value", _MEGABYTES_MAX)),
    )


def _measure_rate(arena: Arena, role: Role, load: str, **fields: Any) -> Sequence[float]:
    broker = arena.broker(role)
    java = arena.load()
    cpu_before = broker.process.cpu_seconds
    answer = java.ask(load, nameServer=broker.name_server, **fields)
    cpu = broker.process.cpu_seconds - cpu_before
    messages = answer["messages"]
    memory = broker.process.anonymous_bytes / _MEGABYTE
    return messages / answer["seconds"], cpu / messages * CPU_UNITS, memory


def _lite_pull_cases(arena: Arena, scale: Scale) -> list[Case]:
    """Return the cases of pulls, for which the kind of flush does not matter."""

    def case(size: int, *, varied: bool = False) -> Case:
        topic = f"varied-{_FILLED}" if varied else _FILLED
        messages = scale.varied_messages if varied else scale.filled_messages

        def fill(role: Role) -> None:
            arena.load().ask(
                "fill",
                nameServer=arena.broker(role).name_server,
                topic=topic,
                messages=messages,
                batch=BATCH,
                bodyBytes=BODY_BYTES,
                varied=varied,
            )

        def measure(role: Role) -> Sequence[float]:
            arena.once(role, topic, lambda: fill(role))
            fields = {"topic": topic, "messages": messages, "pullBatchSize": size}
            return _measure_rate(arena, role, "lite pull", **fields)

        subject = f"{'varied ' * varied}Java lite pull, pullBatchSize {size}"
        return Case(subject, _rate_figures(1.3), measure, _ASYNC_FLUSH)

    return [
        *(case(size) for size in _PULL_BATCH_SIZES),
        *(case(size, varied=True) for size in _PULL_BATCH_SIZES),
    ]


def _push_case(arena: Arena, scale: Scale) -> Case:
    def measure(role: Role) -> Sequence[float]:
        answer = arena.load().ask(
            "push",
            nameServer=arena.broker(role).name_server,
            topic="push",
            perSecond=PUSHES_PER_SECOND,
            seconds=scale.seconds * PUSH_TIMES,
            bodyBytes=BODY_BYTES,
        )
        return [percentile(answer["microseconds"], percent) / 1e3 for percent in (50, 95, 99)]

    return Case(
        f"Java push consumer, send to listener, {PUSHES_PER_SECOND} a second",
        (
            Figure("p50", "ms", Target("value", 0.7)),
            Figure("p95", "ms", Target("value", 4.0)),
            Figure("p99", "ms"),
        ),
        measure,
    )


def _wake_case(arena: Arena, scale: Scale) -> Case:
    def measure(role: Role) -> Sequence[float]:
        took = measure_wakes(arena.broker(role).port, scale.seconds)
        return [percentile(took, percent) for percent in (50, 99)]

    return Case(
        "a held pull, from send to answer", (Figure("p50", "ms"), Figure("p99", "ms")), measure
    )


def _held_pulls_case(arena: Arena, count: int, idle_seconds: float) -> Case:
    def measure(role: Role) -> Sequence[float]:
        spare = 100
        with arena.new_broker(role, clients_max=count + spare) as (broker, directory):
            held = measure_held_pulls(broker, count, idle_seconds, directory)
        return held.rss_bytes_per_pull / _KIB, held.idle_cpu * 100, *held.wake_ms

    return Case(
        f"{count:,} held pulls",
        (
            Figure("memory of each", "KiB", Target("value", 8.0)),
            Figure("CPU while nothing comes", "%", Target("value", 1.0)),
            Figure("one message, p50 of answers", "ms"),
            Figure("one message, p99 of answers", "ms", Target("value", 500.0)),
            Figure("one message, last answer", "ms"),
        ),
        measure,
        _ASYNC_FLUSH,
        is_warmed=False,
    )


def _start_case(arena: Arena) -> Case:
    def measure(role: Role) -> Sequence[float]:
        with arena.new_broker(role) as (broker, _):
            return broker.start_seconds, broker.rss_bytes / _MEGABYTE

    return Case(
        "start, until a route is answered",
        (
            Figure("from exec", "s", Target("value", 0.3)),
            Figure("memory then", "MB", Target("value", _MEGABYTES_MAX)),
        ),
        measure,
        _ASYNC_FLUSH,
        is_warmed=False,
    )
