"""Starts the benchmark of Spark's source and sink."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.broker.comparison import positive, say
from benchmarks.broker.figures import OURS, PEER, Role
from benchmarks.broker.java import ROOT, VERSIONS, JavaClasses, JavaUnavailable
from benchmarks.broker.report import as_json, as_table
from benchmarks.broker.rounds import run_rounds
from benchmarks.machine import describe_machine, load_average
from benchmarks.processors import PerfUnavailable, check_perf, profile_of
from benchmarks.report import describe_conditions
from benchmarks.spark.cases import (
    FROM_ROCKETMQ,
    QUICK,
    READY_MADE,
    Arena,
    Scale,
    spark_cases,
)
from benchmarks.spark.environment import PEER_VERSION, SparkUnavailable
from benchmarks.spark.sides import (
    DRIVER_MEMORY,
    SparkSide,
    kafka_broker,
    our_broker,
    ready_made_rows,
    rocketmq_broker,
)

ROUNDS = 3
LIBRARIES = ("numpy", "pyarrow", "uvloop")
_NONE = "none"
_BUILD = ROOT / "build"
"""The directory of the runs, on the checkout's disk: temporary files may lie in memory."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the selected cases and report them; a missed target is no failure."""
    options = _parser().parse_args(arguments)
    scale = QUICK if options.quick else Scale()
    scale = replace(
        scale,
        **{name: value for name in vars(scale) if (value := getattr(options, name)) is not None},
    )
    rounds = options.rounds or (1 if options.quick else ROUNDS)
    machine = describe_machine(LIBRARIES)
    machine["load_average_before"] = load_average()
    _BUILD.mkdir(exist_ok=True)
    started = time.perf_counter()
    try:
        if options.profile:
            check_perf()
        sides = _sides(options)
        with (
            tempfile.TemporaryDirectory(prefix="bench-spark-", dir=_BUILD) as directory,
            Arena(Path(directory), sides) as arena,
        ):
            cases = [case for case in spark_cases(arena, scale) if options.only in case.subject]
            if not cases:
                raise SystemExit(f"no case has {options.only!r} in its name")
            results = run_rounds(cases, sides, rounds, say)
            names = {role: side.name for role, side in sides.items()}
            profile = profile_of(cases, names, say) if options.profile else ""
    except (JavaUnavailable, PerfUnavailable, SparkUnavailable) as error:
        raise SystemExit(str(error)) from None
    machine["load_average_after"] = load_average()
    conditions = {
        "our_spark": options.spark,
        "peer_spark": PEER_VERSION,
        "driver_memory": DRIVER_MEMORY,
        "settings": dict(options.conf),
        "rounds": rounds,
        **vars(scale),
    }
    print(
        "\n\n".join(filter(None, (as_table(results, names), profile, describe_conditions(machine))))
    )
    print(
        f"Spark {options.spark}, Kafka's {PEER_VERSION}, {DRIVER_MEMORY} each; {rounds} rounds, "
        f"{time.perf_counter() - started:.0f} s in all"
    )
    options.json.parent.mkdir(parents=True, exist_ok=True)
    report = as_json("spark", machine, results, names, conditions)
    options.json.write_text(
        json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    print(f"written to {options.json}", file=sys.stderr)


def _sides(options: argparse.Namespace) -> dict[Role, SparkSide]:
    settings = dict(options.conf)
    sides = {
        OURS: our_broker(options.spark, settings),
        READY_MADE: ready_made_rows(options.spark, settings),
    }
    if options.rocketmq != _NONE:
        sides[FROM_ROCKETMQ] = rocketmq_broker(
            JavaClasses(options.rocketmq), options.spark, settings
        )
    if options.peer != _NONE:
        sides[PEER] = kafka_broker(settings)
    return sides


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.spark", description="See benchmarks/README.md"
    )
    parser.add_argument(
        "--rounds", type=positive, help=f"how often each case is measured on each side ({ROUNDS})"
    )
    parser.add_argument(
        "--rows",
        type=positive,
        help=f"of 100 B to be read, three times as many as of 1 KB ({Scale.rows})",
    )
    parser.add_argument(
        "--rocketmq-rows",
        type=positive,
        help=f"so many at most from RocketMQ ({Scale.rocketmq_rows})",
    )
    parser.add_argument(
        "--written-rows", type=positive, help=f"how many are written at once ({Scale.written_rows})"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        help=f"how long messages are timed, and how long a query idles ({Scale.seconds:g})",
    )
    parser.add_argument(
        "--peer",
        choices=("kafka", _NONE),
        default="kafka",
        help="Kafka, or ours alone (%(default)s)",
    )
    parser.add_argument(
        "--rocketmq",
        choices=(*VERSIONS, _NONE),
        default=VERSIONS[0],
        help="the RocketMQ that ours reads, too (%(default)s)",
    )
    parser.add_argument(
        "--spark",
        default=PEER_VERSION,
        metavar="VERSION",
        help=(
            "the pyspark that ours runs in; Kafka's source is there for %(default)s only "
            "(%(default)s)"
        ),
    )
    parser.add_argument(
        "--conf",
        type=_setting,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of Spark, on every side",
    )
    parser.add_argument(
        "--only", default="", metavar="SUBSTRING", help="cases with this in their names"
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="as little as possible of everything, to see that it works",
    )
    parser.add_argument(
        "--profile",
        action="store_true",
        help="each case once more, and what the processors do meanwhile (perf, root)",
    )
    parser.add_argument(
        "--json",
        type=Path,
        default=_BUILD / "bench" / "spark.json",
        metavar="PATH",
        help="for the results",
    )
    return parser


def _setting(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator:
        raise argparse.ArgumentTypeError("NAME=VALUE is needed")
    return name, value


if __name__ == "__main__":
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM)
    )  # not without ending the brokers
    main()
