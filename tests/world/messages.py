"""The messages that a world has sent, each with a unique body and its known state.

staged ─────> under way  a row of a batch: nobody may see it before its commit is requested
under way ──> stored     acknowledged: it has a place in its queue
         ├──> refused    the broker said that it did not store it: nobody may ever see it
         └──> unknown    no answer, or one that leaves it open
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from rmq_spark.wire.message.properties import encode_properties


@dataclass(eq=False)
class Sent:
    """One message of a client."""

    number: int
    topic: str
    queue_id: int
    body: bytes
    properties: dict
    connection: object
    sent_at: float
    generation: int
    state: str = "under way"
    is_certain: bool = False  # it must be found from now on, whatever happens
    is_ambiguous: bool = False  # its topic was being deleted: it may be found or not
    delay_seconds: float = 0.0
    end: str | None = None  # of a transaction: "open", "commit" or "rollback"
    ends: int = 0  # number of requests for that end
    decided_at: float | None = None
    ended_at: float | None = None  # when the broker answered the request for the end
    batch: object = None  # its staged batch, for a row
    queue_offset: int | None = None
    physical_offset: int | None = None  # from the message id
    stored_at: float | None = None
    seen: dict = field(default_factory=dict)  # times by place where it was seen

    def __str__(self):
        return f"message {self.number} to {self.topic}/{self.queue_id}"

    @property
    def tags(self):
        return self.properties.get("TAGS")

    @property
    def properties_text(self):
        return encode_properties(self.properties)

    @property
    def is_moved(self):
        """Return whether the message waits in another queue before its own, perhaps
        more than once."""
        return bool(self.delay_seconds or self.end)

    @property
    def due(self):
        return self.sent_at + self.delay_seconds


def body_of(number, size):
    """Return a unique body of about this size."""
    head = f"{number}:".encode()
    return head + random.Random(number).randbytes(max(size - len(head), 0))


def number_of(body):
    """Return the number of the message with this body; None if it is not one of the world's."""
    head, colon, _ = bytes(body[:12]).partition(b":")
    return int(head) if colon and head.isdigit() else None
