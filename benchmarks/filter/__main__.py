"""Starts the benchmark of filters."""

from __future__ import annotations

from benchmarks.command_line import run_benchmark
from benchmarks.filter import LIBRARIES, filter_cases

if __name__ == "__main__":
    run_benchmark("filter", filter_cases(), LIBRARIES)
