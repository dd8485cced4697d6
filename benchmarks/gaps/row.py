"""A row of the gaps' table, and how rows for plain requests are made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from benchmarks.gaps.measured import Client, Gap, MeasuredBroker
from rmq_spark.wire.codes import RequestCode
from rmq_spark.wire.command import RemotingCommand


class Row(NamedTuple):
    """The action measured, the request codes it is about, and the longest turn that it caused."""

    about: tuple[str, ...]
    name: str
    gap: Gap


def row_of(name: str, gap: Gap, *codes: RequestCode) -> Row:
    """Make a row about requests."""
    return Row(tuple(code.name for code in codes), name, gap)


def rows_of(
    broker: MeasuredBroker, client: Client, requests: Mapping[str, RemotingCommand], rounds: int
) -> Iterator[Row]:
    """Ask each of these, which may be asked again and again, and measure it."""
    for name, request in requests.items():
        gap = broker.usual_turn(rounds, client, [request])
        yield row_of(name, gap, RequestCode(request.code))
