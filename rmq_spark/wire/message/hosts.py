"""Host: an address and a port, as records and message ids have them.

    IPv4: 4 address bytes, i32 port        IPv6: 16 address bytes, i32 port

Names are never resolved here: that would be I/O.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NamedTuple

from rmq_spark.errors import RecordError
from rmq_spark.wire.remoting.java_numbers import parse_int32

_PORT = struct.Struct(">i")
V4_BYTES = 4 + _PORT.size
V6_BYTES = 16 + _PORT.size


class Host(NamedTuple):
    """The address and port of a message's producer, or of the broker that stores it."""

    address: bytes
    port: int

    @property
    def is_v6(self) -> bool:
        """True if the address is an IPv6 one."""
        return len(self.address) == 16

    @property
    def network(self) -> bytes:
        """The IPv4 address, or the first 64 bits of an IPv6 address, for limits per address.

        The owner of one IPv6 address usually has all addresses with the same first 64 bits.
        """
        return self.address[:8] if self.is_v6 else self.address

    def encode(self) -> bytes:
        """Return the address and the port as bytes."""
        if len(self.address) not in (4, 16) or not 0 <= self.port <= 0x7FFFFFFF:
            raise RecordError(
                "host",
                at="address",
                needed="4 or 16 bytes and a port",
                found=(self.address, self.port),
            )
        return self.address + _PORT.pack(self.port)

    def __str__(self) -> str:
        """Return the host as ``10.0.0.1:9876`` or ``[::1]:9876``."""
        import ipaddress  # noqa: PLC0415  # hosts are seldom shown, and more seldom parsed

        address = ipaddress.ip_address(self.address)
        return f"[{address}]:{self.port}" if self.is_v6 else f"{address}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """True if only programs of the same machine can reach the address."""
        import ipaddress  # noqa: PLC0415  # as above

        return ipaddress.ip_address(self.address).is_loopback


def host_of(name: Any) -> Host:
    """Return the host of a socket's address, with IPv4-mapped IPv6 addresses as IPv4."""
    import ipaddress  # noqa: PLC0415  # as above

    address = ipaddress.ip_address(name[0].partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return Host((mapped or address).packed, name[1])


@lru_cache(maxsize=1024)  # thousands of messages have a few hosts
def decode_host(data: bytes) -> Host:
    """Decode a host from 8 or 20 bytes."""
    if len(data) not in (V4_BYTES, V6_BYTES):
        raise RecordError("host", at=0, needed="8 or 20 bytes", found=data)
    return Host(data[: -_PORT.size], _PORT.unpack(data[-_PORT.size :])[0])


def parse_host(text: str) -> Host:
    """Parse a host as ``__str__`` writes it; the square brackets may be missing."""
    import ipaddress  # noqa: PLC0415  # as above

    address, _, port = text.rpartition(":")
    try:
        return Host(ipaddress.ip_address(address.strip("[]")).packed, parse_int32(port))
    except ValueError as error:
        raise RecordError("host", at="text", needed="address:port", found=text) from error


def names_this_machine(host_header: str, own_names: Iterable[str]) -> bool:
    """Return whether the Host of an HTTP request is an address, or a name of this machine.

    Any other name points to DNS rebinding: another site made its own name resolve to 127.0.0.1, so
    that the browser sends that site's requests here. ``own_names`` are this machine's names.
    """
    import ipaddress  # noqa: PLC0415  # as above
    from urllib.parse import urlsplit  # noqa: PLC0415  # only HTTP ports need it

    try:
        name = urlsplit(f"//{host_header.strip()}").hostname or ""
    except ValueError:
        return False
    if name in ("", "localhost", *map(str.lower, own_names)) or name.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
