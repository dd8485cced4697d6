"""Starts the benchmark of the store."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from benchmarks.command_line import run_benchmark
from benchmarks.store import GIB, LIBRARIES, MESSAGES, ROUNDS, store_cases
from benchmarks.store.workspace import Workspace

_BUILD = Path(__file__).parents[2] / "build"
"""The directory of the runs, on the checkout's disk: temporary files may lie in memory."""


def _own_options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument(
        "--messages",
        type=int,
        default=MESSAGES,
        help="how many the largest log has that is read from (%(default)s)",
    )
    parser.add_argument(
        "--gib",
        type=float,
        default=GIB,
        help="how large the log of a store is that is opened (%(default)s)",
    )
    return parser


def main() -> None:
    """Measure in a directory that is removed afterwards."""
    own = _own_options()
    options, _ = own.parse_known_args()
    _BUILD.mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="bench-store-", dir=_BUILD) as directory,
        Workspace(Path(directory)) as workspace,
    ):
        cases = store_cases(workspace, options.messages, int(options.gib * (1 << 30)))
        run_benchmark("store", cases, LIBRARIES, rounds=ROUNDS, own_options=[own])


if __name__ == "__main__":
    main()
