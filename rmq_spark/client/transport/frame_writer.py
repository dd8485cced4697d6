"""FrameWriter: writes requests to a socket, at once or gathered, never past their deadlines.

    write     the requesting thread writes: fastest for one
    enqueue   a thread writes the gathered requests, a slice at a time: many times as fast for
              thousands; or the requesting thread does, at the end of its turn, without waiting
    cancel    a gathered request that is no longer needed is not written

A partly written request cannot be withdrawn. A thread whose deadline passes in the middle of one
leaves the rest to the next writer, because others share the connection. The connection is closed if
the peer reads nothing for long while requests wait, or if it is unknown how much was sent.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from rmq_spark.client.arguments import message_rejected
from rmq_spark.client.concurrency.threads import start_thread
from rmq_spark.client.errors import ClientError, ConnectionClosed, RequestTimeout
from rmq_spark.client.transport.sockets import poll_writable
from rmq_spark.errors import WireError
from rmq_spark.wire.remoting.command import RemotingCommand
from rmq_spark.wire.remoting.framing import Buffer

if TYPE_CHECKING:
    from rmq_spark.client.transport.tls.client import TlsSocket

_log = logging.getLogger(__name__)

TICK_SECONDS: Final = 1.0
"""Most seconds of one call to the socket: the socket's own timeout."""

WRITE_TIMEOUT_MS: Final = 30_000
"""Milliseconds for gathered requests; the connection to a peer that reads nothing for this long is
closed."""

SLICE_BYTES: Final = 1 << 18
"""Bytes of gathered requests written in one slice: later ones can still be withdrawn."""

_LARGE_BODY_BYTES: Final = 1 << 16
_FLUSH_BYTES: Final = 1 << 16

TURN_SECONDS: Final = 0.05
"""Seconds after which the writer's thread writes for a loop that is too busy to do it."""

CallSoon = Callable[[Callable[[], object]], object]
"""Makes this thread call a function soon: at the end of its event loop's turn."""


class FrameWriter:
    """Writes frames to one socket. All methods may be called from any thread."""

    def __init__(
        self,
        sock: socket.socket | TlsSocket,
        address: str,
        clock: Callable[[], float],
        check_open: Callable[[], None],
        close_connection: Callable[[ClientError], None],
        read_rest: Callable[[], None],
        close_reason: Callable[[str], str],
    ) -> None:
        """Make a writer; ``check_open`` raises once the connection is closed.

        ``read_rest`` reads what the peer sent before it closed the connection, and
        ``close_reason`` adds to an error why the peer may have closed it.
        """
        self._socket = sock
        self._address = address
        self._clock = clock
        self._check_open = check_open
        self._close_connection = close_connection
        self._read_rest = read_rest
        self._close_reason = close_reason
        self._write_lock = threading.Lock()
        # The first piece may be the rest of another thread's request.
        self._unsent: deque[memoryview] = deque()
        self._mutex = threading.Lock()
        self._has_queued = threading.Condition(self._mutex)
        self._unsent_bytes = 0
        self._queued: OrderedDict[int, tuple[Buffer, ...]] = OrderedDict()  # by opaque
        self._queued_bytes = 0
        self._in_flight: frozenset[int] = frozenset()  # opaques of the slice that is being written
        self._is_thread_needed = False  # for gathered requests, or the rest of a slice
        self._turn_deadline = 0.0
        self._is_thread_watching = False  # True while it waits for the end of a turn
        self._poll: Callable[[float | None], bool] | None = None
        self._is_nonblocking = isinstance(sock, socket.socket)  # under TLS, a write may block
        self._on_released: list[Callable[[], object]] = []  # called when a slice is written
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def write(self, command: RemotingCommand, deadline: float, timeout_ms: int) -> None:
        """Write a request now."""
        if not self._write_lock.acquire(timeout=max(deadline - self._clock(), 0)):
            raise RequestTimeout(self._address, command.code, timeout_ms)
        try:
            self._check_open()
            if not self._write_all(deadline, _encode_frame(command)):
                raise RequestTimeout(self._address, command.code, timeout_ms)
        finally:
            self._write_lock.release()

    def enqueue(self, command: RemotingCommand, call_soon: CallSoon | None = None) -> None:
        """Write a request soon, together with others that arrive until then.

        With ``call_soon`` this thread writes what the socket accepts at once, and the writer's own
        thread the rest, which saves a thread switch. That thread checks that the call happens in
        time.
        """
        pieces = _encode_frame(command)
        with self._mutex:
            is_first = not self._queued
            self._queued[command.opaque] = pieces
            self._queued_bytes += sum(map(len, pieces))
            has_thread = self._thread is not None or self._start_thread()
            if has_thread and (call_soon is None or not self._is_nonblocking):
                self._wake_thread()
                return
            if is_first and has_thread:
                self._turn_deadline = self._clock() + TURN_SECONDS
                if not self._is_thread_watching:
                    self._has_queued.notify()
        if not has_thread or call_soon is None:
            self._write_queued()
        elif self._queued_bytes >= _FLUSH_BYTES:
            self.flush_nonblocking()
        elif is_first:
            call_soon(self.flush_nonblocking)

    def flush_nonblocking(self) -> None:
        """Write the gathered requests, as far as the socket accepts them without blocking."""
        if self._write_lock.acquire(blocking=False):
            try:
                with suppress(ClientError):  # the waiters get the failure
                    self._write_nonblocking()
            finally:
                self._write_lock.release()
        if self._queued or self._unsent:
            with self._mutex:
                self._wake_thread()
        else:
            self._notify_released()

    def _wake_thread(self) -> None:
        if not self._is_thread_needed:  # otherwise the thread has yet to wake
            self._is_thread_needed = True
            self._has_queued.notify()

    def _write_nonblocking(self) -> None:
        try:
            while (self._unsent or self._queued) and self._is_writable():
                if not self._unsent:
                    self._append_unsent(_coalesce(self._next_slice()))
                if self._unsent:  # gathered frames may be cancelled by now
                    self._write_some()
        except BaseException as error:
            self._close_after(error)
            raise

    def _close_after(self, error: BaseException) -> None:
        """Close the connection after Ctrl-C, for example: it is unknown how much was sent."""
        if not isinstance(error, ClientError):  # otherwise the connection has ended
            why = "interrupted in the middle of a request"
            self._close_connection(ConnectionClosed(self._address, why))

    def _is_writable(self) -> bool:
        if self._poll is None:
            try:
                self._poll = poll_writable(self._socket)
            except ValueError:  # the socket is closed by now
                return False
        return self._poll(0)

    def _start_thread(self) -> bool:
        name = f"rocketpoll writer {self._address}"
        thread = threading.Thread(target=self._run, name=name, daemon=True)
        try:
            start_thread(thread)
        except RuntimeError:  # at a limit of threads: this thread writes until one can start
            return False
        self._thread = thread
        return True

    def cancel(self, opaque: int, on_released: Callable[[], object] | None = None) -> None:
        """Cancel a gathered request, unless its writing has begun.

        ``on_released`` is called when none of its bytes is kept: now, or by the writing thread.
        """
        with self._mutex:
            pieces = self._queued.pop(opaque, ())
            self._queued_bytes -= sum(map(len, pieces))
            if opaque in self._in_flight:
                if on_released is not None:
                    self._on_released.append(on_released)
                return
        if on_released is not None:
            on_released()

    @property
    def unwritten_bytes(self) -> int:
        """Number of bytes that are not written to the socket yet."""
        return self._queued_bytes + self._unsent_bytes

    @property
    def thread_count(self) -> int:
        """Number of writing threads: one, once anything was gathered."""
        return int(self._thread is not None and self._thread.is_alive())

    def join(self, seconds: float) -> None:
        """Wait up to ``seconds`` until the thread has ended; call `close` first."""
        if self._thread is not None:
            self._thread.join(seconds)

    def close(self) -> None:
        """Stop writing, and let the thread end."""
        self._is_closed = True
        with self._mutex:
            self._queued.clear()
            self._queued_bytes = 0
            self._has_queued.notify()
        self._notify_released()

    def _run(self) -> None:
        try:
            while not self._is_closed:
                with self._mutex:
                    while not (self._is_thread_needed or self._is_closed):
                        left = self._turn_deadline - self._clock()
                        if self._queued and left <= 0:
                            break
                        self._is_thread_watching = left > 0
                        self._has_queued.wait(left if self._is_thread_watching else TICK_SECONDS)
                self._write_queued()
        except Exception as error:  # noqa: BLE001  # a shortage of memory, for example
            why = f"the gathered requests could not be written: {type(error).__name__}: {error}"
            self._close_connection(ConnectionClosed(self._address, why))
            _log.error("%s: writing failed", self._address, exc_info=error)

    def _write_queued(self) -> None:
        while self._queued or self._is_thread_needed:
            with suppress(ClientError), self._write_lock:  # the waiters get the failure
                self._is_thread_needed = False
                pieces = self._next_slice()
                deadline = self._clock() + WRITE_TIMEOUT_MS / 1000
                if not self._write_all(deadline, _coalesce(pieces)):
                    self._close_connection(
                        ConnectionClosed(self._address, "it accepts no more requests")
                    )
            self._notify_released()

    def _next_slice(self) -> list[Buffer]:
        opaques: list[int] = []
        found: list[Buffer] = []
        size = 0
        with self._mutex:
            while self._queued and size < SLICE_BYTES:
                opaque, pieces = self._queued.popitem(last=False)
                opaques.append(opaque)
                found += pieces
                size += sum(map(len, pieces))
            self._queued_bytes -= size
            self._in_flight = self._in_flight.union(opaques)
        return found

    def _notify_released(self) -> None:
        with self._mutex:
            self._in_flight = frozenset()
            waiting, self._on_released = self._on_released, []
        for released in waiting:
            released()

    def _write_all(self, deadline: float, pieces: Iterable[Buffer]) -> bool:
        """Write the rest of another writer's frame, then these; return False at the deadline.

        An unsent frame is dropped; of a partly sent one, the rest is kept.
        """
        own = self._append_unsent(pieces)
        try:
            while self._unsent:
                self._write_some()
                if self._unsent and self._clock() >= deadline:
                    if any(piece is own[0] for piece in self._unsent):
                        for _ in own:
                            self._unsent_bytes -= len(self._unsent.pop())
                    return False
        except BaseException as error:
            self._close_after(error)
            raise
        return True

    def _append_unsent(self, pieces: Iterable[Buffer]) -> list[memoryview]:
        own = [memoryview(piece).cast("B") for piece in pieces]
        self._unsent.extend(own)
        self._unsent_bytes += sum(map(len, own))
        return own

    def _write_some(self) -> None:
        unsent = self._unsent
        try:
            sent = self._socket.send(unsent[0])
        except TimeoutError:
            return  # a tick has passed; the caller checks the deadline
        except OSError as error:
            if isinstance(error, (BrokenPipeError, ConnectionResetError)):
                self._read_rest()
            closed = ConnectionClosed(
                self._address, self._close_reason(error.strerror or str(error))
            )
            self._close_connection(closed)
            self._check_open()  # the reading thread may know the actual cause
            raise closed from error
        self._unsent_bytes -= sent
        if sent == len(unsent[0]):
            unsent.popleft()
        else:
            unsent[0] = unsent[0][sent:]


def _encode_frame(command: RemotingCommand) -> tuple[Buffer, ...]:
    """Return a frame in pieces, so that a large body is not copied."""
    body = command.body
    try:
        if len(body) < _LARGE_BODY_BYTES:
            return (command.encode(),)
        return (command.encode_head(len(body)), body)
    except WireError as error:
        raise message_rejected(error) from error


def _coalesce(pieces: Iterable[Buffer]) -> list[Buffer]:
    """Return the pieces with small ones joined, so that they are written together."""
    found: list[Buffer] = []
    small: list[Buffer] = []
    for piece in pieces:
        if len(piece) < _LARGE_BODY_BYTES:
            small.append(piece)
            continue
        found += (b"".join(small), piece)
        small = []
    return [piece for piece in (*found, b"".join(small)) if piece]
