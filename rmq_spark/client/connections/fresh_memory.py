"""Memory for a large frame, whose every byte is about to be written.

A bytearray is filled with zeros first, which takes as long as a part of receiving does. Numpy
leaves memory as it is; whoever pulls megabytes has loaded it to look into them, and nobody else
pays for that here.
"""

from __future__ import annotations

import sys


def fresh_memory(size: int) -> memoryview:
    """Return memory of this many bytes, with anything in it."""
    empty = getattr(sys.modules.get("numpy"), "empty", None)
    if empty is None:  # not loaded, or not yet
        return memoryview(bytearray(size))
    memory: memoryview = empty(size, "u1").data
    return memory
