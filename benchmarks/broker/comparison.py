"""Runs a comparison of brokers: options, brokers, rounds, table, JSON.

The broker and the client benchmarks use it with cases of their own.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.broker.arena import Arena
from benchmarks.broker.cases import Case
from benchmarks.broker.figures import OURS, OURS_SYNC, PEER, Role
from benchmarks.broker.java import VERSIONS, JavaClasses, JavaUnavailable
from benchmarks.broker.report import as_json, as_table
from benchmarks.broker.rocketmq import RocketMQ
from benchmarks.broker.rocketpoll import RocketPoll
from benchmarks.broker.rounds import run_rounds
from benchmarks.broker.running import Side
from benchmarks.machine import describe_machine, load_average
from benchmarks.processors import PerfUnavailable, check_perf, profile_of
from benchmarks.report import describe_conditions
from rocketpoll.broker.store.config import FlushDiskType

ROUNDS = 5
BUILD = Path(__file__).parents[2] / "build"
"""The directory of the runs, on the checkout's disk: temporary files may lie in memory."""

_LIBRARIES = ("orjson", "numpy", "pyarrow", "uvloop")
_NONE = "none"


def compare(
    name: str,
    cases_in: Callable[[Arena], Sequence[Case]],
    roles: Collection[Role],
    options: argparse.Namespace,
    conditions: Mapping[str, Any],
) -> None:
    """Measure the cases that the command line asks for, and report them under this name.

    A missed target does not make the run fail.
    """
    rounds = options.rounds or (1 if options.quick else ROUNDS)
    try:
        if options.profile:
            check_perf()
        client = None if options.client == _NONE else JavaClasses(options.client)
        sides = _sides(roles, None if options.peer == _NONE else JavaClasses(options.peer))
    except JavaUnavailable as error:
        raise SystemExit(
            f"{error}\nour broker alone, without Java: --client none --peer none"
        ) from None
    except PerfUnavailable as error:
        raise SystemExit(str(error)) from None
    machine = describe_machine(_LIBRARIES)
    machine["load_average_before"] = load_average()
    BUILD.mkdir(exist_ok=True)
    started = time.perf_counter()
    with (
        tempfile.TemporaryDirectory(prefix=f"bench-{name}-", dir=BUILD) as directory,
        Arena(Path(directory), sides, client) as arena,
    ):
        cases = [case for case in cases_in(arena) if options.only in case.subject]
        if not cases:
            raise SystemExit(f"no case has {options.only!r} in its name")
        results = run_rounds(cases, sides, rounds, say)
        names = {role: side.name for role, side in sides.items()}
        profile = profile_of(cases, names, say) if options.profile else ""
    machine["load_average_after"] = load_average()
    print(
        "\n\n".join(filter(None, (as_table(results, names), profile, describe_conditions(machine))))
    )
    print(
        f"Java clients {options.client}; {rounds} rounds, {time.perf_counter() - started:.0f} s in "
        "all"
    )
    options.json.parent.mkdir(parents=True, exist_ok=True)
    told = {"java_clients": options.client, "peer": options.peer, "rounds": rounds, **conditions}
    report = as_json(name, machine, results, names, told)
    options.json.write_text(
        json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    print(f"written to {options.json}", file=sys.stderr)


def say(text: str) -> None:
    """Print the progress."""
    print(text, file=sys.stderr)


def _sides(roles: Collection[Role], peer: JavaClasses | None) -> dict[Role, Side]:
    sides: dict[Role, Side] = {OURS: RocketPoll()}
    if OURS_SYNC in roles:
        sides[OURS_SYNC] = RocketPoll(FlushDiskType.SYNC_FLUSH)
    if peer is not None:
        sides[PEER] = RocketMQ(peer)
    return sides


def comparison_parser(name: str, seconds: float) -> argparse.ArgumentParser:
    """Return a parser with the options that all comparisons have."""
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{name}", description="See benchmarks/README.md"
    )
    parser.add_argument(
        "--client",
        choices=(*VERSIONS, _NONE),
        default=VERSIONS[0],
        help="RocketMQ's Java clients of this version, or no case that needs them (%(default)s)",
    )
    parser.add_argument(
        "--peer",
        choices=(*VERSIONS, _NONE),
        default=VERSIONS[0],
        help="a RocketMQ broker of this version, or our broker alone (%(default)s)",
    )
    parser.add_argument(
        "--rounds", type=positive, help=f"how often each case is measured on each side ({ROUNDS})"
    )
    parser.add_argument(
        "--seconds", type=float, help=f"how long load is put on in a round ({seconds:g})"
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
    path = BUILD / "bench" / f"{name}.json"
    parser.add_argument("--json", type=Path, default=path, metavar="PATH", help="for the results")
    return parser


def positive(text: str) -> int:
    """Parse a number from 1 on."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return value
