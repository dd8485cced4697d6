"""Client sockets: the bytes that the system keeps of one.

Nothing here knows what is sent, nor to whom.
"""

from __future__ import annotations

import fcntl
import struct
import termios

_INT = struct.Struct("i")


def kernel_buffered_bytes(descriptor: int) -> int:
    """Return the bytes given to a socket that have not arrived; 0 if the system does not tell."""
    try:
        size: int = _INT.unpack(fcntl.ioctl(descriptor, termios.TIOCOUTQ, bytes(_INT.size)))[0]
    except (OSError, ValueError):  # ValueError: the socket is closed
        return 0
    return size
