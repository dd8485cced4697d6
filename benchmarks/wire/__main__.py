"""Starts the benchmark of the wire."""

from __future__ import annotations

from benchmarks.command_line import run_benchmark
from benchmarks.wire import LIBRARIES, wire_cases

if __name__ == "__main__":
    run_benchmark("wire", wire_cases(), LIBRARIES)
