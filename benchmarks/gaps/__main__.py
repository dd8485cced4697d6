"""Starts the benchmark of the loop's longest turns: ``python -m benchmarks.gaps [--quick]``."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from benchmarks.gaps import LIBRARIES, gaps
from benchmarks.gaps.asked import QUICK, Scale
from benchmarks.gaps.measured import MeasuredBroker
from benchmarks.machine import describe_machine, load_average
from benchmarks.report import describe_conditions

_BUILD = Path(__file__).parents[2] / "build"


def main() -> None:
    """Print the longest turn of each kind as soon as it is measured."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.gaps", description="See benchmarks/README.md"
    )
    parser.add_argument(
        "--quick", action="store_true", help="as little as possible; the figures mean nothing"
    )
    scale = QUICK if parser.parse_args().quick else Scale()
    machine = describe_machine(LIBRARIES)
    machine["load_average_before"] = load_average()
    _BUILD.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-gaps-", dir=_BUILD) as directory:
        broker = MeasuredBroker(Path(directory))
        try:
            print(f"{'the longest turn of the loop, ms':<70} {'CPU':>8} {'wall':>8} {'in all':>8}")
            for _, name, gap in gaps(broker, scale):
                print(
                    f"{name:<70} {gap.cpu_ms:8.1f} {gap.wall_ms:8.1f} {gap.whole_ms:8.0f}",
                    flush=True,
                )
        finally:
            broker.shutdown()
    machine["load_average_after"] = load_average()
    print(f"\n{describe_conditions(machine)}")


if __name__ == "__main__":
    main()
