"""Connection: one socket to one address, requests matched with their answers.

    request ──> opaque (`waiters`) ──> socket (`frame_writer`, `incoming`) ──> opaque ──> waiter

Answers come in any order. Either a thread of the connection reads, or (``reads_itself``) the thread
that waits does, which saves two switches of threads for each request: made for a program with one
puller.

Every wait is bounded, and ends in an exception: on garbage, on answers that nobody asked for, and
on the stream's end all that wait are told at once. This module knows neither routes nor what
requests mean.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

from rmq_spark.client.concurrency import deferred_wakeups
from rmq_spark.client.concurrency.locks import SIGNALS_SECONDS, mutex, start_thread
from rmq_spark.client.errors import (
    ClientError,
    ConnectionClosed,
    ConnectionFailed,
    ProtocolError,
    RequestTimeout,
)
from rmq_spark.client.transport.frame_writer import TICK_SECONDS, FrameWriter
from rmq_spark.client.transport.pending_requests import Answer, Waiter, Waiters, tell_each
from rmq_spark.client.transport.response_reader import Incoming
from rmq_spark.client.transport.sockets import OWN_SOCKETS, find_silence_early
from rmq_spark.errors import RocketPollError
from rmq_spark.wire.codes import ResponseCode
from rmq_spark.wire.command import RemotingCommand
from rmq_spark.wire.flags import CommandFlag
from rmq_spark.wire.framing import FRAME_BYTES_MAX
from rmq_spark.wire.hosts import Host, host_of

if TYPE_CHECKING:
    from rmq_spark.client.transport.tls.client import TlsClient, TlsSocket

_log = logging.getLogger(__name__)
_Found = TypeVar("_Found")

OnRequest = Callable[["Connection", RemotingCommand], "RemotingCommand | None"]
"""Handles a request of a broker, in the thread that reads: it must not wait for the connection."""

CONNECT_TIMEOUT_MS: Final = 3_000

SILENCE_SECONDS: Final = 1.0
"""A peer that sends nothing for so long while a request waits in vain counts as gone."""

_ONE_WAY: Final = CommandFlag.ONE_WAY.value
_PORT_DIGITS_MAX: Final = 20


def as_it_is(command: RemotingCommand) -> RemotingCommand:
    """Return the raw response; the caller interprets it."""
    return command


class Connection:
    """A socket to one address, for requests and responses. All methods are thread-safe."""

    def __init__(
        self,
        sock: socket.socket | TlsSocket,
        address: str,
        on_request: OnRequest | None = None,
        on_closed: Callable[[Connection], None] | None = None,
        *,
        reads_itself: bool = False,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """Take over a connected socket.

        ``on_closed`` is called once, by the thread that finds out; ``clock`` is `time.monotonic` by
        default.
        """
        self.address = address
        self.clock = clock = clock or time.monotonic
        self._socket = sock
        self._on_request = on_request
        self._on_closed = on_closed
        self._incoming = Incoming(sock, address, clock, frame_bytes_max)
        self._waiters = Waiters(address)
        self._writer = FrameWriter(
            sock=sock,
            address=address,
            clock=clock,
            check=self._check_has_not_ended,
            end=self._end,
            why_gone=self._incoming.why_gone,
        )
        self._finding = mutex()
        self._found: tuple[Any, ...] = ()
        self._silent_since: float | None = None
        self.fell_silent = False
        self._reads_itself = reads_itself
        self._read_by: int | None = None  # the thread whose turn it is
        self._changing_turn = mutex()
        self._turn = threading.Condition(self._changing_turn)
        sock.settimeout(TICK_SECONDS)
        name = f"rocketpoll reader {address}"
        self._reader = threading.Thread(target=self._read_on, name=name, daemon=True)
        if not reads_itself:
            start_thread(self._reader)

    @classmethod
    def connect(
        cls,
        address: str,
        on_request: OnRequest | None = None,
        on_closed: Callable[[Connection], None] | None = None,
        *,
        reads_itself: bool = False,
        timeout_ms: int = CONNECT_TIMEOUT_MS,
        tls: TlsClient | None = None,
    ) -> Connection:
        """Connect to ``host:port``; a TLS handshake has the time that connecting leaves.

        Raises:
            ConnectionFailed: No connection, or no TLS, within ``timeout_ms``.
        """
        host, port = parse_address(address)
        deadline = time.monotonic() + timeout_ms / 1000
        try:
            sock = OWN_SOCKETS.connected(host, port, timeout_ms / 1000)
        except TimeoutError as error:
            raise ConnectionFailed(address, f"no answer within {timeout_ms} ms") from error
        except OSError as error:
            raise ConnectionFailed(address, error.strerror or str(error)) from error
        find_silence_early(sock)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        under_tls = (
            None if tls is None else tls.handshake(sock, address, host, deadline - time.monotonic())
        )
        try:
            return cls(under_tls or sock, address, on_request, on_closed, reads_itself=reads_itself)
        except RuntimeError as error:  # at a limit of threads
            (under_tls or sock).close()
            raise ConnectionFailed(
                address, f"no thread can be started that reads from it: {error}"
            ) from error

    @property
    def quiet_seconds(self) -> float:
        """Seconds since something last came from the peer."""
        return self.clock() - self._incoming.received_at

    @property
    def peer_version(self) -> int:
        """RocketMQ's number of the peer's version; 0 before it has answered anything."""
        return self._incoming.peer_version

    @property
    def is_closed(self) -> bool:
        """True if the connection has ended."""
        return self._waiters.ended is not None

    @property
    def waiting(self) -> int:
        """Number of answers that are waited for."""
        return len(self._waiters)

    @property
    def unwritten_bytes(self) -> int:
        """Number of bytes of requests that the socket has yet to take."""
        return self._writer.unwritten_bytes

    @property
    def thread_count(self) -> int:
        """Number of threads of the connection that are alive."""
        reads = not self._reads_itself and not self.is_closed
        return reads + self._writer.thread_count

    @property
    def local_address(self) -> str:
        """Address of this machine on the way to the peer; empty once the connection has ended."""
        try:
            return str(self._socket.getsockname()[0])
        except OSError:
            return ""

    @property
    def ends(self) -> tuple[Host, Host] | None:
        """The hosts of this side and of the peer; None once the system has ended the connection.

        While there are any, no other connection of this machine has the same.
        """
        try:
            return host_of(self._socket.getsockname()), host_of(self._socket.getpeername())
        except (OSError, ValueError):
            return None

    def found_once(self, find: Callable[[Connection], _Found]) -> _Found:
        """Return what ``find`` returns for this connection; it is called once, unless it fails."""
        with self._finding:
            if not self._found:
                self._found = (find(self),)
            found: _Found = self._found[0]
        return found

    # ---- asking

    def request(self, command: RemotingCommand, timeout_ms: int) -> RemotingCommand:
        """Send a request, wait for the response, and return it, whatever its code is.

        Raises:
            RequestTimeout: No response came in time. If the peer has been silent for a second, the
                connection is closed as well.
            ConnectionClosed: The stream ended first.
            ProtocolError: The bytes that came are not a response.
        """
        answer: Answer[RemotingCommand] = self.request_async(command, timeout_ms)
        try:
            return answer.result(max(answer.deadline - self.clock(), 0))
        except FutureTimeout:
            self._give_up_on(answer)
        try:
            return answer.result(TICK_SECONDS)  # it was given up, or is being answered this moment
        except FutureTimeout as error:  # by a thread that is held up, as in a handler of the log
            raise RequestTimeout(self.address, command.code, timeout_ms) from error

    def request_async(
        self,
        command: RemotingCommand,
        timeout_ms: int,
        interpret: Callable[[RemotingCommand], Any] = as_it_is,
        *,
        may_gather: bool = False,
    ) -> Answer[Any]:
        """Send a request and return a future of the response, as ``interpret`` turns it.

        If ``interpret`` raises an error, the future fails with it. Callbacks of the future run in
        the thread that reads: they must not wait for this connection.
        """
        answer: Answer[Any] = Answer(self, command.code, timeout_ms, self.clock(), interpret)
        self.ask(answer, command, may_gather=may_gather)
        return answer

    def ask(self, waiter: Waiter, command: RemotingCommand, *, may_gather: bool = False) -> None:
        """Send a request; the thread that reads tells the waiter the response.

        ``may_gather`` leaves writing to a thread, which sends all that has gathered at once: many
        times as fast for somebody who has thousands to send, and a switch of threads slower for
        one.
        """
        command = command.with_opaque(self._waiters.add(waiter))
        try:
            if may_gather and not self._reads_itself:
                waiter.keeper = self._writer
                self._writer.gather(command, waiter.soon)
                if not self._waiters.is_waiting(waiter):  # given up meanwhile: nobody is waiting
                    self._writer.withdraw(waiter.opaque)
            else:
                self._writer.write(command, waiter.deadline, waiter.timeout_ms)
        except RocketPollError as error:
            if self._waiters.remove(waiter):
                if isinstance(error, RequestTimeout):
                    self._waited_in_vain(waiter)
                raise
        except BaseException:  # Ctrl-C, for example: nobody waits any more
            self.forget(waiter)
            raise

    def send_one_way(self, command: RemotingCommand, timeout_ms: int) -> None:
        """Send a request that is not answered."""
        command = command._replace(opaque=self._waiters.next_opaque(), flag=command.flag | _ONE_WAY)
        self._writer.write(command, self.clock() + timeout_ms / 1000, timeout_ms)

    def send(self, command: RemotingCommand, timeout_ms: int = CONNECT_TIMEOUT_MS) -> None:
        """Send a command as it is: an answer to a request of the broker."""
        self._waiters.check_has_not_ended()
        self._writer.write(command, self.clock() + timeout_ms / 1000, timeout_ms)

    def forget(self, waiter: Waiter) -> None:
        """Tell a waiter nothing, whatever comes: its answer is not wanted any more."""
        self._waiters.forget(waiter)
        self._writer.withdraw(waiter.opaque)

    def close(self, why: str = "it was closed here") -> None:
        """Close the connection, and tell all that wait."""
        self._end(ConnectionClosed(self.address, why))

    def join(self, deadline: float) -> None:
        """Wait until the threads of a closed connection have ended, up to a time of the clock."""
        if self._reader.is_alive():
            self._reader.join(max(deadline - self.clock(), 0))
        self._writer.join(max(deadline - self.clock(), 0))

    def _check_has_not_ended(self) -> None:
        self.notice_end()
        self._waiters.check_has_not_ended()

    def notice_end(self) -> None:
        """Find out whether the broker has closed the connection, where no thread reads."""
        if (
            self._reads_itself
            and not self.is_closed
            and len(self._waiters) <= 1
            and self._incoming.has_ended()
        ):
            why = self._incoming.why_gone("the broker has closed it")
            self._end(ConnectionClosed(self.address, why))

    # ---- reading

    def read_for(self, answer: Answer[Any], timeout: float | None) -> float | None:
        """Read until the answer is there or time is over, in turns with others, if no thread does.

        Return the seconds that are still to be waited for.
        """
        if not self._reads_itself:
            return timeout
        deadline = (
            answer.deadline if timeout is None else min(answer.deadline, self.clock() + timeout)
        )
        me = threading.get_ident()
        while not answer.done():
            remaining = deadline - self.clock()
            if remaining <= 0:
                self._sweep()
                break
            try:
                if self._takes_turn(answer, remaining):
                    self._read_once(min(remaining, TICK_SECONDS))
            except Exception as error:  # noqa: BLE001  # as above
                self._cannot_go_on(error)
            finally:
                if self._read_by == me:  # whatever a signal's handler has raised, and wherever
                    self._read_by = None
                    with self._changing_turn:
                        self._turn.notify_all()
        return 0 if timeout is not None else TICK_SECONDS  # another reader may be resolving it

    def _takes_turn(self, answer: Answer[Any], seconds: float) -> bool:
        with self._changing_turn:
            if self._read_by is not None and not answer.done():
                self._turn.wait(min(seconds, SIGNALS_SECONDS))
            if self._read_by is not None or answer.done():
                return False
            self._read_by = threading.get_ident()
            return True

    def _read_on(self) -> None:
        """Read until the connection ends: the work of its thread."""
        try:
            while not self.is_closed:
                self._read_once(None)
                if self.clock() >= self._waiters.due_at:
                    self._sweep()
        except Exception as error:  # noqa: BLE001  # a lack of memory, for example
            self._cannot_go_on(error)

    def _cannot_go_on(self, error: Exception) -> None:
        """End, as nobody knows what has been read: all that wait have to be told."""
        why = f"what came could not be read: {type(error).__name__}: {error}"
        self._end(ConnectionClosed(self.address, why))
        _log.error("%s: reading has failed", self.address, exc_info=error)

    def _read_once(self, seconds: float | None) -> None:
        """Handle the data that has arrived, or arrives within this time."""
        deferred_wakeups.begin()
        try:
            error = self._incoming.read(seconds, self._received)
        finally:
            deferred_wakeups.end()
        if error is not None:
            self._end(error)

    def _received(self, command: RemotingCommand) -> None:
        if not command.is_response:
            self._asked(command)
            return
        try:
            self._waiters.answered(command)
        except ProtocolError as error:
            self._end(error)

    def _asked(self, command: RemotingCommand) -> None:
        """Answer a request of the broker."""
        try:
            if self._on_request is None:
                answer: RemotingCommand | None = command.respond(
                    ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                    f" request type {command.code} not supported",
                )
            else:
                answer = self._on_request(self, command)
        except Exception as error:  # noqa: BLE001  # the broker gets an answer in any case
            _log.exception("%s: request %d of the broker failed", self.address, command.code)
            answer = command.respond(ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")
        if answer is not None and not command.is_one_way:
            with suppress(ClientError):  # the broker has gone, and needs no answer
                self.send(answer)

    # ---- ends

    def _sweep(self) -> None:
        """Tell the waiters whose time is over."""
        for waiter in self._waiters.late(self.clock()):
            self._give_up_on(waiter)

    def _give_up_on(self, waiter: Waiter) -> None:
        error = RequestTimeout(self.address, waiter.request_code, waiter.timeout_ms)
        if self._waiters.give_up(waiter, error):
            self._writer.withdraw(waiter.opaque)
            self._waited_in_vain(waiter)

    def _waited_in_vain(self, waiter: Waiter) -> None:
        """End the connection if the peer is not slow but silent, which would stall every request.

        One request that had little time says nothing of the peer: others wait on this connection,
        too.
        """
        received_at = self._incoming.received_at
        if self._silent_since is None or self._silent_since < received_at:
            self._silent_since = max(received_at, waiter.asked_at)
        silent_seconds = waiter.deadline - self._silent_since
        if silent_seconds >= SILENCE_SECONDS:
            self.fell_silent = True
            why = f"it has been silent for {int(silent_seconds * 1000)} ms"
            self._end(ConnectionClosed(self.address, why))

    def _end(self, error: ClientError) -> None:
        waiters = self._waiters.end(error)
        if waiters is None:
            return
        try:
            self._writer.close()
            with suppress(OSError):  # closing alone does not wake a thread that reads
                self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()
        finally:
            try:
                tell_each(waiters, error)
            except MemoryError:  # there may be some by now
                tell_each(waiters, error)
        if self._on_closed is not None:
            self._on_closed(self)

    def forked(self) -> None:
        """Wait for nothing here; `OWN_SOCKETS` closes the copy of the parent's socket."""
        self._waiters.forked()


def parse_address(address: str) -> tuple[str, int]:
    """Return host and port of ``host:port`` or ``[v6]:port``."""
    host, _, port = address.strip().rpartition(":")
    if (
        not host
        or "/" in host
        or not port.isascii()
        or not port.isdigit()
        or len(port) > _PORT_DIGITS_MAX
        or not 0 < int(port) < 1 << 16
    ):
        raise ConnectionFailed(address, "an address is host:port, as localhost:9876")
    host = host.removeprefix("[").removesuffix("]")
    try:
        host.encode("idna")
    except UnicodeError as error:  # looking the host up would raise it
        raise ConnectionFailed(address, "its host cannot be a host's name") from error
    return host, int(port)
