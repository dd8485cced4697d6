"""Measures cases against each other: repeated, interleaved, calibrated.

Why our own and not pyperf, pytest-benchmark or asv: what we ask is nearly always "how many times as
fast as that one?", on machines whose speed changes from second to second. That takes both sides in
the same second, round by round, and the ratio within each round. pyperf and pytest-benchmark finish
one benchmark before they start the next, and compare two independent sets of values afterwards; asv
can interleave, by whole processes, but compares commits and not cases. None of them reports
messages per second beside a target, or takes in what a load generator in another process has
measured. What they would save us is the hundred lines below; we give up pyperf's many worker
processes, which even out what differs from one start of Python to the next: run a benchmark twice
for that.

This module knows neither files nor what is measured. It prints nothing: `report` does.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from math import ceil
from typing import Literal

ROUNDS = 9
ROUND_SECONDS = 0.05
"""Seconds of a round: long compared with timer interrupts, short compared with changes of the
machine's speed.
"""

_GROWTH_MAX = 10.0
_MARGIN = 1.1  # calibrating aims a little beyond the round's length, so as not to creep towards it
_CLOCK_TICK = 1e-9

Clock = Callable[[], float]


@dataclass(frozen=True)
class Target:
    """The goal of a case: at most these microseconds, or at least this speed or ratio."""

    quantity: Literal["per_second", "bytes_per_second", "microseconds", "ratio"]
    bound: float

    def is_reached(self, result: Result) -> bool:
        """Return whether the result's median is on the right side of the bound."""
        value = getattr(result, self.quantity)
        return bool(value <= self.bound if self.quantity == "microseconds" else value >= self.bound)


@dataclass(frozen=True)
class Case:
    """One way (``variant``) of doing something (``subject``).

    ``run`` does ``units_per_run`` units of it. The peer is another variant of the same subject.

    An action that cannot be done twice in a row, such as opening a store after a crash, has a
    ``prepare``, which is called before each run and not timed. Such a case runs once a round, with
    no other warm-up.
    """

    subject: str
    variant: str
    run: Callable[[], object]
    units_per_run: int
    unit: str = "msg"
    peer: str | None = None
    target: Target | None = None
    bytes_per_unit: float = 0.0
    prepare: Callable[[], object] | None = None

    @property
    def name(self) -> str:
        """The name, unique within a run."""
        return f"{self.subject}: {self.variant}"

    @property
    def peer_name(self) -> str | None:
        """The name of the case that this one is compared with."""
        return None if self.peer is None else f"{self.subject}: {self.peer}"


@dataclass(frozen=True)
class Result:
    """The result of a case: the seconds per unit of every round, and the peer's divided by them."""

    case: Case
    rounds: tuple[float, ...]
    ratios: tuple[float, ...] = ()

    @property
    def microseconds(self) -> float:
        """The microseconds per unit, in the median round."""
        return statistics.median(self.rounds) * 1e6

    @property
    def per_second(self) -> float:
        """Units per second, in the median round."""
        return 1 / statistics.median(self.rounds)

    @property
    def bytes_per_second(self) -> float:
        """Bytes per second in the median round; 0 if the size of a unit is not given."""
        return self.per_second * self.case.bytes_per_unit

    @property
    def quartiles(self) -> tuple[float, float]:
        """The microseconds between which the middle half of the rounds lies."""
        if len(self.rounds) == 1:
            return self.microseconds, self.microseconds
        first, _, third = statistics.quantiles(self.rounds, n=4, method="inclusive")
        return first * 1e6, third * 1e6

    @property
    def spread(self) -> float:
        """The distance of the quartiles, as a part of the median."""
        first, third = self.quartiles
        return (third - first) / self.microseconds

    @property
    def ratio(self) -> float | None:
        """The median of the rounds' ratios to the peer; 2 means twice as fast."""
        return statistics.median(self.ratios) if self.ratios else None


def measure(
    cases: Sequence[Case],
    rounds: int = ROUNDS,
    seconds: float = ROUND_SECONDS,
    clock: Clock = time.perf_counter,
) -> list[Result]:
    """Run every case once per round, in order, each for at least ``seconds`` if it can repeat."""
    check_peers(cases)
    loops = [1 if case.prepare else calibrate(case.run, seconds, clock) for case in cases]
    times: dict[str, list[float]] = {case.name: [] for case in cases}
    for _ in range(rounds):
        for case, count in zip(cases, loops, strict=True):
            # The collector stays on, as where the code is used; but each case pays for its own
            # garbage.
            gc.collect()
            # The other cases have emptied the caches, and the allocator has given its pages back:
            # the next run may take three times as long as those behind it, and long runs come few
            # to a round.
            warm_up = case.prepare or case.run
            warm_up()
            times[case.name].append(
                time_loops(case.run, count, clock) / (count * case.units_per_run)
            )
    return compare(cases, times)


def compare(cases: Sequence[Case], times: Mapping[str, Sequence[float]]) -> list[Result]:
    """Return results from the seconds per unit of each case's rounds, wherever measured."""
    results = []
    for case in cases:
        own = times[case.name]
        ratios: tuple[float, ...] = ()
        if case.peer_name is not None:
            pairs = zip(times[case.peer_name], own, strict=True)
            ratios = tuple(theirs / ours for theirs, ours in pairs)
        results.append(Result(case, tuple(own), ratios))
    return results


def calibrate(run: Callable[[], object], seconds: float, clock: Clock = time.perf_counter) -> int:
    """Return how many runs take at least this many seconds."""
    loops = 1
    while (elapsed := time_loops(run, loops, clock)) < seconds:
        growth = min(_MARGIN * seconds / max(elapsed, _CLOCK_TICK), _GROWTH_MAX)
        loops = ceil(loops * growth)
    return loops


def time_loops(run: Callable[[], object], loops: int, clock: Clock = time.perf_counter) -> float:
    """Return the seconds that so many runs take."""
    runs = repeat(None, loops)
    started = clock()
    for _ in runs:
        run()
    return clock() - started


def select(cases: Sequence[Case], substring: str) -> list[Case]:
    """Return the cases whose names contain the substring, and the peers of these."""
    chosen = {case.name for case in cases if substring in case.name}
    peers = {case.peer_name for case in cases if case.name in chosen}
    return [case for case in cases if case.name in chosen | peers]


def check_peers(cases: Sequence[Case]) -> None:
    """Refuse two cases of one name, and peers that are not measured."""
    names = [case.name for case in cases]
    for case in cases:
        if names.count(case.name) > 1:
            raise ValueError(f"two cases are called {case.name!r}")
        if case.peer_name is not None and case.peer_name not in names:
            raise ValueError(f"{case.name!r} has a peer that is not measured: {case.peer_name!r}")
        quantity = case.target.quantity if case.target is not None else None
        if quantity == "ratio" and case.peer is None:
            raise ValueError(f"{case.name!r} has a ratio to reach, and no peer")
        if quantity == "bytes_per_second" and not case.bytes_per_unit:
            raise ValueError(f"{case.name!r} has bytes to reach, and its units have none")
