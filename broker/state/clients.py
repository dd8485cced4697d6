"""One client of a group, as its last heartbeat described it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rocketpoll.broker.connection import Connection

CLIENT_ID_CHARACTERS_MAX: Final = 1_024
"""Of what a client calls itself; RocketMQ sets no limit."""


@dataclass(frozen=True)
class ClientChannel:
    """A connection and who is at its other end. The time is that of a clock that never jumps."""

    connection: Connection
    client_id: str
    language: str
    version: int
    last_heartbeat_ms: int


def client_fault(client_id: str) -> str | None:
    """What is wrong with a client's id; None if nothing is."""
    if not client_id.strip():
        return "there is no clientID"
    if len(client_id) > CLIENT_ID_CHARACTERS_MAX:
        return f"the clientID has {len(client_id)} characters, over {CLIENT_ID_CHARACTERS_MAX}"
    return None
