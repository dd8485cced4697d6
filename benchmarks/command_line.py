"""Runs every benchmark: options, measuring, table, JSON."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.harness import ROUND_SECONDS, ROUNDS, Case, Clock, measure, select
from benchmarks.machine import describe_machine, load_average
from benchmarks.report import as_json, as_table, describe_conditions

_RESULTS = Path(__file__).parents[1] / "build" / "bench"


def run_benchmark(
    name: str,
    cases: Sequence[Case],
    libraries: Iterable[str],
    arguments: Sequence[str] | None = None,
    *,
    rounds: int = ROUNDS,
    own_options: Sequence[argparse.ArgumentParser] = (),
    clock: Clock = time.perf_counter,
) -> None:
    """Measure the cases that the command line selects and report them under this name.

    A missed target is displayed and does not make the run fail: on a busy machine it would fail at
    random.

    Args:
        name: The name of the benchmark.
        cases: All cases.
        libraries: The libraries whose versions matter.
        arguments: The arguments, by default those of the command line.
        rounds: The default number of rounds.
        own_options: Parsers, made without ``add_help``, of options that only this benchmark has.
            They have shaped its cases already; here they are named in the help.
        clock: The clock that runs are measured with, such as one of another process's time.
    """
    options = _parser(name, rounds, own_options).parse_args(arguments)
    chosen = select(cases, options.only)
    if not chosen:
        raise SystemExit(f"no case has {options.only!r} in its name")
    print(
        f"{len(chosen)} cases, {options.rounds} rounds of at least {options.seconds:g} s each",
        file=sys.stderr,
    )
    machine = describe_machine(libraries)
    machine["load_average_before"] = load_average()
    results = measure(chosen, options.rounds, options.seconds, clock)
    machine["load_average_after"] = load_average()
    print(f"{as_table(results)}\n\n{describe_conditions(machine)}")
    options.json.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(as_json(name, machine, results), indent=1, ensure_ascii=False)
    options.json.write_text(text + "\n", encoding="utf-8")
    print(f"written to {options.json}", file=sys.stderr)


def _parser(
    name: str, rounds: int, own_options: Sequence[argparse.ArgumentParser]
) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{name}",
        description="See benchmarks/README.md",
        parents=list(own_options),
    )
    parser.add_argument(
        "--rounds",
        type=_positive,
        default=rounds,
        help="how often each case is measured (%(default)s)",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=ROUND_SECONDS,
        help="what a case runs at least in a round (%(default)s)",
    )
    parser.add_argument(
        "--only",
        default="",
        metavar="SUBSTRING",
        help="cases with this in their names, and their peers",
    )
    parser.add_argument(
        "--json",
        type=Path,
        default=_RESULTS / f"{name}.json",
        metavar="PATH",
        help="where the results go",
    )
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return value
