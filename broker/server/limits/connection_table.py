"""ConnectionTable: the interface between a connection and the server that watches over all.

The server implements it, so that a connection need not import the server.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

from rmq_spark.wire.codes import ResponseCode

from .concurrency_limit import ConcurrencyLimit

_Connection_contra = TypeVar("_Connection_contra", contravariant=True)


class ConnectionTable(Protocol[_Connection_contra]):
    """The server's side of a connection: it receives events and enforces common limits."""

    @property
    def response_bytes_max(self) -> int:
        """The maximum size of an answer now, in bytes; smaller as clients leave more unread."""

    def response_fault(self, size: int) -> tuple[ResponseCode, str] | None:
        """Return why an answer of this size is refused, with the code for that.

        None if it is given.
        """

    @property
    def concurrency_limit(self) -> ConcurrencyLimit:
        """The permits for multi-step requests."""

    def register(self, connection: _Connection_contra) -> str | None:
        """Count a new connection. Return None, or why it may not stay."""

    def protocol_accepted(self, connection: _Connection_contra) -> None:
        """Note that the header of a client's first request has arrived."""

    def record_requests(
        self, connection: _Connection_contra, size: int, *, is_waiting: bool = False
    ) -> None:
        """Note that ``size`` bytes of requests are here.

        They wait for their turn if ``is_waiting``, else for the client: the last one is not whole,
        or it does not read its answers.
        """

    def record_unread(self, connection: _Connection_contra, size: int) -> None:
        """Note that ``size`` bytes of answers are kept as the client does not read them."""

    def discard_unread(self, connection: _Connection_contra) -> None:
        """Note that the client has read all that was kept."""

    def unregister(self, connection: _Connection_contra) -> None:
        """Forget a connection that has ended."""
