"""Channel: the interface of a client's connection for the rest of the broker.

`server` implements it. Call it only on the broker's one thread; every call returns at once.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from rmq_spark.wire.extensions import Extension
from rmq_spark.wire.message.hosts import Host
from rmq_spark.wire.remoting.command import RemotingCommand
from rmq_spark.wire.remoting.framing import Buffer


@dataclass(frozen=True, slots=True)
class Identity:
    """The user, or the account of plain_acl.yml, that signs the requests of a connection.

    Attributes:
        name: The user's name, which is the access key.
        is_super: True if no access list applies: a super user, or an account with ``admin: true``.
        secret_key: The key that has proven the identity; once it changes, held requests are
            refused. None if the client's address needs no signature.
    """

    name: str
    is_super: bool = False
    secret_key: str | None = field(default=None, repr=False, compare=False)


BackgroundSteps: TypeAlias = Iterator["Future[None] | None"]
"""Work in steps, between which other work may run.

After a step that yields a future, the next step runs only once that future is done.
"""

ResponseSteps: TypeAlias = Generator["Future[None] | None", None, RemotingCommand | None]
"""The steps of a multi-step request.

The generator returns the response, or None if it comes later or is not wanted.
"""


class Channel(Protocol):
    """One connected client; compared by identity, so it can be a key of a dict."""

    extensions: frozenset[Extension]
    """The extensions of RocketMQ's protocol that both sides have agreed on."""

    identity: Identity | None
    """The identity that the first signed request has proven; None before that."""

    @property
    def remote_host(self) -> Host:
        """The address of the client, stored as the born host of its messages."""

    @property
    def local_host(self) -> Host:
        """The broker's address to which the client has connected."""

    @property
    def is_closed(self) -> bool:
        """True if nothing that is sent can arrive any more."""

    @property
    def is_congested(self) -> bool:
        """True if the client leaves responses unread."""

    @property
    def response_bytes_max(self) -> int:
        """The maximum bytes of a response now; a larger one that cannot be shortened is refused."""

    def send(self, command: RemotingCommand) -> None:
        """Send a command; do nothing if the client has disconnected."""

    def send_frame(self, head: bytes, body: Sequence[Buffer] = ()) -> None:
        """Send an encoded frame, with a body that may consist of several buffers."""

    def request(
        self,
        command: RemotingCommand,
        timeout_ms: int,
        callback: Callable[[RemotingCommand | None], None],
    ) -> None:
        """Send a request to the client; ``callback`` gets its response, or None after the timeout.

        ``callback`` is also called with None if the client disconnects, or does not read.
        """

    def close(self, reason: str) -> None:
        """Close the connection, and log the reason."""
