"""Figures: what a case measures on each side, and how rounds are combined.

Speeds are better when they are higher; times and sizes when they are lower. A ratio is always how
many times as good as the peer, within each round.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

OURS, OURS_SYNC, PEER = "ours", "ours, sync flush", "peer"
"""The roles of the sides; the second is not compared with the third, which syncs no disk."""

Role = str
Rounds = Mapping[Role, Sequence[float]]


@dataclass(frozen=True)
class Target:
    """The goal for our side: a value, or a ratio to the peer."""

    quantity: Literal["value", "ratio"]
    bound: float


@dataclass(frozen=True)
class Figure:
    """One number of a case."""

    name: str
    unit: str
    target: Target | None = None

    @property
    def is_speed(self) -> bool:
        """True if more is better."""
        return self.unit.endswith("/s")


@dataclass(frozen=True)
class Result:
    """The values of a figure for each side in each round."""

    subject: str
    figure: Figure
    rounds: Rounds

    def median(self, role: Role) -> float | None:
        """Return the median of a side's rounds, or None if it was not measured."""
        values = self.rounds.get(role)
        return statistics.median(values) if values else None

    def spread(self, role: Role) -> float:
        """Return the distance of the quartiles, as a part of the median."""
        values = self.rounds[role]
        if len(values) == 1 or not statistics.median(values):
            return 0.0
        first, _, third = statistics.quantiles(values, n=4, method="inclusive")
        return (third - first) / abs(statistics.median(values))

    @property
    def ratio(self) -> float | None:
        """The median of the rounds' ratios to the peer; above 1 is better than the peer."""
        pairs = zip(self.rounds[OURS], self.rounds.get(PEER, ()), strict=False)
        ratios = [self._better(ours, theirs) for ours, theirs in pairs if ours > 0 and theirs > 0]
        return statistics.median(ratios) if ratios else None

    @property
    def share(self) -> float | None:
        """The part of the target that is reached; None without a target or a peer."""
        target = self.figure.target
        if target is None:
            return None
        if target.quantity == "ratio":
            return None if self.ratio is None else self.ratio / target.bound
        return self._better(statistics.median(self.rounds[OURS]), target.bound)

    def _better(self, ours: float, theirs: float) -> float:
        """Return how many times as good ours is; infinite if ours is too small to measure."""
        if self.figure.is_speed:
            return ours / theirs
        return theirs / ours if ours > 0 else float("inf")


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Return the smallest value that so many percent of the ordered ones do not exceed."""
    at = -(-len(ordered) * percent // 100) - 1
    return ordered[max(0, int(at))]
