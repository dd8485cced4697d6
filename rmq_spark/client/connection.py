"""Connection: one socket to one address, requests matched with their answers.

    request ──> opaque ──> socket ──> FrameReader ──> opaque ──> whoever waits

Answers come in any order. Either a thread of the connection reads, or (``reads_itself``) whoever waits does
so, which saves two switches of threads for each request: made for a program with one puller.

Every wait is bounded, and ends in an exception: on garbage, on answers that nobody asked for, and on the
stream's end all that wait are told at once. It knows neither routes nor what requests mean.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from typing import Any, Final, TypeVar

from rmq_spark.client.errors import (
    ClientError,
    ConnectionClosed,
    ConnectionFailed,
    ProtocolError,
    RequestTimeout,
)
from rmq_spark.errors import FrameError, HeaderError, RocketPollError, WireError
from rmq_spark.wire.codes import ResponseCode
from rmq_spark.wire.command import RemotingCommand, decode_command
from rmq_spark.wire.flags import CommandFlag
from rmq_spark.wire.framing import FRAME_BYTES_MAX, Buffer, FrameReader

_log = logging.getLogger(__name__)

OnRequest = Callable[["Connection", RemotingCommand], "RemotingCommand | None"]
"""What a broker asks its client. Called by whoever reads: it must not wait for this connection."""

CONNECT_TIMEOUT_MS: Final = 3_000
TICK_SECONDS: Final = 1.0
"""How late a future learns at most that its time is over; `Connection.request` learns at once."""

STRAYS_MAX: Final = 64
"""Answers to nothing that was asked; late ones to what was given up are not counted."""

WRITE_TIMEOUT_MS: Final = 30_000
"""For what has gathered: a peer that takes nothing for so long is left."""

_READ_BYTES: Final = 1 << 18
_LARGE_BODY_BYTES: Final = 1 << 16
_GIVEN_UP_MAX: Final = 10_000
_ONE_WAY: Final = CommandFlag.ONE_WAY.value
_Answer = TypeVar("_Answer")


class Answer(Future[_Answer]):
    """A future that reads from its connection while somebody waits for it, where nobody else does."""

    def __init__(self, connection: Connection, command: RemotingCommand, timeout_ms: int) -> None:
        super().__init__()
        self._connection = connection
        self.request_code = command.code
        self.opaque = 0
        self.timeout_ms = timeout_ms
        self.asked_at = connection.clock()
        self.deadline = self.asked_at + timeout_ms / 1000

    def result(self, timeout: float | None = None) -> _Answer:
        """The answer."""
        return super().result(self._connection.read_for(self, timeout))

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Why there is none."""
        return super().exception(self._connection.read_for(self, timeout))


class _Waiter:
    """Whose answer it will be, and what to make of it."""

    __slots__ = ("answer", "interpret")

    def __init__(self, answer: Answer[Any], interpret: Callable[[RemotingCommand], Any] | None) -> None:
        self.answer = answer
        self.interpret = interpret

    def resolve(self, command: RemotingCommand, address: str) -> None:
        if not self.answer.set_running_or_notify_cancel():
            return
        try:
            value = command if self.interpret is None else self.interpret(command)
        except WireError as error:
            self.answer.set_exception(ProtocolError(address, str(error)))
        except Exception as error:  # noqa: BLE001  # the one who waits shall see it, not the thread that reads
            self.answer.set_exception(error)
        else:
            self.answer.set_result(value)

    def fail(self, error: ClientError) -> None:
        if self.answer.set_running_or_notify_cancel():
            self.answer.set_exception(error)


class Connection:
    """See the module."""

    def __init__(
        self,
        sock: socket.socket,
        address: str,
        on_request: OnRequest | None = None,
        on_closed: Callable[[Connection], None] | None = None,
        *,
        reads_itself: bool = False,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``on_closed`` is told once, by whoever finds out."""
        self.address = address
        self.clock = clock
        self.peer_version = 0
        self._socket = sock
        self._on_request = on_request
        self._on_closed = on_closed
        self._frames = FrameReader(frame_bytes_max)
        self._lock = threading.Lock()  # over the waiters and the end
        self._write_lock = threading.Lock()
        self._gathering = threading.Condition()
        self._gathered: list[bytes] = []
        self._writer: threading.Thread | None = None
        self._opaque = 0
        self._waiters: dict[int, _Waiter] = {}
        self._given_up: dict[int, None] = {}
        self._strays = 0
        self._ended: ClientError | None = None
        self._received_at = clock()
        self._swept_at = clock()
        self._reads_itself = reads_itself
        self._is_read = False
        self._turn = threading.Condition()
        sock.settimeout(TICK_SECONDS)
        if not reads_itself:
            threading.Thread(target=self._read_on, name=f"rocketpoll reader {address}", daemon=True).start()

    @classmethod
    def connect(
        cls,
        address: str,
        on_request: OnRequest | None = None,
        on_closed: Callable[[Connection], None] | None = None,
        *,
        reads_itself: bool = False,
        timeout_ms: int = CONNECT_TIMEOUT_MS,
    ) -> Connection:
        """A connection to ``host:port``."""
        try:
            sock = socket.create_connection(parse_address(address), timeout_ms / 1000)
        except TimeoutError as error:
            raise ConnectionFailed(address, f"no answer within {timeout_ms} ms") from error
        except OSError as error:
            raise ConnectionFailed(address, error.strerror or str(error)) from error
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return cls(sock, address, on_request, on_closed, reads_itself=reads_itself)

    @property
    def is_closed(self) -> bool:
        """Whether it has ended."""
        return self._ended is not None

    @property
    def waiting(self) -> int:
        """How many answers are waited for."""
        return len(self._waiters)

    @property
    def local_address(self) -> str:
        """This machine's own address on the way to the peer."""
        try:
            return str(self._socket.getsockname()[0])
        except OSError:
            return ""

    # ---- asking

    def request(self, command: RemotingCommand, timeout_ms: int) -> RemotingCommand:
        """Ask, and wait for the answer, whatever its code is.

        Raises:
            RequestTimeout: It has not come in time. A peer that has said nothing at all since is left.
            ConnectionClosed: The stream ended first.
            ProtocolError: What came was no answer.
        """
        answer: Answer[RemotingCommand] = self.request_async(command, timeout_ms)
        try:
            return answer.result(max(answer.deadline - self.clock(), 0))
        except FutureTimeout:
            self._give_up_on(answer)
            return answer.result(TICK_SECONDS)  # it was given up, or is being answered this moment

    def request_async(
        self,
        command: RemotingCommand,
        timeout_ms: int,
        interpret: Callable[[RemotingCommand], Any] | None = None,
        *,
        may_gather: bool = False,
    ) -> Answer[Any]:
        """Ask; the answer comes in the future, by way of ``interpret``, which may raise.

        ``may_gather`` leaves writing to a thread, which sends all that has gathered at once: many times as
        fast for somebody who has thousands to send, and a switch of threads slower for one.

        A future's callbacks are run by whoever reads: they must not wait for this connection.
        """
        answer: Answer[Any] = Answer(self, command, timeout_ms)
        with self._lock:
            self._check_is_open()
            self._opaque = answer.opaque = (self._opaque + 1) & 0x7FFFFFFF
            self._waiters[answer.opaque] = _Waiter(answer, interpret)
        command = command._replace(opaque=answer.opaque)
        try:
            if may_gather and not self._reads_itself:
                self._gather(command)
            else:
                self._write(command, answer.deadline, timeout_ms)
        except RocketPollError:
            with self._lock:
                self._waiters.pop(answer.opaque, None)
            raise
        return answer

    def send_one_way(self, command: RemotingCommand, timeout_ms: int) -> None:
        """Say something that is not answered."""
        with self._lock:
            self._check_is_open()
            self._opaque = opaque = (self._opaque + 1) & 0x7FFFFFFF
        command = command._replace(opaque=opaque, flag=command.flag | _ONE_WAY)
        self._write(command, self.clock() + timeout_ms / 1000, timeout_ms)

    def send(self, command: RemotingCommand, timeout_ms: int = CONNECT_TIMEOUT_MS) -> None:
        """Send a command as it is: an answer to what the broker asked."""
        self._check_is_open()
        self._write(command, self.clock() + timeout_ms / 1000, timeout_ms)

    def close(self, why: str = "it was closed here") -> None:
        """End it; all that wait are told."""
        self._end(ConnectionClosed(self.address, why))

    # ---- writing

    def _write(self, command: RemotingCommand, deadline: float, timeout_ms: int) -> None:
        body: Buffer = command.body
        if len(body) < _LARGE_BODY_BYTES:
            pieces: tuple[Buffer, ...] = (command.encode(),)
        else:
            pieces = (command.encode_head(len(body)), body)
        if not self._write_lock.acquire(timeout=max(deadline - self.clock(), 0)):
            raise RequestTimeout(self.address, command.code, timeout_ms)
        try:
            self._check_is_open()
            self._check_has_not_ended()
            for piece in pieces:
                self._write_piece(memoryview(piece).cast("B"), deadline, command.code, timeout_ms)
        finally:
            self._write_lock.release()

    def _write_piece(self, unsent: memoryview, deadline: float, code: int, timeout_ms: int) -> None:
        while unsent:
            try:
                unsent = unsent[self._socket.send(unsent) :]
            except TimeoutError:
                pass  # a tick is over; the deadline decides
            except OSError as error:
                closed = ConnectionClosed(self.address, error.strerror or str(error))
                self._end(closed)
                raise ConnectionClosed(self.address, closed.why) from error
            if unsent and self.clock() >= deadline:
                # Half a request may be under way: nothing can follow it.
                self._end(ConnectionClosed(self.address, "it takes no more requests"))
                raise RequestTimeout(self.address, code, timeout_ms)

    def _gather(self, command: RemotingCommand) -> None:
        frame = command.encode()
        with self._gathering:
            if not self._gathered and self._writer is None:
                name = f"rocketpoll writer {self.address}"
                self._writer = threading.Thread(target=self._write_on, name=name, daemon=True)
                self._writer.start()
            self._gathered.append(frame)
            if len(self._gathered) == 1:
                self._gathering.notify()

    def _write_on(self) -> None:
        """What the thread does that writes what has gathered."""
        while self._ended is None:
            with self._gathering:
                while not self._gathered and self._ended is None:
                    self._gathering.wait(TICK_SECONDS)
                frames, self._gathered = self._gathered, []
            unsent = memoryview(b"".join(frames))
            with suppress(ClientError), self._write_lock:  # those who wait for answers are told of a failure
                self._write_piece(unsent, self.clock() + WRITE_TIMEOUT_MS / 1000, 0, WRITE_TIMEOUT_MS)

    def _check_has_not_ended(self) -> None:
        """Where nobody reads between requests, nobody has noticed that the broker has gone."""
        if not self._reads_itself or len(self._waiters) > 1:
            return
        self._socket.settimeout(0)
        try:
            is_over = not self._socket.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            is_over = False
        except OSError:
            is_over = True
        finally:
            with suppress(OSError):
                self._socket.settimeout(TICK_SECONDS)
        if is_over:
            self._end(ConnectionClosed(self.address, "the broker has closed it"))
            raise ConnectionClosed(self.address, "the broker has closed it")

    def _check_is_open(self) -> None:
        ended = self._ended
        if ended is not None:
            raise ConnectionClosed(self.address, str(getattr(ended, "why", ended)))

    # ---- reading

    def read_for(self, answer: Answer[Any], timeout: float | None) -> float | None:
        """Where no thread reads, do so until this answer is there or time is over, in turns with others.

        Gives how long there is still to wait.
        """
        if not self._reads_itself:
            return timeout
        deadline = answer.deadline if timeout is None else min(answer.deadline, self.clock() + timeout)
        while not answer.done():
            remaining = deadline - self.clock()
            if remaining <= 0:
                self._sweep()
                break
            if self._takes_turn(answer, remaining):
                try:
                    self._read_once(min(remaining, TICK_SECONDS))
                finally:
                    with self._turn:
                        self._is_read = False
                        self._turn.notify_all()
        return 0 if timeout is not None else TICK_SECONDS  # another who reads may be about to resolve it

    def _takes_turn(self, answer: Answer[Any], seconds: float) -> bool:
        with self._turn:
            if self._is_read and not answer.done():
                self._turn.wait(seconds)
            if self._is_read or answer.done():
                return False
            self._is_read = True
            return True

    def _read_on(self) -> None:
        """What the connection's thread does."""
        while self._ended is None:
            self._read_once(None)
            if self.clock() - self._swept_at >= TICK_SECONDS:
                self._sweep()

    def _read_once(self, seconds: float | None) -> None:
        """What has arrived, or arrives within this time."""
        try:
            if seconds is not None:
                self._socket.settimeout(seconds)
            count = self._receive()
        except (TimeoutError, BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._end(ConnectionClosed(self.address, error.strerror or str(error)))
            return
        if not count:
            why = "the broker has closed it"
            if self._frames.bytes_held:
                why += f" in the middle of an answer, {self._frames.bytes_held} bytes into it"
            self._end(ConnectionClosed(self.address, why))
            return
        self._received_at = self.clock()
        try:
            while (frame := self._frames.next_frame()) is not None:
                self._received(decode_command(frame))
        except (FrameError, HeaderError) as error:
            self._end(ProtocolError(self.address, str(error)))

    def _receive(self) -> int:
        """How many bytes have arrived; those of a large answer go where they belong."""
        room = self._frames.room()
        if room is None:
            data = self._socket.recv(_READ_BYTES)
            self._frames.feed(data)
            return len(data)
        count = self._socket.recv_into(room)
        self._frames.wrote(count)
        return count

    def _received(self, command: RemotingCommand) -> None:
        if not command.is_response:
            self._asked(command)
            return
        with self._lock:
            waiter = self._waiters.pop(command.opaque, None)
            if waiter is None:
                if command.opaque in self._given_up:
                    del self._given_up[command.opaque]
                    return
                self._strays += 1
        self.peer_version = command.version
        if waiter is not None:
            waiter.resolve(command, self.address)
        elif self._strays > STRAYS_MAX:
            why = f"{self._strays} answers to what was not asked, the last to {command.opaque}"
            self._end(ProtocolError(self.address, why))

    def _asked(self, command: RemotingCommand) -> None:
        """The broker wants something."""
        try:
            if self._on_request is None:
                answer: RemotingCommand | None = command.respond(
                    ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {command.code} not supported"
                )
            else:
                answer = self._on_request(self, command)
        except Exception as error:  # noqa: BLE001  # the one who asked shall hear of it
            _log.exception("%s: request %d of the broker failed", self.address, command.code)
            answer = command.respond(ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")
        if answer is not None and not command.is_one_way:
            with suppress(ClientError):  # it has gone, then, and needs no answer
                self.send(answer)

    # ---- ends

    def _sweep(self) -> None:
        """Tell those whose time is over."""
        self._swept_at = now = self.clock()
        with self._lock:
            late = [waiter.answer for waiter in self._waiters.values() if waiter.answer.deadline <= now]
        for answer in late:
            self._give_up_on(answer)

    def _give_up_on(self, answer: Answer[Any]) -> None:
        with self._lock:
            waiter = self._waiters.pop(answer.opaque, None)
            if waiter is None:
                return
            self._given_up[answer.opaque] = None
            if len(self._given_up) > _GIVEN_UP_MAX:
                del self._given_up[next(iter(self._given_up))]
        waiter.fail(RequestTimeout(self.address, answer.request_code, answer.timeout_ms))
        if self._received_at < answer.asked_at:
            # Not slow but silent: a peer that has gone without a word would cost every request its time.
            self._end(ConnectionClosed(self.address, f"it has been silent for {answer.timeout_ms} ms"))

    def _end(self, error: ClientError) -> None:
        with self._lock:
            if self._ended is not None:
                return
            self._ended = error
            waiters, self._waiters = self._waiters, {}
        with self._gathering:
            self._gathering.notify()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # closing alone does not wake a thread that reads
        self._socket.close()
        for waiter in waiters.values():
            waiter.fail(type(error)(*error.args))
        if self._on_closed is not None:
            self._on_closed(self)


def parse_address(address: str) -> tuple[str, int]:
    """Host and port of ``host:port`` or ``[v6]:port``."""
    host, _, port = address.strip().rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise ConnectionFailed(address, "an address is host:port, as localhost:9876")
    return host.removeprefix("[").removesuffix("]"), int(port)
