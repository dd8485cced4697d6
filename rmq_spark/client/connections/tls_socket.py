"""TlsSocket: a socket under TLS for one thread that reads and others that write.

OpenSSL's object for a connection is for one thread at a time, and Python's lock is not held within
it. So each call to it is short, never waits, and is made under a lock, which nobody holds when the
process forks (`fork_locks`); waiting for the network is done without:

    recv, send ──> lock: one try ──> done
                        └── nothing there, or no room ──> poll, without the lock ──> again, in time

A write that got nowhere may be tried again with the same bytes only, or the connection has to end:
that is what `FrameWriter` does. This module knows no frames; the methods are those of a socket that
a connection uses.
"""

from __future__ import annotations

import errno
import select
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeVar

from rmq_spark.client.connections.fork_locks import fork_lock
from rmq_spark.client.connections.tls_faults import why_tls_ended

_RECORD_BYTES: Final = 16_384
"""Most bytes of one record: after so many there may be more, after fewer hardly."""

_Done = TypeVar("_Done")


class TlsSocket:
    """A socket under TLS for one thread that reads and others that write, after its handshake."""

    def __init__(self, sock: ssl.SSLSocket) -> None:
        sock.settimeout(0)
        self._socket = sock
        self._lock = fork_lock()
        self._timeout: float | None = None
        self._is_shut = False

    def settimeout(self, seconds: float) -> None:
        """Set the seconds that each later call may take."""
        self._timeout = seconds

    def handshake(self) -> None:
        """Agree on keys with the other side, in the time of one call.

        Raises:
            OSError: That failed; with the error of OpenSSL as it is, or out of time.
        """
        self._until_done(self._socket.do_handshake, None)

    def recv(self, count: int) -> bytes:
        """Return up to so many bytes that have arrived; none at the end of the stream."""
        data = self._tried(lambda: self._socket.recv(count), b"")
        if len(data) < _RECORD_BYTES:
            return data
        pieces = [data]
        while len(data) == _RECORD_BYTES and (count := count - _RECORD_BYTES) > 0:
            data = self._received_already(count)
            pieces.append(data)
        return b"".join(pieces)

    def _received_already(self, count: int) -> bytes:
        """Return more bytes that have arrived; an error is left to the next call."""
        with self._lock, suppress(OSError):
            return b"" if self._is_shut else self._socket.recv(count)
        return b""

    def recv_into(self, room: memoryview) -> int:
        """Read bytes into a buffer, at most one record, and return their number; 0 at the end."""
        return self._tried(lambda: self._socket.recv_into(room), 0)

    def send(self, data: memoryview) -> int:
        """Send some of these bytes, at most one record, and return their number."""
        found = self._tried(lambda: self._socket.send(data), None)
        if found is None:
            raise BrokenPipeError(errno.EPIPE, "it is closed here")
        return found

    def shutdown(self, how: int) -> None:
        """Announce the end, without waiting for the answer, and wake the threads that wait."""
        with self._lock:
            if not self._is_shut:
                self._is_shut = True
                with suppress(OSError, ValueError):
                    self._socket.unwrap()
            self._socket.shutdown(how)

    def close(self) -> None:
        """Close the socket; a later call finds its end."""
        with self._lock:
            self._is_shut = True
            self._socket.close()

    def fileno(self) -> int:
        """Return the descriptor, to poll for the other side's end, but not for data to read."""
        return self._socket.fileno()

    def getsockname(self) -> tuple[str, int]:
        """Return this side's address."""
        name: tuple[str, int] = self._socket.getsockname()
        return name

    def getpeername(self) -> tuple[str, int]:
        """Return the other side's address; raise OSError once the connection has ended."""
        name: tuple[str, int] = self._socket.getpeername()
        return name

    def _tried(self, operate: Callable[[], _Done], at_end: _Done) -> _Done:
        """Try an operation until it is done, and tell its errors as those of a plain socket."""
        try:
            return self._until_done(operate, at_end)
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError) as error:
            raise BrokenPipeError(errno.EPIPE, "the broker has closed it") from error
        except ssl.SSLError as error:
            why = f"TLS: {why_tls_ended(error)}"
            raise ConnectionAbortedError(errno.ECONNABORTED, why) from error

    def _until_done(self, operate: Callable[[], _Done], at_end: _Done) -> _Done:
        """Try an operation until it is done without waiting, and return its result."""
        deadline: float | None = None
        while True:
            with self._lock:
                if self._is_shut:
                    return at_end
                try:
                    return operate()
                except ssl.SSLWantReadError:
                    awaited = select.POLLIN
                except ssl.SSLWantWriteError:
                    awaited = select.POLLOUT
                waited_for = select.poll()
                waited_for.register(self._socket, awaited)
            if self._timeout is not None and deadline is None:
                deadline = time.monotonic() + self._timeout
            remaining = None if deadline is None else deadline - time.monotonic()
            if remaining is not None and remaining <= 0:
                raise TimeoutError(errno.ETIMEDOUT, "timed out")
            waited_for.poll(None if remaining is None else remaining * 1000)
