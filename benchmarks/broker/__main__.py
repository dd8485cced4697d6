"""Starts the benchmark of the broker."""

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

from benchmarks.broker.arena import Arena
from benchmarks.broker.cases import QUICK, Scale, broker_cases
from benchmarks.broker.figures import OURS, OURS_SYNC, PEER, Role
from benchmarks.broker.java import VERSIONS, JavaClasses, JavaUnavailable
from benchmarks.broker.report import as_json, as_table
from benchmarks.broker.rocketmq import RocketMQ
from benchmarks.broker.rocketpoll import RocketPoll
from benchmarks.broker.rounds import run_rounds
from benchmarks.broker.running import Side
from benchmarks.machine import describe_machine, load_average
from benchmarks.report import describe_conditions
from broker.store.config import FlushDiskType

ROUNDS = 3
LIBRARIES = ("orjson", "numpy", "pyarrow", "uvloop")
_BUILD = Path(__file__).parents[2] / "build"
"""On the disk that the checkout is on: the directory for temporary files may lie in memory."""

_NONE = "none"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what the command line asks for, and report it. A target that was missed fails nothing."""
    options = _parser().parse_args(arguments)
    scale = QUICK if options.quick else Scale()
    if options.seconds is not None:
        scale = replace(scale, seconds=options.seconds)
    if options.held is not None:
        scale = replace(scale, held=options.held)
    rounds = options.rounds or (1 if options.quick else ROUNDS)
    try:
        client = None if options.client == _NONE else JavaClasses(options.client)
        sides = _sides(None if options.peer == _NONE else JavaClasses(options.peer))
    except JavaUnavailable as error:
        raise SystemExit(f"{error}\nour broker alone, without Java: --client none --peer none") from None
    machine = describe_machine(LIBRARIES)
    machine["load_average_before"] = load_average()
    _BUILD.mkdir(exist_ok=True)
    started = time.perf_counter()
    with (
        tempfile.TemporaryDirectory(prefix="bench-broker-", dir=_BUILD) as directory,
        Arena(Path(directory), sides, client) as arena,
    ):
        cases = [case for case in broker_cases(arena, scale) if options.only in case.subject]
        if not cases:
            raise SystemExit(f"no case has {options.only!r} in its name")
        results = run_rounds(cases, sides, rounds, lambda text: print(text, file=sys.stderr))
    machine["load_average_after"] = load_average()
    names = {role: side.name for role, side in sides.items()}
    conditions = {"java_clients": options.client, "peer": options.peer, "rounds": rounds, **vars(scale)}
    print(f"{as_table(results, names)}\n\n{describe_conditions(machine)}")
    print(f"Java clients {options.client}; {rounds} rounds, {time.perf_counter() - started:.0f} s in all")
    options.json.parent.mkdir(parents=True, exist_ok=True)
    report = as_json("broker", machine, results, names, conditions)
    options.json.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"written to {options.json}", file=sys.stderr)


def _sides(peer: JavaClasses | None) -> dict[Role, Side]:
    sides: dict[Role, Side] = {OURS: RocketPoll(), OURS_SYNC: RocketPoll(FlushDiskType.SYNC_FLUSH)}
    if peer is not None:
        sides[PEER] = RocketMQ(peer)
    return sides


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.broker", description="See benchmarks/README.md"
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
        "--rounds", type=_positive, help=f"how often each case is measured on each side ({ROUNDS})"
    )
    parser.add_argument(
        "--seconds", type=float, help=f"how long load is put on in a round ({Scale.seconds:g})"
    )
    parser.add_argument(
        "--held",
        type=lambda text: tuple(_positive(count) for count in text.split(",")),
        metavar="N,N",
        help=f"how many pulls are held ({','.join(map(str, Scale.held))})",
    )
    parser.add_argument("--only", default="", metavar="SUBSTRING", help="cases with this in their names")
    parser.add_argument(
        "--quick", action="store_true", help="as little as possible of everything, to see that it works"
    )
    parser.add_argument(
        "--json", type=Path, default=_BUILD / "bench" / "broker.json", metavar="PATH", help="for the results"
    )
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return value


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # not without ending the brokers
    main()
