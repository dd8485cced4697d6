"""ClientFastPaths: selects the fast path of a client's next request by how its header begins.

    {"code":310,"ext...   ─> the fast path that has learned a header with this beginning
    {"code":34,"extF...   ─> none: the normal path

A fast path is a short way for requests that look like earlier ones of their client. It is tried
only for requests that begin like one that it has learned, so all other requests cost one lookup.
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
        """Process whole frames from a position in the data on; return where the rest begins."""

    def learn(self, connection: Channel, header: Buffer, request: RemotingCommand) -> bool:
        """Learn from a dispatched request; return whether `process` knows such requests now."""


class ClientFastPaths:
    """The fast paths of one client."""

    def __init__(self, fast_paths: Sequence[FastPath]) -> None:
        """Begin with none of these; they are used once they have learned something."""
        self._fast_paths = fast_paths
        self._by_header_start: dict[bytes, FastPath] = {}

    def learn(self, connection: Channel, header: Buffer, request: RemotingCommand) -> None:
        """Let the fast paths learn from a request that took the normal path."""
        for lane in self._fast_paths:
            if lane.learn(connection, header, request):
                if len(self._by_header_start) >= _HEADER_STARTS_MAX:
                    self._by_header_start.clear()
                self._by_header_start[bytes(header[:_HEADER_START_BYTES])] = lane

    def process(self, connection: Channel, reader: FrameReader) -> bool:
        """Return whether a fast path has processed the next requests."""
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
