"""Starts the benchmark of an honest client beside abuse: ``python -m benchmarks.abuse``."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.abuse import ABUSES, COLUMNS, LIBRARIES, compare, row_of
from benchmarks.machine import describe_machine, load_average
from benchmarks.report import aligned, describe_conditions

_BUILD = Path(__file__).parents[2] / "build"


def main() -> None:
    """Measure each abuse beside calm, and print the table."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.abuse", description="See benchmarks/README.md"
    )
    parser.add_argument(
        "--requests", type=int, default=300, help="how often each is asked (%(default)s)"
    )
    parser.add_argument(
        "--seconds", type=float, default=2.0, help="when to end earlier (%(default)s)"
    )
    parser.add_argument("--only", default="", metavar="NAME", help="one abuse, such as S3")
    parser.add_argument("--json", type=Path, default=_BUILD / "bench" / "abuse.json")
    options = parser.parse_args()
    machine = describe_machine(LIBRARIES)
    machine["load_average_before"] = load_average()
    _BUILD.mkdir(exist_ok=True)
    rows: list[Sequence[str]] = [COLUMNS]
    results = []
    for abuse in ABUSES:
        if options.only not in ("", abuse.name):
            continue
        rows.append((f"{abuse.name}: {abuse.what}",))
        with tempfile.TemporaryDirectory(prefix="bench-abuse-", dir=_BUILD) as directory:
            for compared in compare(abuse, Path(directory), options.requests, options.seconds):
                rows.append(row_of(compared))
                results.append(asdict(compared))
    machine["load_average_after"] = load_average()
    print("processor time of the broker until an answer, in microseconds; ratios to calm\n")
    print(f"{aligned(rows, {'honest request'})}\n\n{describe_conditions(machine)}")
    options.json.parent.mkdir(parents=True, exist_ok=True)
    report = {"benchmark": "abuse", "machine": machine, "results": results}
    options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
