"""MessageQueue: one queue of one topic on one broker, the thing that offsets belong to."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, order=True, slots=True)
class MessageQueue:
    """A queue, ordered as in Java by topic, broker and number: rebalancing depends on it."""

    topic: str
    broker_name: str
    queue_id: int
