"""FrameWriter: requests to a socket, at once or gathered, and never for longer than they have time.

    write     whoever asks writes: soonest for one
    gather    a thread writes all that has come in the meantime at once: many times as fast for thousands

Half a request cannot be taken back: where the peer takes no more within the time, the connection has to end.
"""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from rmq_spark.client.errors import ClientError, ConnectionClosed, RequestTimeout
from rmq_spark.wire.command import RemotingCommand
from rmq_spark.wire.framing import Buffer

if TYPE_CHECKING:
    from rmq_spark.client.tls_socket import TlsSocket

TICK_SECONDS: Final = 1.0
"""How long a call to the socket takes at most; the socket's own timeout."""

WRITE_TIMEOUT_MS: Final = 30_000
"""For what has gathered: a peer that takes nothing for so long is left."""

_LARGE_BODY_BYTES: Final = 1 << 16


class FrameWriter:
    """See the module. All methods may be called from any thread."""

    def __init__(
        self,
        sock: socket.socket | TlsSocket,
        address: str,
        clock: Callable[[], float],
        check: Callable[[], None],
        end: Callable[[ClientError], None],
        why_gone: Callable[[str], str],
    ) -> None:
        """``check`` raises if nothing can be written any more; ``end`` ends the connection.

        ``why_gone`` says more of why the peer may have gone.
        """
        self._socket = sock
        self._address = address
        self._clock = clock
        self._check = check
        self._end = end
        self._why_gone = why_gone
        self._lock = threading.Lock()
        self._gathering = threading.Condition()
        self._gathered: deque[bytes] = deque()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def write(self, command: RemotingCommand, deadline: float, timeout_ms: int) -> None:
        """Write it now.

        Raises:
            RequestTimeout: The peer takes nothing. If it has taken a part, the connection is at its end.
            ConnectionClosed: It is already.
        """
        body: Buffer = command.body
        if len(body) < _LARGE_BODY_BYTES:
            pieces: tuple[Buffer, ...] = (command.encode(),)
        else:
            pieces = (command.encode_head(len(body)), body)
        if not self._lock.acquire(timeout=max(deadline - self._clock(), 0)):
            raise RequestTimeout(self._address, command.code, timeout_ms)
        try:
            self._check()
            self._write_pieces(pieces, deadline, command.code, timeout_ms)
        finally:
            self._lock.release()

    def gather(self, command: RemotingCommand) -> None:
        """Have it written soon, with what else there will be by then."""
        frame = command.encode()
        with self._gathering:
            is_first = not self._gathered
            self._gathered.append(frame)
            if not is_first:
                return  # the first has said so already, and the thread has not taken it yet
            if self._thread is None:
                name = f"rocketpoll writer {self._address}"
                self._thread = threading.Thread(target=self._write_on, name=name, daemon=True)
                self._thread.start()
            self._gathering.notify()

    def close(self) -> None:
        """Nothing more is written."""
        with self._gathering:
            self._is_closed = True
            self._gathering.notify()

    def _write_on(self) -> None:
        """What the thread does that writes what has gathered."""
        while not self._is_closed:
            with self._gathering:
                while not self._gathered and not self._is_closed:
                    self._gathering.wait(TICK_SECONDS)
            pieces = (b"".join(self._taken()),)
            with suppress(ClientError), self._lock:  # those who wait for answers are told of a failure
                self._write_pieces(pieces, self._clock() + WRITE_TIMEOUT_MS / 1000, 0, WRITE_TIMEOUT_MS)

    def _taken(self) -> Iterator[bytes]:
        with suppress(IndexError):
            while True:
                yield self._gathered.popleft()

    def _write_pieces(self, pieces: Iterable[Buffer], deadline: float, code: int, timeout_ms: int) -> None:
        try:
            for piece in pieces:
                self._write_piece(memoryview(piece).cast("B"), deadline, code, timeout_ms)
        except ClientError:
            raise  # which has ended it
        except BaseException:  # as Ctrl-C: how much has been sent, nobody knows
            self._end(ConnectionClosed(self._address, "interrupted in the middle of a request"))
            raise

    def _write_piece(self, unsent: memoryview, deadline: float, code: int, timeout_ms: int) -> None:
        while unsent:
            try:
                unsent = unsent[self._socket.send(unsent) :]
            except TimeoutError:
                pass  # a tick is over; the deadline decides
            except OSError as error:
                closed = ConnectionClosed(self._address, self._why_gone(error.strerror or str(error)))
                self._end(closed)
                self._check()  # who reads may have found out before, and knows better why
                raise closed from error
            if unsent and self._clock() >= deadline:
                self._end(ConnectionClosed(self._address, "it takes no more requests"))
                raise RequestTimeout(self._address, code, timeout_ms)
