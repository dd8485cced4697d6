"""Starts the benchmark of the asyncio client."""

from __future__ import annotations

from benchmarks.aio import CONSUMERS, LIBRARIES, MESSAGES, Stage, aio_cases, cpu_said, threads_said
from benchmarks.command_line import run_benchmark

if __name__ == "__main__":
    with Stage() as stage:
        cases = aio_cases(stage, CONSUMERS * MESSAGES)
        print(*threads_said(stage), sep="\n")
        print(*cpu_said(cases), sep="\n")
        run_benchmark("aio", cases, LIBRARIES)
