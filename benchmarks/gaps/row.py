"""A row of the gap table, and constructors of rows for plain requests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from benchmarks.gaps.measured import Client, Gap, MeasuredBroker
from rmq_spark.wire.codes import RequestCode
from rmq_spark.wire.remoting.command import RemotingCommand


class Row(NamedTuple):
    """The action measured, the request codes it is about, and the longest turn that it caused."""

    about: tuple[str, ...]
    name: str
    gap: Gap


def row_of(name: str, gap: Gap, *codes: RequestCode) -> Row:
    """Return a row for requests."""
    return Row(tuple(code.name for code in codes), name, gap)


def rows_of(
    broker: MeasuredBroker, client: Client, requests: Mapping[str, RemotingCommand], rounds: int
) -> Iterator[Row]:
    """Measure each of these repeatable requests."""
    for name, request in requests.items():
        gap = broker.usual_turn(rounds, client, [request])
        yield row_of(name, gap, RequestCode(request.code))
