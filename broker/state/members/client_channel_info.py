"""ClientChannelInfo: one client of a group, as its last heartbeat described it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from ...common.channel import Channel

CLIENT_ID_CHARACTERS_MAX: Final = 1_024
"""The maximum length of a client's id, for which RocketMQ has no limit."""


@dataclass(frozen=True)
class ClientChannelInfo:
    """A connection and the client at its other end. Times are those of a clock that never jumps."""

    connection: Channel
    client_id: str
    language: str
    version: int
    last_heartbeat_ms: int

    def with_later_heartbeat(self, milliseconds: int) -> ClientChannelInfo:
        """Return the client as if its last heartbeat had arrived so much later."""
        return replace(self, last_heartbeat_ms=self.last_heartbeat_ms + milliseconds)


def client_fault(client_id: str) -> str | None:
    """Return what is wrong with a client's id, or None."""
    if not client_id.strip():
        return "there is no clientID"
    if len(client_id) > CLIENT_ID_CHARACTERS_MAX:
        return f"the clientID has {len(client_id)} characters, over {CLIENT_ID_CHARACTERS_MAX}"
    return None
