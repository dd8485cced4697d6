"""Starts the benchmark of the embedded broker."""

from __future__ import annotations

from benchmarks.command_line import run_benchmark
from benchmarks.embedded import LIBRARIES, OneAtATime, embedded_cases

if __name__ == "__main__":
    with OneAtATime() as brokers:
        run_benchmark("embedded", embedded_cases(brokers), LIBRARIES)
