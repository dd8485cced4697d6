"""Benchmark of filters: subscriptions applied to many messages at once and one by one.

python -m benchmarks.filter [--rounds N] [--seconds S] [--only SUBSTRING] [--json PATH]
"""

from __future__ import annotations

from benchmarks.filter import expressions
from benchmarks.harness import Case

MESSAGES = 1_000
"""The least number of messages that a pull of our own clients brings."""

LIBRARIES = ("numpy", "pyarrow")


def filter_cases(messages: int = MESSAGES) -> list[Case]:
    """Return all cases, those of a subject side by side."""
    return expressions.cases(messages)
