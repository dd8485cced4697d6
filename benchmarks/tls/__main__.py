"""Starts the benchmark of the broker with TLS."""

from __future__ import annotations

from benchmarks.command_line import run_benchmark
from benchmarks.tls import LIBRARIES, Sides, tls_cases

if __name__ == "__main__":
    with Sides() as sides:
        run_benchmark("tls", tls_cases(sides), LIBRARIES, clock=sides.clock)
