"""Starts the benchmark of the client, with a broker beside it."""

from __future__ import annotations

from benchmarks.client import LIBRARIES, client_cases
from benchmarks.client.running_broker import RunningBroker
from benchmarks.command_line import run_benchmark

if __name__ == "__main__":
    with RunningBroker() as broker:
        run_benchmark("client", client_cases(broker), LIBRARIES)
