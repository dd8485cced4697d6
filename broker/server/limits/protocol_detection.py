"""Strangers: clients of other protocols, known by the first bytes that they send.

A browser, a load balancer or a client under TLS is told what it speaks, rather than that its frame
is damaged. This module must not know what RocketMQ's own clients send.
"""

from __future__ import annotations

_PROTOCOL_PREFIXES = (
    (b"GET ", "HTTP"),
    (b"POST", "HTTP"),
    (b"HEAD", "HTTP"),
    (b"PRI ", "HTTP/2"),
    (b"\x16\x03", "TLS"),
)


def detect_protocol(first_bytes: bytes) -> str | None:
    """Return the name of the protocol that begins with these bytes; None if it is none of these."""
    return next((name for start, name in _PROTOCOL_PREFIXES if first_bytes.startswith(start)), None)
