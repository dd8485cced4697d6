"""Starts the benchmark of a broker's turns."""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.command_line import run_benchmark
from benchmarks.turns import LIBRARIES, Turns, turn_cases

_BUILD = Path(__file__).parents[2] / "build"


def main() -> None:
    """Measure in a directory that is removed afterwards."""
    _BUILD.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-turns-", dir=_BUILD) as directory:
        turns = Turns(Path(directory))
        try:
            run_benchmark("turns", turn_cases(turns), LIBRARIES)
        finally:
            turns.shutdown()


if __name__ == "__main__":
    main()
