"""One client of a group, as its last heartbeat described it."""

from __future__ import annotations

from dataclasses import dataclass

from broker.connection import Connection


@dataclass(frozen=True)
class ClientChannel:
    """A connection and who is at its other end. The time is that of a clock that never jumps."""

    connection: Connection
    client_id: str
    language: str
    version: int
    last_heartbeat_ms: int
