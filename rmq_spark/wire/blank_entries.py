"""Blank entries: the entries of a consume queue at offsets without a message.

A blank entry has a size that no record can have. Its tags code gives the reason: the commit log has
lost the message, or its batch was rolled back, so that the offset has no message. RocketMQ knows
neither reason, and skips both.
"""

from __future__ import annotations

from typing import Final

BLANK_SIZE: Final = 0x7FFFFFFF
"""The size in a blank entry."""

ROLLED_BACK: Final = 1 << 62
"""The tags code of a blank entry whose message was rolled back with its batch, not lost."""
