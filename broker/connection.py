"""What the rest of the broker may know of a client that is connected: `server` makes it, others use it.

It does not say how bytes travel. Everything here is called on the broker's one thread, and returns at once.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from typing import Protocol, TypeAlias

from rmq_spark.wire.command import RemotingCommand
from rmq_spark.wire.extensions import Extension
from rmq_spark.wire.framing import Buffer
from rmq_spark.wire.hosts import Host

Work: TypeAlias = Iterator["Future[None] | None"]
"""What is to be done in steps: others may come in between. One that gives a future can be followed by the
next one only when that is done."""

Steps: TypeAlias = Generator["Future[None] | None", None, RemotingCommand | None]
"""Work for a request that takes long. The last step brings the answer; None if it comes later, or if none is
wanted."""


class Connection(Protocol):
    """One client's end of the line; equal to itself alone, and a key of tables."""

    extensions: frozenset[Extension]
    """What both sides have said that they can do beyond RocketMQ."""

    @property
    def remote_host(self) -> Host:
        """Where the client is: its messages are born there."""

    @property
    def local_host(self) -> Host:
        """The address that the client has dialled."""

    @property
    def is_closed(self) -> bool:
        """Whether nothing that is sent will arrive any more."""

    @property
    def is_congested(self) -> bool:
        """Whether it leaves what it was sent unread."""

    @property
    def answer_bytes_max(self) -> int:
        """How long an answer may be now; one that cannot be shorter is refused if it is longer."""

    def send(self, command: RemotingCommand) -> None:
        """Send a command; nothing happens if the client has gone."""

    def send_frame(self, head: bytes, body: Sequence[Buffer] = ()) -> None:
        """Send a frame that is encoded already, with a body that may lie in several places."""

    def request(
        self, command: RemotingCommand, timeout_ms: int, then: Callable[[RemotingCommand | None], None]
    ) -> None:
        """Ask the client something. ``then`` gets its answer; None if there is none in time.

        There is none of a client that goes, or that leaves unread what it was sent.
        """

    def close(self, why: str) -> None:
        """End it; the reason is logged."""
