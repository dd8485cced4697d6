"""ClientLanes: which lane takes a client's next request, by how its header begins.

    {"code":310,"ext...   ─> the lane that has learned from a header that begins so
    {"code":34,"extF...   ─> none: the usual way

A lane is a short way for requests that look like earlier ones of their client. It is asked only for
what begins like something that it knows, so that requests of all other kinds pay for one look.

What a header says is not known here, nor what a lane does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from rmq_spark.wire.command import RemotingCommand
from rmq_spark.wire.framing import PREFIX_BYTES, Buffer, FrameReader

if TYPE_CHECKING:
    from ..common.connection import Connection

_BEGINNING_BYTES = 12
"""Most headers begin with as many as ``{"code":310,``."""
_BEGINNINGS_MAX = 16


class Lane(Protocol):
    """A short way for requests that look like earlier ones, many at once."""

    def take(self, connection: Connection, data: bytes, start: int) -> int:
        """Take whole frames from a place in the data on; return where the rest begins."""

    def learn(self, connection: Connection, header: Buffer, request: RemotingCommand) -> bool:
        """Learn from a request that was dispatched; return whether `take` knows such ones now."""


class ClientLanes:
    """The lanes as one client uses them."""

    def __init__(self, lanes: Sequence[Lane]) -> None:
        """Begin with none of these; they are used once they have learned something."""
        self._lanes = lanes
        self._lane_of: dict[bytes, Lane] = {}

    def learn(self, connection: Connection, header: Buffer, request: RemotingCommand) -> None:
        """Have the lanes learn from a request that went the usual way."""
        for lane in self._lanes:
            if lane.learn(connection, header, request):
                if len(self._lane_of) >= _BEGINNINGS_MAX:
                    self._lane_of.clear()
                self._lane_of[bytes(header[:_BEGINNING_BYTES])] = lane

    def take(self, connection: Connection, reader: FrameReader) -> bool:
        """Return whether a lane has taken the next requests."""
        piece = reader.piece() if self._lane_of else None
        if piece is None:
            return False
        data, start = piece
        header_at = start + PREFIX_BYTES
        lane = self._lane_of.get(data[header_at : header_at + _BEGINNING_BYTES])
        end = start if lane is None else lane.take(connection, data, start)
        if end == start:
            return False
        reader.pass_over(end - start)
        return True
