"""CPU of small sends and pulls with access control, beside those of a broker without.

    python -m benchmarks.turns.access
    python -m benchmarks.turns.access --rounds 15 --json benchmarks/results/access.json

Two brokers in this process get the same requests in turn: one serves everybody, the other a user
who signs every request and may do with all topics and groups what a list says. Figures are
processor time of the loop's thread in microseconds, without sockets: the medians of the rounds, and
of the ratios in each round, which other programs on the machine disturb least.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.machine import describe_machine, load_average
from benchmarks.turns import LIBRARIES, Turns, batch, pull, send
from rmq_spark.wire.bodies import encode_body
from rmq_spark.wire.bodies.operators import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from rmq_spark.wire.codes import RequestCode
from rmq_spark.wire.remoting.command import RemotingCommand, decode_command
from rmq_spark.wire.remoting.framing import FrameReader
from rmq_spark.wire.signature import signed_fields

_BUILD = Path(__file__).parents[2] / "build"
_ROOT, _USER, _KEY = "root", "bench", "a key of 24 characters.."
_TOPIC, _QUEUES = "few", 4
_FILL_TURNS = 40
_CPU_TARGET = 1.25
_SETTINGS = (
    "authenticationEnabled=true",
    "authorizationEnabled=true",
    f'initAuthenticationUser={{"username":"{_ROOT}","password":"{_KEY}"}}',
)


class _Kind(NamedTuple):
    """Requests that are measured, in turns of a number of them."""

    name: str
    request: Callable[[int], bytes]
    turns: int
    per_turn: int


_KINDS = (
    _Kind("a send, alone in its turn", lambda queue_id: send(_TOPIC, queue_id), 1_000, 1),
    _Kind("a send of 20 in a turn", lambda queue_id: send(_TOPIC, queue_id), 100, 20),
    _Kind("a send of 200 in a turn", lambda queue_id: send(_TOPIC, queue_id), 20, 200),
    _Kind("a pull of 1 message", lambda queue_id: pull(_TOPIC, queue_id, 3, 1), 1_000, 1),
    _Kind("a pull of 32 messages", lambda queue_id: pull(_TOPIC, queue_id, 3, 32), 1_000, 1),
    _Kind("a pull of nothing new", lambda queue_id: pull(_TOPIC, queue_id, 1 << 40, 32), 1_000, 1),
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure in a directory that is removed afterwards, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path, help="where the figures go besides")
    given = parser.parse_args(arguments)
    _BUILD.mkdir(exist_ok=True)
    machine = {**describe_machine(LIBRARIES), "load_average_before": load_average()}
    with tempfile.TemporaryDirectory(prefix="bench-access-", dir=_BUILD) as directory:
        without, protected = brokers = Turns(Path(directory, "a")), _protected(Path(directory, "b"))
        try:
            for turns in brokers:
                turns.make_topic(_TOPIC, _QUEUES)
            fill = [batch(_TOPIC, number % _QUEUES) for number in range(_FILL_TURNS)]
            without.play(fill)
            protected.play(map(_signed, fill))
            results = list(_measured(without, protected, given.rounds))
        finally:
            for turns in brokers:
                turns.shutdown()
    if given.json:
        machine["load_average_after"] = load_average()
        report = {"benchmark": "access", "machine": machine, "results": results}
        given.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def _measured(without: Turns, protected: Turns, rounds: int) -> Iterator[dict[str, Any]]:
    sys.stdout.write("                             without      with   ratio\n")
    in_turn = itertools.cycle(range(_QUEUES))
    for name, request, turns, per_turn in _KINDS:
        costs: tuple[list[float], list[float]] = ([], [])
        for _ in range(rounds):
            requests = [[request(next(in_turn)) for _ in range(per_turn)] for _ in range(turns)]
            signed = [list(map(_signed, each)) for each in requests]
            for turns_of, cost, pieces in zip(
                (without, protected), costs, (requests, signed), strict=True
            ):
                cost.append(_seconds(turns_of, [b"".join(each) for each in pieces]))
        plain_us, signed_us = (statistics.median(cost) / (turns * per_turn) * 1e6 for cost in costs)
        ratio = statistics.median(signed / plain for plain, signed in zip(*costs, strict=True))
        verdict = "reached" if ratio <= _CPU_TARGET else "not reached"
        goal = f"  target <= {_CPU_TARGET}: {verdict}" if "send" in name else ""
        sys.stdout.write(f"{name:26} {plain_us:9.2f} {signed_us:9.2f} {ratio:7.2f}{goal}\n")
        yield {"kind": name, "without_us": plain_us, "with_us": signed_us, "ratio": ratio}


def _seconds(turns: Turns, pieces: Sequence[bytes]) -> float:
    began = time.thread_time()
    turns.play(pieces)
    return time.thread_time() - began


def _protected(directory: Path) -> Turns:
    """Return a broker that serves only its users."""
    turns = Turns(directory, _SETTINGS)
    user = UserInfo(username=_USER, password=_KEY, user_type="Normal")
    entries = tuple(
        PolicyEntryInfo(resource=resource, actions=("All",), decision="Allow")
        for resource in ("Topic:*", "Group:*")
    )
    acl = AclInfo(subject=f"User:{_USER}", policies=(PolicyInfo(entries=entries),))
    turns.connect(2)
    turns.play(
        [
            b"",
            _by_root(RequestCode.AUTH_CREATE_USER, {"username": _USER}, user),
            b"",
            _by_root(RequestCode.AUTH_CREATE_ACL, {"subject": f"User:{_USER}"}, acl),
        ],
        clients=2,
    )
    return turns


def _by_root(code: RequestCode, fields: dict[str, str], body: object) -> bytes:
    return _sign(RemotingCommand(code, ext_fields=fields, body=encode_body(body)), _ROOT)


def _signed(frame: bytes) -> bytes:
    """Return a request's frame as the user's client sends it."""
    reader = FrameReader()
    reader.feed(frame)
    found = reader.next_frame()
    if found is None:
        raise ValueError("not a whole frame")
    return _sign(decode_command(found), _USER)


def _sign(request: RemotingCommand, user: str) -> bytes:
    fields = signed_fields(request.ext_fields, request.body, access_key=user, secret_key=_KEY)
    return request._replace(ext_fields=fields).encode()


if __name__ == "__main__":
    main()
