"""ClientFastPaths: which lane takes a client's next request, by how its header begins.

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
    from ..common.channel import Channel

_HEADER_START_BYTES = 12
"""Most headers begin with as many as ``{"code":310,``."""
_HEADER_STARTS_MAX = 16


class FastPath(Protocol):
    """A short way for requests that look like earlier ones, many at once."""

    def process(self, connection: Channel, data: bytes, start: int) -> int:
        """Take whole frames from a place in the data on; return where the rest begins."""

    def learn(self, connection: Channel, header: Buffer, request: RemotingCommand) -> bool:
        """Learn from a request that was dispatched; return whether `take` knows such ones now."""


class ClientFastPaths:
    """The lanes as one client uses them."""

    def __init__(self, fast_paths: Sequence[FastPath]) -> None:
        """Begin with none of these; they are used once they have learned something."""
        self._fast_paths = fast_paths
        self._by_header_start: dict[bytes, FastPath] = {}

    def learn(self, connection: Channel, header: Buffer, request: RemotingCommand) -> None:
        """Have the lanes learn from a request that went the usual way."""
        for lane in self._fast_paths:
            if lane.learn(connection, header, request):
                if len(self._by_header_start) >= _HEADER_STARTS_MAX:
                    self._by_header_start.clear()
                self._by_header_start[bytes(header[:_HEADER_START_BYTES])] = lane

    def process(self, connection: Channel, reader: FrameReader) -> bool:
        """Return whether a lane has taken the next requests."""
        piece = reader.contiguous_data() if self._by_header_start else None
        if piece is None:
            return False
        data, start = piece
        header_at = start + PREFIX_BYTES
        lane = self._by_header_start.get(data[header_at : header_at + _HEADER_START_BYTES])
        end = start if lane is None else lane.process(connection, data, start)
        if end == start:
            return False
        reader.skip(end - start)
        return True
