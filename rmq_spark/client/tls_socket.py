"""TlsSocket: a socket under TLS for one thread that reads and others that write.

OpenSSL's object for a connection is for one thread at a time, and Python's lock is not held within it. So
each call to it is short, never waits, and is made under a lock; waiting for the network is done without:

    recv, send ──> lock: one try ──> done
                        └── nothing there, or no room ──> poll, without the lock ──> again, until time is over

A write that got nowhere may be tried again with the same bytes only, or the connection has to end: that is
what `FrameWriter` does. It knows no frames; its methods are those of a socket that a connection uses.
"""

from __future__ import annotations

import errno
import select
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeVar

from rmq_spark.client.tls_faults import why_tls_ended

_RECORD_BYTES: Final = 16_384
"""What one record holds at most: after so many there may be more, after fewer hardly."""

_Done = TypeVar("_Done")


class TlsSocket:
    """See the module. The handshake is behind it."""

    def __init__(self, sock: ssl.SSLSocket) -> None:
        sock.settimeout(0)
        self._socket = sock
        self._lock = threading.Lock()
        self._timeout: float | None = None
        self._is_shut = False

    def settimeout(self, seconds: float) -> None:
        """How long a call may take, from the next on."""
        self._timeout = seconds

    def recv(self, count: int) -> bytes:
        """What has arrived, up to so many bytes; none at the end."""
        data = self._tried(lambda: self._socket.recv(count), b"")
        if len(data) < _RECORD_BYTES:
            return data
        pieces = [data]
        while len(data) == _RECORD_BYTES and (count := count - _RECORD_BYTES) > 0:
            data = self._received_already(count)
            pieces.append(data)
        return b"".join(pieces)

    def _received_already(self, count: int) -> bytes:
        """More of what has arrived; whatever is wrong is met again by the next call."""
        with self._lock, suppress(OSError):
            return b"" if self._is_shut else self._socket.recv(count)
        return b""

    def recv_into(self, room: memoryview) -> int:
        """The same to where it belongs, a record at a time."""
        return self._tried(lambda: self._socket.recv_into(room), 0)

    def send(self, data: memoryview) -> int:
        """How many of these bytes are on their way: a record's at most."""
        found = self._tried(lambda: self._socket.send(data), None)
        if found is None:
            raise BrokenPipeError(errno.EPIPE, "it is closed here")
        return found

    def shutdown(self, how: int) -> None:
        """Say that this is the end, without waiting for the answer, and wake who waits."""
        with self._lock:
            if not self._is_shut:
                self._is_shut = True
                with suppress(OSError, ValueError):
                    self._socket.unwrap()
            self._socket.shutdown(how)

    def close(self) -> None:
        """Let go of it."""
        with self._lock:
            self._is_shut = True
            self._socket.close()

    def detach(self) -> int:
        """The descriptor, for whoever closes it without a word to the peer."""
        return self._socket.detach()

    def fileno(self) -> int:
        """What can be polled for the other side's end. Whether something can be read, it cannot tell."""
        return self._socket.fileno()

    def getsockname(self) -> tuple[str, int]:
        """This side's address."""
        name: tuple[str, int] = self._socket.getsockname()
        return name

    def _tried(self, operate: Callable[[], _Done], at_end: _Done) -> _Done:
        """What comes of it, when it can be done without waiting."""
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
                except (ssl.SSLEOFError, ssl.SSLZeroReturnError) as error:
                    raise BrokenPipeError(errno.EPIPE, "the broker has closed it") from error
                except ssl.SSLError as error:
                    why = f"TLS: {why_tls_ended(error)}"
                    raise ConnectionAbortedError(errno.ECONNABORTED, why) from error
                waited_for = select.poll()
                waited_for.register(self._socket, awaited)
            if self._timeout is not None and deadline is None:
                deadline = time.monotonic() + self._timeout
            remaining = None if deadline is None else deadline - time.monotonic()
            if remaining is not None and remaining <= 0:
                raise TimeoutError(errno.ETIMEDOUT, "timed out")
            waited_for.poll(None if remaining is None else remaining * 1000)
