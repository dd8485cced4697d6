"""AwaitedAnswers: requests that wait for the answer of another client, counted in bytes.

    replies           wait until the producer that is to get them has taken them
    questions         to a consumer, or to all members of a group, wait for what these say

Whoever is asked may take ten seconds, and may be in league with whoever asks. So what waits is
bounded, in all and for each asker; beyond, requests are refused as busy. It knows no socket.
"""

from __future__ import annotations

from typing import Final

from rmq_spark.wire.codes import ResponseCode
from rmq_spark.wire.command import RemotingCommand

from ...common.connection import Connection
from ...common.outgoing_requests import Then
from ..request import RequestRejected

BYTES_MAX: Final = 32 << 20
"""Of all: eight replies of the longest, or thousands of usual ones."""
SHARE: Final = 8
"""One client's requests may take so much of what all may take; one always may wait,
however long."""
QUESTION_BYTES: Final = 4_096
"""Bytes that each counts for beside what it says: a timer, callbacks, and who is to be answered."""


class AwaitedAnswers:
    """Counts for all processors of one broker."""

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._of: dict[Connection, int] = {}

    @property
    def bytes(self) -> int:
        """Bytes that all that wait take."""
        return self._bytes

    def ask(
        self,
        asker: Connection,
        asked: Connection,
        command: RemotingCommand,
        timeout_ms: int,
        then: Then,
        *,
        kept_bytes: int = 0,
    ) -> None:
        """Ask a client something for another one.

        ``then`` gets the answer, or None if there is none.

        ``kept_bytes`` is how much ``then`` keeps in memory until it is called.

        Raises:
            RequestRejected: Too much waits already.
        """
        size = kept_bytes + QUESTION_BYTES
        self.take(asker, size)

        def answered(found: RemotingCommand | None) -> None:
            self.release(asker, size)
            then(found)

        try:
            asked.request(command, timeout_ms, answered)
        except BaseException:
            self.release(asker, size)
            raise

    def take(self, asker: Connection, size: int) -> None:
        """Count so many bytes more.

        Raises:
            RequestRejected: Too much waits already; nothing was counted.
        """
        own, own_max = self._of.get(asker, 0), self._bytes_max // SHARE
        if own and own + size > own_max:
            raise _busy(
                f"requests of this client that wait for others' answers take {own} bytes of "
                f"{own_max}"
            )
        if self._bytes and self._bytes + size > self._bytes_max:
            raise _busy(
                f"requests that wait for other clients' answers take {self._bytes} bytes of "
                f"{self._bytes_max}"
            )
        self._bytes += size
        self._of[asker] = own + size

    def release(self, asker: Connection, size: int) -> None:
        """Count so many bytes less: they wait no longer."""
        self._bytes -= size
        self._of[asker] -= size
        if not self._of[asker]:
            del self._of[asker]


def _busy(why: str) -> RequestRejected:
    return RequestRejected(
        ResponseCode.SYSTEM_BUSY, f"[REJECTREQUEST]system busy, {why}: try again later"
    )
