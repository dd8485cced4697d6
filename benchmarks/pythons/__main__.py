"""Starts the benchmark of Pythons: in this process, or once more for each Python that is named."""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.pythons import measure, table

_ROOT = Path(__file__).parents[2]
_ROUNDS = 5


def main() -> None:
    """Print this Python's figures as JSON, or those of the named Pythons as a table."""
    parser = argparse.ArgumentParser(description="the same work on several Pythons")
    parser.add_argument("python", nargs="*", help="its executable; without any, this one, as JSON")
    parser.add_argument("--rounds", type=int, default=_ROUNDS, help="processes of each")
    options = parser.parse_args()
    if not options.python:
        (_ROOT / "build").mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="bench-pythons-", dir=_ROOT / "build") as directory:
            figures = measure(Path(directory))
        json.dump([platform.python_version(), figures], sys.stdout)
        return
    lowest: dict[str, tuple[str, dict[str, float]]] = {}
    for _ in range(options.rounds):
        for python in options.python:
            version, figures = _ask(python)
            known = lowest.get(python, (version, figures))[1]
            lowest[python] = version, {name: min(us, known[name]) for name, us in figures.items()}
    versions, figures_of = zip(*lowest.values(), strict=True)
    sys.stdout.write(f"microseconds of processor time, lowest of {options.rounds} processes\n")
    sys.stdout.write(f"{table(versions, figures_of)}\n")


def _ask(python: str) -> tuple[str, dict[str, float]]:
    command = [*python.split(), "-m", "benchmarks.pythons"]
    run = subprocess.run(command, cwd=_ROOT, stdout=subprocess.PIPE, text=True, check=True)  # noqa: S603  # the user named it
    version, figures = json.loads(run.stdout)
    return version, figures


if __name__ == "__main__":
    main()
