"""Starts the benchmark of sends with OpenTelemetry tracing."""

from __future__ import annotations

from benchmarks.command_line import run_benchmark
from benchmarks.telemetry import LIBRARIES, Stage, telemetry_cases

if __name__ == "__main__":
    with Stage() as stage:
        run_benchmark("telemetry", telemetry_cases(stage), LIBRARIES)
