"""TLS in memory: streams cut anywhere, read at any pace, and damaged anywhere.

    client (OpenSSL) ── bytes on the way ──> connection under TLS ── bytes on the way ──> client

A story draws requests, how many bytes arrive at a time, how many the client reads, and how long
work takes, so that turns end anywhere. Without damage every answer comes, whole and in order, and
the connection reads on. With damage the connection ends with one line of log at most; nothing is
raised, and nothing is kept.
"""

import asyncio
import contextlib
import itertools
import logging
import ssl
import time
from concurrent.futures import Future

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.brokers.in_process import run
from support.servers.tls import BROKER_TLS, client_context

from rmq_spark.wire.remoting.command import RemotingCommand, decode_command
from rmq_spark.wire.remoting.framing import FrameReader
from rocketpoll.broker.server.fair_scheduler import FairScheduler
from rocketpoll.broker.server.server import RemotingServer
from rocketpoll.broker.server.tls.server_tls import ServerTls
from rocketpoll.broker.server.tls.transport import (
    HEADER_BYTES,
    RECORD_BYTES_MAX,
    whole_records_bytes,
)
from rocketpoll.broker.settings.config import ServerLimits
from rocketpoll.broker.settings.settings import config_of

CONFIG = config_of(BROKER_TLS).tls
CONTEXTS = {
    version: client_context(version=version)
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)
}
TURNS = 4
"""Turns of the loop after each act: some work may be left for a later turn."""


class Tcp:
    def setsockopt(self, *_):
        pass

    def fileno(self):
        return -1


class Wire:
    """The transport below TLS, which buffers writes until the client reads."""

    def __init__(self):
        self.protocol = None
        self.to_client = bytearray()
        self.room = 0
        """Bytes that the system accepts."""
        self.is_reading = True
        self.is_closed = False
        self._is_paused = False

    def get_extra_info(self, name, default=None):
        names = {"peername": ("10.0.0.9", 40_000), "sockname": ("10.0.0.2", 9_876)}
        return {**names, "socket": Tcp()}.get(name, default)

    def set_protocol(self, protocol):
        self.protocol = protocol

    def set_write_buffer_limits(self, high):
        assert high == 0

    def get_write_buffer_size(self):
        return max(len(self.to_client) - self.room, 0)

    def write(self, data):
        if not self.is_closed:
            self.to_client += data
            self._tell()

    def writelines(self, pieces):
        self.write(b"".join(pieces))

    def read(self, count):
        """Read as the client; then the transport has room again."""
        data = bytes(self.to_client[:count])
        del self.to_client[:count]
        self._tell()
        return data

    def _tell(self):
        is_full = self.get_write_buffer_size() > 0
        if is_full != self._is_paused:
            self._is_paused = is_full
            (self.protocol.pause_writing if is_full else self.protocol.resume_writing)()

    def pause_reading(self):
        self.is_reading = False

    def resume_reading(self):
        self.is_reading = True

    def is_closing(self):
        return self.is_closed

    def close(self):
        self.abort()

    def abort(self):
        if not self.is_closed:
            self.is_closed = True
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)


def dispatch(connection, request):
    """Answer with the body repeated: in pieces, as pulls do, or in steps that may wait."""
    if request.code % 4:
        pieces = [request.body] * request.code
        head = request.respond(0).encode_head(sum(map(len, pieces)))
        connection.send_frame(head, pieces)
        return None
    return _steps(request)


def _steps(request):
    loop = asyncio.get_running_loop()
    for number in range(request.code // 4):
        awaited = Future()
        if number % 2:
            awaited.set_result(None)
        else:
            loop.call_soon(awaited.set_result, None)
        yield awaited if number % 3 else None
        yield None
    return request.respond(0, body=bytes(request.body) * request.code)


class PlainClient:
    """A client without TLS, with the methods of one with TLS."""

    def __init__(self, incoming, outgoing):
        self.read, self.write = incoming.read, outgoing.write

    def do_handshake(self):
        pass


class Story:
    """A server with one connection, and its client; each reading of the clock moves it."""

    def __init__(self, version, room, problems, ticks=(0,)):
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: problems.append(context))
        loop.stand_still()
        clock, more = loop.time, itertools.cycle(ticks)

        def passing_time():
            loop.move(next(more))
            return clock()

        loop.time = passing_time
        self.scheduler = FairScheduler(loop)
        self.tls = ServerTls(CONFIG, time.time, loop.time)
        self.gone = []
        self.server = RemotingServer(
            ServerLimits(),
            dispatch,
            self.gone.append,
            self.scheduler,
            lambda: None,
            tls=self.tls,
        )
        self.server._loop = loop
        self.connection = self.server._new_connection()
        self.wire = Wire()
        self.wire.room = room
        self.wire.protocol = self.connection
        self.connection.connection_made(self.wire)
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.client = (
            PlainClient(self.incoming, self.outgoing)
            if version is None
            else CONTEXTS[version].wrap_bio(
                self.incoming, self.outgoing, server_hostname="localhost"
            )
        )
        self.is_established = False
        self.unsent = []
        self.to_server = bytearray()
        self.frames = FrameReader()
        self.answers = []
        self.position = 0
        """Number of bytes delivered to the server."""

    def work(self):
        """Let the client do all that it can."""
        with contextlib.suppress(ssl.SSLWantReadError):
            if not self.is_established:
                self.client.do_handshake()
                self.is_established = True
            for request in self.unsent:
                self.client.write(request.encode())
            self.unsent = []
        if self.is_established:
            with contextlib.suppress(ssl.SSLWantReadError):
                while data := self.client.read(1 << 16):
                    self.frames.feed(data)
        while (frame := self.frames.next_frame()) is not None:
            answer = decode_command(frame)
            self.answers.append((answer.opaque, bytes(answer.body)))
        self.to_server += self.outgoing.read()

    async def deliver(self, count, damage=None, turns=TURNS):
        """Deliver bytes to the server, if it reads."""
        if self.wire.is_reading and not self.wire.is_closed:
            data = bytes(self.to_server[:count])
            del self.to_server[:count]
            if damage is not None:
                data = damage(self.position, data)
            self.position += len(data)
            if data:
                self.wire.protocol.data_received(data)
        await self.turns(turns)

    async def all_arrives(self):
        self.work()
        await self.deliver(1 << 20)
        await self.read(1 << 20)
        self.work()

    async def read(self, count, turns=TURNS):
        self.incoming.write(self.wire.read(count))
        await self.turns(turns)

    async def turns(self, count=TURNS):
        for _ in range(count):
            await asyncio.sleep(0)
        for _ in range(TURNS):  # it may be about to read again
            connection, wire = self.connection, self.wire
            is_busy = connection.is_waiting_for_broker or connection.is_congested
            if wire.is_reading or is_busy or wire.is_closed:
                return
            await asyncio.sleep(0)
        raise AssertionError("it does not read, for no reason")

    async def end(self):
        self.wire.abort()
        await self.turns()
        assert self.gone == [self.connection]
        assert self.server.connections == 0
        assert (self.server.in_flight_bytes, self.server.unread_bytes) == (0, 0)
        assert self.tls.handshakes_completed + self.tls.handshakes_failed <= 1


COUNTS = st.sampled_from([1, 2, 5, 6, 100, 1_000, 16_384, 20_000, 100_000])
BODIES = st.sampled_from([0, 1, 200, 1_000, 5_000, 16_384, 40_000])
ACTS = st.lists(
    st.tuples(
        st.tuples(st.integers(0, 20), st.integers(1, 4) | st.integers(1, 40), BODIES),
        st.tuples(COUNTS, COUNTS, st.sampled_from([0, 1, TURNS])),
    ),
    max_size=20,
)
"""Requests sent together, repetitions of the body and its size; then bytes delivered, bytes read by
the client, and turns that pass."""
TICKS = st.lists(st.sampled_from([0, 0.0005, 0.002, 0.02]), min_size=1, max_size=40)
"""Seconds that pass at each reading of the clock, in a cycle: a turn may end at each."""
ROOMS = st.sampled_from([0, 1_000, 1 << 20, 1 << 24])


@pytest.mark.parametrize("version", [None, *CONTEXTS])
@given(ACTS, TICKS, ROOMS, st.booleans())
@example([((6, 2, 40_000), (6, 1_000, TURNS))], [0.02], 1 << 24, True)
def test_tls_stream_cut_anywhere_and_read_at_any_pace_returns_every_answer(
    version, acts, ticks, room, begins_after_handshake
):
    problems = []

    async def story():
        told = Story(version, room, problems, ticks)
        handshakes = int(version is not None)
        wanted = []
        while begins_after_handshake and told.tls.handshakes_completed < handshakes:
            await told.all_arrives()
        for (copies, times, size), (delivered, read, turns) in acts:
            new = range(len(wanted), len(wanted) + copies)
            told.unsent += [RemotingCommand(times, opaque=n, body=b"x" * size) for n in new]
            wanted += told.unsent[len(told.unsent) - copies :]
            told.work()
            await told.deliver(delivered, turns=turns)
            await told.read(read, turns)
            waiting = told.wire.get_write_buffer_size()
            assert not handshakes or waiting <= (1 << 16) + 4_096, "only a piece is encrypted"
        for _ in range(5_000):
            await told.all_arrives()
            if len(told.answers) == len(wanted) and told.tls.handshakes_completed == handshakes:
                break
        assert told.answers == [(request.opaque, request.body * request.code) for request in wanted]
        assert told.tls.handshakes_completed == handshakes
        assert not told.connection.is_closed
        assert not told.connection.is_congested
        await told.end()

    run(story())
    assert problems == []


def damaged(kind, data, at, value):
    """Return data with damage of a kind at a position."""
    before, byte, rest = data[:at], data[at], data[at + 1 :]
    return {
        "flip": before + bytes([byte ^ (value or 1)]) + rest,
        "drop": before + rest,
        "insert": before + bytes([value]) * 3 + data[at:],
        "garbage": before + bytes([value]) * 2_000,
    }[kind]


@given(
    st.sampled_from(list(CONTEXTS)),
    st.integers(0, 1_500),
    st.sampled_from(["flip", "drop", "insert", "garbage"]),
    st.integers(0, 255),
    COUNTS,
)
def test_damaged_tls_stream_ends_only_its_connection(version, place, kind, value, count):
    problems = []

    def damage(position, data):
        at = place - position
        return damaged(kind, data, at, value) if 0 <= at < len(data) else data

    async def story(lines):
        told = Story(version, 1 << 20, problems)
        request = RemotingCommand(1, opaque=7, body=b"x" * 700)
        told.unsent.append(request)
        with contextlib.suppress(ssl.SSLError):  # raised by the client
            for _ in range(2_000):
                told.work()
                if (
                    told.answers
                    or told.wire.is_closed
                    or not (told.to_server or told.wire.to_client)
                ):
                    break
                await told.deliver(count, damage)
                await told.read(1 << 20)
        assert told.answers in ([], [(7, request.body)])
        assert told.server.in_flight_bytes <= 1 << 16
        ended_by_broker = told.connection.was_closed_by_broker
        await told.end()
        assert len(lines) <= 1
        if ended_by_broker:
            [line] = lines
            assert "closed: " in line

    with records() as lines:
        run(story(lines))
    assert problems == []


@given(
    st.binary(max_size=300).map(lambda data: b"\x16" + data),
    COUNTS,
)
def test_any_bytes_instead_of_a_tls_handshake_end_with_one_log_line(data, count):
    problems = []

    async def story(lines):
        told = Story(ssl.TLSVersion.TLSv1_3, 1 << 20, problems)
        told.to_server += data
        while told.to_server and not told.wire.is_closed:
            await told.deliver(count)
        await told.end()
        assert told.tls.handshakes_failed == 1
        [line] = lines
        assert "closed: the TLS handshake failed: " in line

    with records() as lines:
        run(story(lines))
    assert problems == []


@contextlib.contextmanager
def records():
    """Yield the lines that the server logs in the block."""
    lines = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: lines.append(record.getMessage())
    logger = logging.getLogger("rocketpoll.broker.server")
    logger.addHandler(handler)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)


class SlowHandshakes:
    """OpenSSL with handshakes that take 4 ms of a clock that only they move."""

    def __init__(self, tls, loop, begun):
        self._tls = tls
        self._loop = loop
        self._begun = begun

    def __getattr__(self, name):
        return getattr(self._tls, name)

    def do_handshake(self):
        self._loop.move(0.004)
        self._begun.append(self)
        self._tls.do_handshake()


def test_tls_handshakes_at_once_take_turns(monkeypatch):
    """An honest client waits for two or three of them, not for all."""
    begun = []
    new_session = ServerTls.new_session

    def slow_session(tls):
        session = new_session(tls)
        slow = SlowHandshakes(session.tls, asyncio.get_running_loop(), begun)
        return session._replace(tls=slow)

    monkeypatch.setattr(ServerTls, "new_session", slow_session)

    async def story():
        loop = asyncio.get_running_loop()
        loop.stand_still()
        told = Story(ssl.TLSVersion.TLSv1_3, 1 << 20, [])
        told.work()
        hello = bytes(told.to_server)
        wires = []
        for _ in range(40):
            connection = told.server._new_connection()
            wires.append(Wire())
            wires[-1].protocol = connection
            connection.connection_made(wires[-1])
        for wire in wires:
            wire.protocol.data_received(hello)
        assert len(begun) <= 3
        assert sum(not wire.is_reading for wire in wires) == len(wires) - len(begun)
        while len(begun) < len(wires):
            before = len(begun)
            await asyncio.sleep(0)
            assert len(begun) - before <= 3
        assert all(wire.is_reading and wire.to_client for wire in wires)
        for wire in wires:
            wire.abort()
        await told.turns()
        told.wire.abort()
        await told.turns()
        assert told.server.connections == 0

    run(story())


# ---- whole records of TLS at the start of a stream, however it is cut


RECORDS = st.lists(st.integers(0, RECORD_BYTES_MAX - HEADER_BYTES), max_size=6).map(
    lambda sizes: [b"\x17\x03\x03" + size.to_bytes(2, "big") + bytes(size) for size in sizes]
)


@given(RECORDS, st.integers(0, 100_000), st.integers(1, 50_000))
def test_whole_tls_records_end_before_an_oversized_one(records, cut, bytes_min):
    data = b"".join(records)[:cut]
    expected = 0
    for record in records:
        if expected >= bytes_min or expected + len(record) > len(data):
            break
        expected += len(record)
    assert whole_records_bytes(memoryview(data), bytes_min) == expected


@given(RECORDS, st.data())
def test_tls_stream_in_pieces_gives_the_same_records(records, drawn):
    data = b"".join(records)
    taken, rest = [], b""
    while data or rest:
        size = drawn.draw(st.integers(1, 60_000))
        rest, data = rest + data[:size], data[size:]
        while whole := whole_records_bytes(rest, 1):
            taken.append(rest[:whole])
            rest = rest[whole:]
        if not data:
            break
    assert taken == records
    assert rest == b""


@given(st.integers(RECORD_BYTES_MAX - HEADER_BYTES + 1, 0xFFFF), st.binary(max_size=20))
def test_oversized_tls_record_is_left_to_openssl(size, more):
    data = b"\x17\x03\x03" + size.to_bytes(2, "big") + more
    assert whole_records_bytes(data, 1) == len(data)


@given(st.binary(max_size=4))
def test_partial_tls_record_header_waits_for_more_bytes(data):
    assert whole_records_bytes(data, 1) == 0
