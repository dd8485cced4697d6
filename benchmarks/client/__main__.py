"""Starts the benchmark of the client."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from dataclasses import replace

from benchmarks.broker.comparison import compare, comparison_parser
from benchmarks.broker.figures import OURS, OURS_SYNC, PEER
from benchmarks.client.cases import QUICK, Scale, client_cases


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what the command line asks for, and report it."""
    options = comparison_parser("client", Scale.seconds).parse_args(arguments)
    scale = QUICK if options.quick else Scale()
    if options.seconds is not None:
        scale = replace(scale, seconds=options.seconds)
    roles = (OURS, OURS_SYNC, PEER)
    compare("client", lambda arena: client_cases(arena, scale), roles, options, vars(scale))


if __name__ == "__main__":
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM)
    )  # not without ending the brokers
    main()
