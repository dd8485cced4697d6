"""Recall handle: the text by which a producer recalls a message that waits for its timer.

    base64url("v1 topic broker time id")

A broker of RocketMQ 5 returns it for each send with a timer. The time is that of the message's slot
in the timer wheel, and one millisecond; the id is the unique id of the message.
"""

from __future__ import annotations

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import NamedTuple

_VERSION = "v1"
_PARTS = 5


class RecallHandle(NamedTuple):
    """The message to recall, and the broker that has it."""

    topic: str
    broker_name: str
    deliver_ms: int
    unique_id: str

    def encode(self) -> str:
        """Return the handle as text."""
        parts = (_VERSION, self.topic, self.broker_name, str(self.deliver_ms), self.unique_id)
        return urlsafe_b64encode(" ".join(parts).encode()).decode()


def decode_recall_handle(text: str) -> RecallHandle:
    """Return a handle; raise ValueError if it is none. A time that is no number is -1."""
    try:
        # as Java's decoder, which also takes it without padding
        raw = urlsafe_b64decode(text.encode() + b"=" * (-len(text) % 4)).decode()
    except (binascii.Error, UnicodeError):
        raise ValueError("recall handle is invalid") from None
    parts = raw.split(" ")
    if not text or len(parts) < _PARTS or parts[0] != _VERSION:
        raise ValueError("recall handle is invalid")
    _, topic, broker_name, time, unique_id, *_ = parts
    deliver_ms = int(time) if time.isascii() and time.isdigit() and len(time) < 19 else -1
    return RecallHandle(topic, broker_name, deliver_ms, unique_id)
