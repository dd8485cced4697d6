"""Starts the benchmark of growth."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.growth import measure

_BUILD = Path(__file__).parents[2] / "build"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure in a directory that is removed afterwards, and print a table."""
    parser = argparse.ArgumentParser(description="what a message costs as things grow")
    parser.add_argument("--filled", type=int, default=1_000_000, help="messages really stored")
    parser.add_argument("--rounds", type=int, default=9)
    given = parser.parse_args(arguments)
    _BUILD.mkdir(exist_ok=True)
    sys.stdout.write("                             a send   a message pulled   of a chunk\n")
    with tempfile.TemporaryDirectory(prefix="bench-growth-", dir=_BUILD) as directory:
        for kind, number, *costs in measure(Path(directory), given.filled, given.rounds):
            cells = ("" if cost is None else f"{cost:.3g}" for cost in costs)
            line = "".join(f"{cell:>16}" for cell in cells)
            sys.stdout.write(f"{number:>13,} {kind:9}{line}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
