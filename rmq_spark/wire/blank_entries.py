"""Blank entries: what a consume queue has where it has no message.

A size that no record has says so. The code says why: the log has lost the message, or its batch was
taken back, so that the offset is nobody's. RocketMQ gives neither a meaning: it passes over both.
"""

from __future__ import annotations

from typing import Final

BLANK_SIZE: Final = 0x7FFFFFFF
"""The size in a blank entry."""

ROLLED_BACK: Final = 1 << 62
"""The code of a blank entry whose message was rolled back with its batch: nobody has lost it."""
