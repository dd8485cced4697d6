"""PullRequest: one pull that waits, with all that its replay needs and nothing else.

The request's ext fields are dropped: the typed header says the same, in a fraction of the memory. What a
client can make long in it, its subscription and the filter made of that, takes more places than one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from rmq_spark.wire.command import RemotingCommand
from rmq_spark.wire.headers.pull import PullMessageRequestHeader
from rocketpoll.broker.connection import Connection

PLACE_BYTES: Final = 1_400
"""Bytes of memory that a usual pull takes, with a short subscription and a filter of a few tags."""


class HoldFilter(Protocol):
    """What a waiting pull asks of arriving messages."""

    @property
    def needs_messages(self) -> bool:
        """Whether a code that may match has to be followed by a look at the messages."""

    @property
    def size_bytes(self) -> int:
        """Bytes of memory that it takes, about."""

    def matches_code(self, code: int) -> bool:
        """Whether a message with this tags code may match."""


@dataclass(frozen=True, slots=True, eq=False)
class PullRequest:
    """A pull that found nothing. Times are those of a clock that never jumps."""

    connection: Connection
    request: RemotingCommand
    header: PullMessageRequestHeader
    suspend_timestamp_ms: int
    timeout_ms: int
    message_filter: HoldFilter | None
    nothing_before: int
    """No message that it wants has a queue offset below this one."""

    @property
    def queue(self) -> tuple[str, int]:
        """Topic and number of the queue."""
        return self.header.topic, self.header.queue_id

    @property
    def places(self) -> int:
        """How many places it takes, without its filter: one, and more if its subscription is long."""
        texts = self.header.subscription, self.header.expression_type
        return 1 + sum(map(sys.getsizeof, texts)) // PLACE_BYTES

    @property
    def filter_places(self) -> int:
        """How many places its filter takes, which all pulls of one client with this filter share."""
        return 0 if self.message_filter is None else self.message_filter.size_bytes // PLACE_BYTES

    @property
    def pull_from_this_offset(self) -> int:
        """Where it asked for messages from."""
        return self.header.queue_offset

    @property
    def deadline_ms(self) -> int:
        """When it is answered, whatever has happened."""
        return self.suspend_timestamp_ms + self.timeout_ms

    def may_want(self, tags_codes: Iterable[int] | None) -> bool:
        """Whether one of the messages with these codes may match; None: nothing is known about them."""
        if self.message_filter is None or tags_codes is None:
            return True
        return any(map(self.message_filter.matches_code, tags_codes))
