"""How long it takes until the client can be used: importing it, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from functools import partial

from benchmarks.harness import Case, Target

_SUBJECT = "start of Python, and importing"


def cases() -> list[Case]:
    """Python alone, and with the client."""
    return [
        Case(_SUBJECT, "nothing", partial(_run, "pass"), 1, unit="start", prepare=_nothing),
        Case(
            _SUBJECT,
            "the producer",
            partial(_run, "from rmq_spark.client import Producer"),
            1,
            unit="start",
            prepare=_nothing,
            target=Target("microseconds", 120_000),
        ),
    ]


def _run(script: str) -> None:
    subprocess.run([sys.executable, "-c", script], check=True)  # noqa: S603  # our own


def _nothing() -> None:
    """A start can be repeated, but costs too much to be calibrated."""
