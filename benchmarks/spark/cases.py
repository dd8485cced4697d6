"""Cases of the Spark benchmark: what each side's Spark does, and the resulting figures.

Targets are the project's goals relative to Kafka in the same run.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from benchmarks.broker.cases import Case
from benchmarks.broker.figures import OURS, PEER, Figure, Role, Target, percentile
from benchmarks.spark.sides import RunningSide, SparkSide

FROM_ROCKETMQ = "ours, from RocketMQ"
"""The role of our source and sink with a RocketMQ broker, shown without a comparison."""

READY_MADE = "any Python source"
"""The role of a source that returns the same rows ready-made, and of a sink that drops them."""

_ALL = (OURS, FROM_ROCKETMQ, PEER)
_WITH_READY_MADE = (*_ALL, READY_MADE)
CPU_ROWS = 1_000_000
"""The rows for which processor time is given, comparable where machines are not."""

_ADD_BATCH = Target("ratio", 2.0)
_WRITTEN = Target("ratio", 1.0)
_CPU = f"CPU for {CPU_ROWS:,}"
_CPU_FIGURES = (Figure(_CPU, "s", Target("ratio", 1.0)), Figure("of it the broker's", "s"))
_SMALL, _LARGE = 100, 1_000
_SETTLE_SECONDS = 5.0
_WARMING_MESSAGES = 400


@dataclass(frozen=True)
class Scale:
    """The durations and sizes of a run."""

    rows: int = 6_000_000
    """The rows of 100 B that are read; of 1 KB a third as many are read."""
    rocketmq_rows: int = 600_000
    written_rows: int = 1_000_000
    """The rows of 100 B that are written; of the others a third as many."""
    seconds: float = 30.0
    """The seconds of sending for latencies, and the seconds of idling."""


QUICK = Scale(rows=30_000, rocketmq_rows=3_000, written_rows=3_000, seconds=2.0)
"""A scale to see that every case works; its figures mean nothing."""


class Arena:
    """The sides of the comparison; each starts when first requested, and all end together."""

    def __init__(self, directory: Path, sides: Mapping[Role, SparkSide]) -> None:
        """Take an existing directory and the sides."""
        self.sides = sides
        self._directory = directory
        self._ending = ExitStack()
        self._running: dict[Role, RunningSide] = {}
        self._filled: set[tuple[Role, str]] = set()

    def side(self, role: Role) -> RunningSide:
        """Return the side that has this role, started if need be."""
        if role not in self._running:
            directory = self._directory / str(len(self._running))
            directory.mkdir()
            self._running[role] = self.sides[role].start(directory, self._ending)
        return self._running[role]

    def filled(self, role: Role, topic: str, messages: int, body_bytes: int) -> RunningSide:
        """Return the side with a topic of so many messages."""
        side = self.side(role)
        if (role, topic) not in self._filled:
            side.fill(topic, messages, body_bytes)
            self._filled.add((role, topic))
        return side

    def __enter__(self) -> Arena:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ending.close()


def spark_cases(arena: Arena, scale: Scale) -> list[Case]:
    """Return all cases, in the order of the report."""
    written = {"100 B": scale.written_rows} | dict.fromkeys(
        ("1 KB", "varied rows"), scale.written_rows // 3
    )
    return [
        *_ingest_cases(arena, scale, "100 B", _SMALL, scale.rows, 1.6, 0.85),
        *_ingest_cases(arena, scale, "1 KB", _LARGE, scale.rows // 3, 1.5, 2.2),
        _latency_case(arena, scale),
        _idle_case(arena, scale),
        *(
            case
            for kind, rows in written.items()
            for case in (_write_case(arena, kind, rows), _write_stream_case(arena, kind, rows))
        ),
    ]


def _ingest_cases(
    arena: Arena,
    scale: Scale,
    size: str,
    body_bytes: int,
    rows: int,
    whole_query: float,
    cpu_seconds: float,
) -> list[Case]:
    """Return the cases of one size: with the default columns, and with the bodies alone.

    The targets, a ratio for the whole query and the CPU, are those of the default columns.
    """

    def measure(role: Role, *, bodies_alone: bool) -> Sequence[float]:
        messages = min(rows, scale.rocketmq_rows) if role == FROM_ROCKETMQ else rows
        topic = f"ingest-{body_bytes}"
        side = arena.filled(role, topic, messages, body_bytes)
        # Spark ends Python workers that have had nothing to do for a minute: the next have to
        # import first.
        arena.filled(role, "warming", _WARMING_MESSAGES, body_bytes).ask("ingest", topic="warming")
        began = side.cpu_seconds
        answer = side.ask("ingest", topic=topic, bodies_alone=bodies_alone)
        cpu = _cpu_since(began, side, messages)
        if answer["rows"] != messages:
            raise ValueError(f"{role}: {answer['rows']:,} rows of {messages:,} messages")
        return *_rates(answer), cpu

    default = (
        *_rate_figures(_ADD_BATCH, Target("ratio", whole_query)),
        Figure(_CPU, "s", Target("value", cpu_seconds)),
    )
    bodies = (*_rate_figures(None, None), Figure(_CPU, "s"))
    return [
        Case(
            f"ingest, AvailableNow, {size}{name}",
            figures,
            partial(measure, bodies_alone=bodies_alone),
            _WITH_READY_MADE,
        )
        for name, figures, bodies_alone in (
            ("", default, False),
            (", bodies alone", bodies, True),
        )
    ]


def _latency_case(arena: Arena, scale: Scale) -> Case:
    def measure(role: Role) -> Sequence[float]:
        took = arena.side(role).ask("latency", topic="latency", seconds=scale.seconds)
        return [percentile(took, percent) / 1e3 for percent in (50, 95)]

    figures = (Figure("p50", "s", Target("value", 0.2)), Figure("p95", "s"))
    return Case(
        "send to foreachBatch, a message now and then", figures, measure, _ALL, is_warmed=False
    )


def _idle_case(arena: Arena, scale: Scale) -> Case:
    def measure(role: Role) -> Sequence[float]:
        side = arena.side(role)
        side.ask("start_idling", topic="idle")
        time.sleep(min(_SETTLE_SECONDS, scale.seconds))
        driver, broker = side.driver_cpu_seconds, side.broker_cpu_seconds
        time.sleep(scale.seconds)
        driver, broker = side.driver_cpu_seconds - driver, side.broker_cpu_seconds - broker
        side.ask("stop_idling")
        return driver, broker, driver + broker

    return Case(
        f"an idle query, CPU in {scale.seconds:g} s",
        (Figure("driver", "s"), Figure("broker", "s"), Figure("both", "s", Target("ratio", 5.0))),
        measure,
        _ALL,
        is_warmed=False,
    )


def _write_case(arena: Arena, kind: str, rows: int) -> Case:
    def measure(role: Role) -> Sequence[float]:
        answer, *cpu = _written(arena.side(role), "write", kind, rows)
        return answer["rows"] / answer["seconds"], *cpu

    figures = (Figure("whole write", "rows/s", _WRITTEN), *_CPU_FIGURES)
    return Case(f"a batch written, {kind}", figures, measure, _WITH_READY_MADE)


def _write_stream_case(arena: Arena, kind: str, rows: int) -> Case:
    def measure(role: Role) -> Sequence[float]:
        answer, *cpu = _written(arena.side(role), "write_stream", kind, rows)
        return *_rates(answer), *cpu

    figures = (*_rate_figures(_WRITTEN, None), *_CPU_FIGURES)
    return Case(f"a stream written, {kind}", figures, measure, _WITH_READY_MADE)


def _written(side: RunningSide, what: str, kind: str, rows: int) -> tuple[Any, float, float]:
    """Write rows; return the response and the CPU times, of all and of the broker.

    A few rows warm up, as in ingest.
    """
    side.ask("write", topic="written", rows=_WARMING_MESSAGES, kind=kind)
    began, broker_began = side.cpu_seconds, side.broker_cpu_seconds
    answer = side.ask(what, topic="written", rows=rows, kind=kind)
    per_row = CPU_ROWS / answer["rows"]
    cpu = (side.cpu_seconds - began) * per_row
    return answer, cpu, (side.broker_cpu_seconds - broker_began) * per_row


def _cpu_since(began: float, side: RunningSide, rows: int) -> float:
    return (side.cpu_seconds - began) / rows * CPU_ROWS


def _rate_figures(add_batch: Target | None, whole_query: Target | None) -> Sequence[Figure]:
    return Figure("addBatch", "rows/s", add_batch), Figure("whole query", "rows/s", whole_query)


def _rates(answer: Mapping[str, Any]) -> Sequence[float]:
    return answer["rows"] / answer["add_batch_seconds"], answer["rows"] / answer["seconds"]
