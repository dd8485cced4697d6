"""Starts the benchmark of growth."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.growth import measure
from benchmarks.machine import describe_machine, load_average
from benchmarks.turns import LIBRARIES

_BUILD = Path(__file__).parents[2] / "build"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure in a directory that is removed afterwards, and print a table."""
    parser = argparse.ArgumentParser(description="what a message costs as things grow")
    parser.add_argument("--filled", type=int, default=1_000_000, help="messages really stored")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path, help="file to which to write the figures as well")
    given = parser.parse_args(arguments)
    _BUILD.mkdir(exist_ok=True)
    machine = {**describe_machine(LIBRARIES), "load_average_before": load_average()}
    results = []
    sys.stdout.write("                             a send   a message pulled   of a chunk\n")
    with tempfile.TemporaryDirectory(prefix="bench-growth-", dir=_BUILD) as directory:
        for growth in measure(Path(directory), given.filled, given.rounds):
            results.append(growth._asdict())
            costs = (growth.send_us, growth.pulled_us, growth.chunk_us)
            cells = ("" if cost is None else f"{cost:.3g}" for cost in costs)
            line = "".join(f"{cell:>16}" for cell in cells)
            sys.stdout.write(f"{growth.number:>13,} {growth.kind:9}{line}\n")
            sys.stdout.flush()
    if given.json:
        machine["load_average_after"] = load_average()
        report = {"benchmark": "growth", "machine": machine, "results": results}
        given.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
