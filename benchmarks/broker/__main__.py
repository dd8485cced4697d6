"""Starts the benchmark of the broker."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from dataclasses import replace

from benchmarks.broker.cases import QUICK, Scale, broker_cases
from benchmarks.broker.comparison import compare, comparison_parser, positive
from benchmarks.broker.figures import OURS, OURS_SYNC, PEER


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what the command line asks for, and report it."""
    parser = comparison_parser("broker", Scale.seconds)
    parser.add_argument(
        "--held",
        type=lambda text: tuple(positive(count) for count in text.split(",")),
        metavar="N,N",
        help=f"how many pulls are held ({','.join(map(str, Scale.held))})",
    )
    options = parser.parse_args(arguments)
    scale = QUICK if options.quick else Scale()
    if options.seconds is not None:
        scale = replace(scale, seconds=options.seconds)
    if options.held is not None:
        scale = replace(scale, held=options.held)
    compare(
        "broker",
        lambda arena: broker_cases(arena, scale),
        (OURS, OURS_SYNC, PEER),
        options,
        vars(scale),
    )


if __name__ == "__main__":
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM)
    )  # not without ending the brokers
    main()
