"""PendingReplies: requests that wait for the response of another client, counted in bytes.

    replies           wait until their producer has acknowledged them
    questions         to a consumer, or to all members of a group, wait for their responses

The other client may take ten seconds, and may conspire with the requester. So the bytes are
limited, in total and for each requester; past the limit, requests are refused as busy.
"""

from __future__ import annotations

from typing import Final

from rmq_spark.wire.codes import ResponseCode
from rmq_spark.wire.remoting.command import RemotingCommand

from ...common.channel import Channel
from ...common.outgoing_requests import ReplyCallback
from ..request import RequestRejected

BYTES_MAX: Final = 32 << 20
"""The maximum for all clients: eight replies of maximum size, or thousands of usual ones."""
CLIENT_SHARE: Final = 8
"""A client may use 1/8 of the maximum; a single request may always wait, whatever its size."""
REQUEST_BYTES: Final = 4_096
"""Bytes that each request counts for in addition to its content: timer, callbacks, requester."""


class PendingReplies:
    """The pending requests of all processors of one broker, in bytes."""

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self.bytes = 0
        self._bytes_by_client: dict[Channel, int] = {}

    def request(
        self,
        requester: Channel,
        target: Channel,
        command: RemotingCommand,
        timeout_ms: int,
        callback: ReplyCallback,
        *,
        kept_bytes: int = 0,
    ) -> None:
        """Send a request to a client on behalf of another one.

        ``callback`` gets the response, or None without one; until then it holds ``kept_bytes``.
        """
        size = kept_bytes + REQUEST_BYTES
        self.acquire(requester, size)

        def on_response(found: RemotingCommand | None) -> None:
            self.release(requester, size)
            callback(found)

        try:
            target.request(command, timeout_ms, on_response)
        except BaseException:
            self.release(requester, size)
            raise

    def acquire(self, requester: Channel, size: int) -> None:
        """Add ``size`` bytes to the requester's pending bytes, or refuse the request as busy."""
        own, own_max = self._bytes_by_client.get(requester, 0), self._bytes_max // CLIENT_SHARE
        if own and own + size > own_max:
            raise _busy(
                f"requests of this client that wait for others' answers take {own} bytes of "
                f"{own_max}"
            )
        if self.bytes and self.bytes + size > self._bytes_max:
            raise _busy(
                f"requests that wait for other clients' answers take {self.bytes} bytes of "
                f"{self._bytes_max}"
            )
        self.bytes += size
        self._bytes_by_client[requester] = own + size

    def release(self, requester: Channel, size: int) -> None:
        """Subtract ``size`` bytes from the requester's pending bytes."""
        self.bytes -= size
        self._bytes_by_client[requester] -= size
        if not self._bytes_by_client[requester]:
            del self._bytes_by_client[requester]


def _busy(reason: str) -> RequestRejected:
    return RequestRejected(
        ResponseCode.SYSTEM_BUSY, f"[REJECTREQUEST]system busy, {reason}: try again later"
    )
