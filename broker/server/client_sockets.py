"""Client sockets: the bytes that the system keeps of one.

Nothing here knows what is sent, nor to whom.
"""

from __future__ import annotations

import fcntl
import struct
import termios

_SIZE = struct.Struct("i")


def kept_by_the_system(descriptor: int) -> int:
    """Return the bytes given to a socket that have not arrived; 0 if the system does not tell."""
    try:
        size: int = _SIZE.unpack(fcntl.ioctl(descriptor, termios.TIOCOUTQ, bytes(_SIZE.size)))[0]
    except (OSError, ValueError):  # ValueError: the socket is closed
        return 0
    return size
