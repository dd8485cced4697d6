"""Probes: the system asks a peer that says nothing whether it is still there.

Its default is to begin with that after two hours, which is too late for a NAT that forgets.
"""

from __future__ import annotations

import socket
from typing import Final

_SILENCE: Final = {
    "TCP_KEEPIDLE": 30,
    "TCP_KEEPINTVL": 10,
    "TCP_KEEPCNT": 3,
    "TCP_USER_TIMEOUT": 60_000,
}
"""Socket options that find a silent peer: times in seconds, TCP_USER_TIMEOUT in milliseconds."""


def find_silence_early(sock: socket.socket) -> None:
    """Have the system end a connection to a peer that has been silent for a minute or so."""
    for name, value in _SILENCE.items():
        option = getattr(socket, name, None)  # not every system has all of them
        if option is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
