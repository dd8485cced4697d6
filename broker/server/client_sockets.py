"""Client sockets: what the system tells of one, the addresses of its ends and the bytes it keeps.

This module must not know what is sent, nor to whom.
"""

from __future__ import annotations

import fcntl
import struct
import termios
from ipaddress import ip_address
from typing import Any

from rmq_spark.wire.hosts import Host

_SIZE = struct.Struct("i")


def host_of(name: Any) -> Host:
    """Return the address of a socket's end, with IPv4 addresses over IPv6 as IPv4."""
    address = ip_address(name[0].partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return Host((mapped or address).packed, name[1])


def kept_by_the_system(descriptor: int) -> int:
    """Return the bytes given to a socket that have not arrived; 0 if the system does not tell."""
    try:
        size: int = _SIZE.unpack(fcntl.ioctl(descriptor, termios.TIOCOUTQ, bytes(_SIZE.size)))[0]
    except (OSError, ValueError):  # ValueError: the socket is closed
        return 0
    return size
