"""A client connection without a socket: bytes to requests, and responses to bytes."""

import asyncio
import contextlib
import socket
import struct
from concurrent.futures import Future
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.brokers.in_process import in_loop

from rmq_spark.errors import HeaderError
from rmq_spark.wire.codes import CommandFlag, ResponseCode
from rmq_spark.wire.remoting.command import RemotingCommand, decode_command
from rmq_spark.wire.remoting.framing import FrameReader
from rocketpoll.broker.server.client_connection import (
    ClientConnection,
    detect_protocol,
    kernel_buffered_bytes,
)
from rocketpoll.broker.server.fair_scheduler import FairScheduler
from rocketpoll.broker.server.limits import ConcurrencyLimit
from rocketpoll.broker.settings.config import ServerLimits

RESPONSE = CommandFlag.RESPONSE.value


class Tcp:
    """A socket with the options that a connection sets."""

    def __init__(self):
        self.options = []

    def setsockopt(self, *option):
        self.options.append(option)

    def fileno(self):
        return -1


class Transport:
    """A transport; the test sets how many bytes it accepts."""

    def __init__(self, peer=("10.0.0.9", 40_000), own=("10.0.0.2", 9_876)):
        self.tcp = Tcp()
        self._info = {"peername": peer, "sockname": own, "socket": self.tcp}
        self.writes = []
        self.reads = True
        self.ended = None
        self.protocol = None
        self.is_full = False

    def get_extra_info(self, name):
        return self._info[name]

    def set_write_buffer_limits(self, high):
        self.high = high

    def get_write_buffer_size(self):
        return sum(map(len, self.writes))

    def write(self, data):
        self.writes.append(bytes(data))
        if self.is_full:
            self.protocol.pause_writing()

    def writelines(self, pieces):
        self.write(b"".join(pieces))

    def pause_reading(self):
        self.reads = False

    def resume_reading(self):
        self.reads = True

    def close(self):
        self.ended = "closed"

    def abort(self):
        self.ended = "aborted"

    def answers(self):
        reader = FrameReader()
        reader.feed(b"".join(self.writes))
        while (frame := reader.next_frame()) is not None:
            yield decode_command(frame)


class Table:
    """Records the calls to the server."""

    def __init__(self, is_full=False):
        self.told = []
        self.is_full = is_full
        self.response_bytes_max = 1 << 23
        self.concurrency_limit = ConcurrencyLimit()
        self.send_buffers = self

    def response_fault(self, size):
        return (
            (ResponseCode.SYSTEM_BUSY, f"no room for {size}")
            if size > self.response_bytes_max
            else None
        )

    def register(self, _connection):
        self.told.append("opened")
        return not self.is_full

    def protocol_accepted(self, _connection):
        self.told.append("understood")

    def record_requests(self, _connection, size, *, is_waiting=False):
        self.told.append(("holds", size))
        self.waiting_bytes = size if is_waiting else 0

    def record(self, _connection, size, _now):
        self.told.append(("leaves unread", size))

    def discard(self, _connection):
        self.told.append("read all")

    def record_written(self, _connection):
        """Count the bytes that the system has accepted."""

    def unregister(self, _connection):
        self.told.append("closed")


class End:
    """A connection and its surroundings."""

    def __init__(self, answer=None, is_full=False, turn=None, **settings):
        self.transport = Transport(**{k: settings.pop(k) for k in ("peer", "own") if k in settings})
        self.table = Table(is_full)
        self.requests = []
        self.answer = answer or (lambda request: request.respond(0))
        limits = ServerLimits(**settings)
        self.left = []  # responses that leave only at the end of the turn
        self.turn = turn or FairScheduler(asyncio.get_running_loop())
        self.connection = ClientConnection(
            asyncio.get_running_loop(),
            limits,
            self.table,
            lambda _, request: self._dispatch(request),
            self.turn,
            self._end_turn,
        )
        self.transport.protocol = self.connection
        self.connection.connection_made(self.transport)

    def congest(self):
        """Let the client stop reading, with much to read."""
        self.connection.send_frame(b"", [b""])  # ready responses leave first
        self.transport.is_full = True
        self.connection.send_frame(b"", [bytes(100_000)])
        self.transport.writes.pop()

    def drain(self):
        """Let the client read everything."""
        self.transport.is_full = False
        self.connection.resume_writing()

    def _dispatch(self, request):
        self.requests.append(request.opaque)
        return self.answer(request)

    def _end_turn(self):
        for request in self.left:
            self.connection.send(request.respond(0))
        self.left.clear()

    def receive(self, *requests):
        self.connection.data_received(b"".join(request.encode() for request in requests))


def requests(count, **more):
    return [RemotingCommand(10, opaque=number, **more) for number in range(count)]


@in_loop
async def test_answers_ready_at_the_end_of_a_turn_leave_in_one_write():
    asyncio.get_running_loop().time = lambda: 0.0  # a turn ends when its time is over as well
    end = End()
    end.answer = end.left.append
    end.receive(*requests(3))
    assert [len(end.transport.writes), *(answer.opaque for answer in end.transport.answers())] == [
        1,
        0,
        1,
        2,
    ]
    end.transport.writes.clear()
    end.connection.data_received(requests(1)[0].encode() + b"\0\0\0\1garbage")
    assert [answer.opaque for answer in end.transport.answers()] == [0]
    await asyncio.sleep(0)
    assert end.transport.ended == "closed"


@in_loop
async def test_responses_of_a_turn_leave_in_one_write():
    asyncio.get_running_loop().stand_still()
    end = End()
    end.receive(*requests(20))
    assert len(end.transport.writes) == 1
    assert [answer.opaque for answer in end.transport.answers()] == list(range(20))
    assert end.table.told == ["opened", "understood"]


@in_loop
async def test_answers_sent_later_in_the_same_turn_leave_in_one_write():
    end = End(answer=lambda _: None)
    end.receive(*requests(3))
    for request in requests(3):
        end.connection.send(request.respond(0))
    assert end.transport.writes == []
    await asyncio.sleep(0)
    assert len(end.transport.writes) == 1
    assert len(list(end.transport.answers())) == 3


@in_loop
async def test_body_in_pieces_is_written_at_once_after_earlier_answers():
    end = End(answer=lambda _: None)
    end.connection.send(RemotingCommand(40, opaque=1))
    end.connection.send_frame(
        RemotingCommand(0, opaque=2, flag=RESPONSE).encode_head(4), [b"in", b"to"]
    )
    assert [(each.opaque, bytes(each.body)) for each in end.transport.answers()] == [
        (1, b""),
        (2, b"into"),
    ]


@in_loop
async def test_congested_client_stops_requests_that_are_already_received():
    end = End()

    def answer(request):
        if request.opaque == 2:
            end.congest()
        return request.respond(0)

    end.answer = answer
    end.receive(*requests(5))
    assert end.requests == [0, 1, 2]
    assert not end.transport.reads
    assert end.connection.is_congested
    end.drain()
    await asyncio.sleep(0)
    assert end.requests == [0, 1, 2, 3, 4]
    assert end.transport.reads
    assert [answer.opaque for answer in end.transport.answers()] == [0, 1, 2, 3, 4]
    assert end.table.told[-2:] == ["read all", ("holds", 0)]


@in_loop
async def test_partial_request_bytes_are_reported_until_request_is_complete():
    end = End()
    frame = RemotingCommand(10, opaque=1, body=bytes(100)).encode()
    end.connection.data_received(frame[:60])
    end.connection.data_received(frame[60:90])
    seen = []
    end.answer = lambda request: seen.append(list(end.table.told)) or request.respond(0)
    end.connection.data_received(frame[90:] + frame[:10])
    assert end.table.told == [
        "opened",
        ("holds", 60),
        ("holds", 90),
        ("holds", 0),
        "understood",
        ("holds", 10),
    ]
    assert seen == [["opened", ("holds", 60), ("holds", 90), ("holds", 0), "understood"]]


class LateEnd(End):
    """A connection whose requests take 7.5 ms each, by a clock that only they move."""

    def __init__(self, answer=None, **settings):
        asyncio.get_running_loop().stand_still()
        super().__init__(answer, **settings)

    def _dispatch(self, request):
        asyncio.get_running_loop().move(0.0075)
        return super()._dispatch(request)


@in_loop
async def test_requests_beyond_a_turn_are_answered_later_in_order():
    end = LateEnd()
    other = LateEnd(turn=end.turn)
    end.receive(*requests(5))
    assert end.requests == [0, 1]
    assert not end.transport.reads
    other.receive(*requests(1))
    assert other.requests == []  # this turn is over for all
    for _ in range(10):
        await asyncio.sleep(0)
    assert (end.requests, other.requests) == ([0, 1, 2, 3, 4], [0])
    assert [answer.opaque for answer in end.transport.answers()] == [0, 1, 2, 3, 4]
    assert end.transport.reads
    assert end.table.told[-1] == ("holds", 0)


@in_loop
async def test_late_answers_leave_at_the_end_of_each_turn():
    end = LateEnd()
    end.answer = end.left.append
    end.receive(*requests(3))
    assert [answer.opaque for answer in end.transport.answers()] == [0, 1]
    await asyncio.sleep(0)
    assert [answer.opaque for answer in end.transport.answers()] == [0, 1, 2]


@in_loop
async def test_queued_requests_are_dropped_when_their_client_disconnects():
    end = LateEnd()
    end.receive(*requests(5))
    end.connection.connection_lost(None)
    for _ in range(10):
        await asyncio.sleep(0)
    assert end.requests == [0, 1]
    assert end.table.told[-1] == "closed"


def in_steps(request, steps, diary):
    """Return steps of a request with this number of them, which records its progress."""
    for step in range(steps):
        asyncio.get_running_loop().move(0.0075)
        diary.append((request.opaque, step))
        yield
    return request.respond(0)


@in_loop
async def test_stepwise_request_yields_to_others_and_keeps_its_order():
    diary = []
    end = End()
    other = End(turn=end.turn)
    asyncio.get_running_loop().stand_still()
    end.answer = lambda request: in_steps(request, 4 if request.opaque == 1 else 0, diary)
    end.receive(*requests(3))
    assert diary == [(1, 0)]
    await asyncio.sleep(0)
    assert diary == [(1, 0), (1, 1)]
    for _ in range(10):
        await asyncio.sleep(0)
        other.receive(*requests(1))
    assert other.requests == [0] * 10
    assert [answer.opaque for answer in end.transport.answers()] == [0, 1, 2]


@in_loop
async def test_stepwise_request_is_cancelled_when_its_client_disconnects():
    ended = []

    def steps():
        try:
            for _ in range(100):
                asyncio.get_running_loop().move(0.0075)
                yield
        finally:
            ended.append(True)

    end = End(answer=lambda _: steps())
    asyncio.get_running_loop().stand_still()
    end.receive(*requests(2))
    end.connection.connection_lost(None)
    assert ended == [True]
    for _ in range(5):
        await asyncio.sleep(0)
    assert end.requests == [0]


@in_loop
async def test_concurrency_limit_queues_requests_and_disconnect_frees_a_permit():
    asyncio.get_running_loop().stand_still()
    ends = [End(answer=lambda request: in_steps(request, 30, [])) for _ in range(4)]
    ends[0].table.concurrency_limit = places = ConcurrencyLimit(1)
    for end in ends:
        end.table.concurrency_limit = places
        end.receive(*requests(2))
    assert [end.connection._permit.granted.done() for end in ends] == [True, False, False, False]
    ends[0].connection.connection_lost(None)
    ends[2].connection.connection_lost(None)
    assert ends[1].connection._permit.granted.done()
    for _ in range(300):
        await asyncio.sleep(0)
    assert [[each.opaque for each in end.transport.answers()] for end in ends] == [
        [],
        [0, 1],
        [],
        [0, 1],
    ]
    assert places.acquire(10, 0, b"").granted.done()


@in_loop
async def test_stepwise_request_counts_its_header_and_keeps_no_bytes():
    asyncio.get_running_loop().stand_still()
    seen = []

    def steps(request):
        seen.append(request)
        return in_steps(request, 3, [])

    end = End(answer=steps)
    end.table.concurrency_limit = places = ConcurrencyLimit(1)
    first = places.acquire(10, 0, b"")
    request = RemotingCommand(
        10, remark="r" * 30_000, ext_fields={"x": "y" * 30_000}, body=bytes(1_000)
    )
    end.receive(request)
    assert ("holds", len(request.encode())) in end.table.told
    assert end.connection._permit.size > 61_000
    assert seen == [request._replace(remark=None)]
    assert end.connection._request == RemotingCommand(10)
    first.release()


@in_loop
async def test_unencodable_request_to_a_client_is_not_awaited():
    end = End()
    heard = []
    with pytest.raises(HeaderError):
        end.connection.request(RemotingCommand(10, remark="x" * 300_000), 1_000, heard.append)
    end.connection.connection_lost(None)
    await asyncio.sleep(0)
    assert heard == []


@in_loop
async def test_stepwise_request_is_refused_when_the_broker_stops():
    asyncio.get_running_loop().stand_still()
    end = End(answer=lambda request: in_steps(request, 30, []))
    end.receive(*requests(2))
    end.connection.finish()
    assert [(each.opaque, each.code) for each in end.transport.answers()] == [(0, 14)]


@in_loop
async def test_begun_stepwise_request_finishes_for_a_client_that_does_not_read():
    """The next request gets no permit until the client reads again."""
    diary = []
    end = End()
    end.answer = lambda request: in_steps(request, 4, diary)
    asyncio.get_running_loop().stand_still()
    end.receive(*requests(2))
    end.congest()
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(diary) == 4
    assert (end.requests, end.connection._permit) == ([0], None)
    assert not end.transport.reads
    end.drain()
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(diary) == 8
    assert [answer.opaque for answer in end.transport.answers()] == [0, 1]


@in_loop
async def test_permit_granted_to_a_congested_client_is_used_and_released():
    asyncio.get_running_loop().stand_still()
    first, still, other = ends = [
        End(answer=lambda request: in_steps(request, 3, [])) for _ in range(3)
    ]
    places = ConcurrencyLimit(1)
    for end in ends:
        end.table.concurrency_limit = places
        end.receive(*requests(1))
    still.congest()
    for _ in range(20):
        await asyncio.sleep(0)
    for end in (first, still, other):
        assert [answer.opaque for answer in end.transport.answers()] == [0]


@in_loop
async def test_closed_lingering_client_returns_its_place():
    asyncio.get_running_loop().stand_still()
    first, second, third = ends = [
        End(answer=lambda request: in_steps(request, 3, [])) for _ in range(3)
    ]
    places = ConcurrencyLimit(1)
    for end in ends:
        end.table.concurrency_limit = places
        end.receive(*requests(1))
    second.connection.close("because")
    first.connection.close("because")
    assert third.connection._permit.granted.done()
    for end in (first, second):
        end.connection.connection_lost(None)
    for _ in range(10):
        await asyncio.sleep(0)
    assert [answer.opaque for answer in third.transport.answers()] == [0]
    assert places.acquire(10, 0, b"").granted.done()


ACTS = {
    "asks": lambda end: end.receive(*requests(1)),
    "asks much": lambda end: end.receive(*requests(1, body=bytes(100_000))),
    "reads no more": lambda end: end.connection.is_closed or end.congest(),
    "reads": End.drain,
    "has too much here": lambda end: end.connection.throttle(),
    "may go on": lambda end: end.connection.unthrottle(),
    "is closed": lambda end: end.connection.close("because"),
    "goes": lambda end: end.connection.connection_lost(None),
    "waits": lambda _: None,
}


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(list(ACTS))), max_size=30))
@in_loop
async def test_client_that_reads_is_answered_whatever_other_clients_do(acts):
    asyncio.get_running_loop().stand_still()
    places = ConcurrencyLimit(1)
    *others, honest = [End(answer=lambda request: in_steps(request, 3, [])) for _ in range(4)]
    for end in (*others, honest):
        end.table.concurrency_limit = places
    gone = set()
    for which, act in acts:
        if which in gone:
            continue
        ACTS[act](others[which])
        if act == "goes":
            gone.add(which)
        await asyncio.sleep(0)
    honest.receive(*requests(1), *requests(1, body=bytes(100_000)))
    for _ in range(12 * (len(acts) + 2)):
        await asyncio.sleep(0)
    assert len(list(honest.transport.answers())) == 2


@in_loop
async def test_requests_are_taken_in_their_order_though_one_makes_room_for_its_own_client():
    """The connection was suspended with whole requests, the next of which makes the room to
    continue."""
    end = End()
    end.congest()
    end.receive(*requests(5))
    end.connection.throttle()
    holds = end.table.record_requests

    def make_room(connection, size, *, is_waiting=False):
        holds(connection, size, is_waiting=is_waiting)
        if not size and connection.is_throttled:
            connection.unthrottle()

    end.table.record_requests = make_room
    end.answer = lambda request: in_steps(request, 3, [])
    asyncio.get_running_loop().stand_still()
    end.drain()
    for _ in range(40):
        await asyncio.sleep(0)
    assert end.requests == [0, 1, 2, 3, 4]
    assert [answer.opaque for answer in end.transport.answers()] == [0, 1, 2, 3, 4]


@in_loop
async def test_client_without_address_is_aborted_and_not_counted():
    for names in ({"peer": None}, {"own": None}):
        end = End(**names)
        assert end.transport.ended == "aborted"
        end.connection.connection_lost(None)
        assert end.table.told == []


@in_loop
async def test_client_is_closed_when_its_turn_fails_even_while_queued():
    end = End()
    asyncio.get_running_loop().stand_still()
    end.answer = lambda request: in_steps(request, 4, [])
    end.receive(*requests(2))
    assert end.connection._is_queued

    def fail():
        raise MemoryError

    end.connection._end_turn = fail
    for _ in range(5):
        await asyncio.sleep(0)
    assert end.connection.is_closed
    assert not end.turn._queue


def steps_behind(awaited, request, ended):
    try:
        yield awaited
        yield
        return request.respond(0)
    finally:
        ended.append(request.opaque)


@in_loop
async def test_request_waiting_for_a_future_takes_no_turn():
    awaited, ended = Future(), []
    end = End()
    end.answer = lambda request: (
        steps_behind(awaited, request, ended) if request.opaque == 0 else None
    )
    end.receive(*requests(2))
    assert end.connection.is_waiting_for_broker
    assert not end.transport.reads
    end.connection.resume_writing()  # nothing else resumes it
    end.connection.unthrottle()
    for _ in range(5):
        await asyncio.sleep(0)
    assert end.requests == [0]
    assert not end.turn._queue
    awaited.set_result(None)
    for _ in range(5):
        await asyncio.sleep(0)
    assert [answer.opaque for answer in end.transport.answers()] == [0]
    assert end.requests == [0, 1]
    assert end.transport.reads


@in_loop
async def test_bytes_waiting_for_concurrency_are_counted_apart_from_client_backlog():
    awaited, half = Future(), requests(1)[0].encode()[:-1]
    end = End()
    end.answer = lambda request: steps_behind(awaited, request, []) if request.opaque == 0 else None
    end.connection.data_received(half)
    assert (end.table.told[-1], end.table.waiting_bytes) == (("holds", len(half)), 0)
    end.connection.data_received(requests(1)[0].encode()[-1:] + half)
    assert end.table.waiting_bytes == len(half) + 1 + len(half)  # with the bytes after it
    awaited.set_result(None)
    for _ in range(5):
        await asyncio.sleep(0)
    assert (end.table.told[-1], end.table.waiting_bytes) == (("holds", len(half)), 0)

    end = End(answer=lambda request: in_steps(request, 4, []))
    asyncio.get_running_loop().stand_still()
    end.receive(*requests(2))
    assert end.connection._is_queued
    assert end.table.waiting_bytes > 0
    end.congest()
    for _ in range(20):
        await asyncio.sleep(0)
    assert end.requests == [0]  # the other waits for the client to read
    assert (end.table.told[-1], end.table.waiting_bytes) == (("holds", len(half) + 1), 0)


@in_loop
async def test_waiting_request_is_cancelled_when_its_client_disconnects():
    awaited, ended = Future(), []
    asyncio.get_running_loop().stand_still()
    end = End(answer=lambda request: steps_behind(awaited, request, ended))
    end.receive(*requests(2))
    end.connection.connection_lost(None)
    assert ended == [0]
    awaited.set_result(None)
    for _ in range(5):
        await asyncio.sleep(0)
    assert end.requests == [0]


@in_loop
async def test_response_over_the_limit_is_refused_and_small_one_is_sent():
    end = End(answer=lambda request: request.respond(0, body=bytes(request.opaque)))
    end.table.response_bytes_max = 70_000
    end.receive(*[RemotingCommand(21, opaque=size) for size in (70_000, 70_001, 65_536)])
    answers = list(end.transport.answers())
    assert [(answer.code, len(answer.body)) for answer in answers] == [
        (0, 70_000),
        (2, 0),
        (0, 65_536),
    ]
    assert "no room for 70001" in answers[1].remark


@in_loop
async def test_throttled_client_is_not_read_until_unthrottled():
    end = End()
    end.connection.throttle()
    assert not end.transport.reads
    end.connection.unthrottle()
    await asyncio.sleep(0)
    assert end.transport.reads


@in_loop
async def test_disconnected_client_is_not_written_to():
    end = End()
    end.connection.connection_lost(ConnectionResetError())
    end.connection.send(RemotingCommand(40))
    await asyncio.sleep(0)
    assert end.transport.writes == []


@in_loop
async def test_refused_client_is_closed_without_an_answer():
    end = End(is_full=True)
    assert end.transport.ended == "aborted"
    linger = struct.pack("ii", 1, 0)  # the system sends a reset, and keeps nothing
    assert (socket.SOL_SOCKET, socket.SO_LINGER, linger) in end.transport.tcp.options
    end.receive(*requests(1))
    assert end.requests == []


@in_loop
async def test_congested_client_is_aborted_at_close():
    end = End()
    end.congest()
    end.connection.close("it does not read")
    await asyncio.sleep(0)
    assert end.transport.ended == "aborted"


@in_loop
async def test_close_flushes_answers_that_are_ready():
    end = End()
    end.connection.send(RemotingCommand(0, opaque=7, flag=RESPONSE))
    end.connection.close("because")
    end.connection.send(RemotingCommand(0, opaque=8, flag=RESPONSE))
    await asyncio.sleep(0)
    assert [answer.opaque for answer in end.transport.answers()] == [7]
    assert (len(end.transport.writes), end.transport.ended) == (1, "closed")


@in_loop
async def test_congested_client_is_sent_no_broker_request():
    end = End()
    answers = []
    end.congest()
    end.connection.request(RemotingCommand(307), 5_000, answers.append)
    await asyncio.sleep(0)
    assert (answers, list(end.transport.answers())) == ([None], [])


@in_loop
async def test_closed_client_that_stays_is_aborted_after_a_timeout():
    end = End()
    end.connection.close("because")
    await asyncio.sleep(0)
    assert end.transport.ended == "closed"
    asyncio.get_running_loop().move(3)
    await asyncio.sleep(0.001)
    assert end.transport.ended == "aborted"


@pytest.mark.parametrize(
    ("peer", "host"),
    [
        (("10.0.0.9", 1), "10.0.0.9:1"),
        (("::ffff:10.0.0.9", 1, 0, 0), "10.0.0.9:1"),
        (("2001:db8::9", 1, 0, 0), "[2001:db8::9]:1"),
        (("fe80::1%eth0", 1, 0, 2), "[fe80::1]:1"),
    ],
)
@in_loop
async def test_remote_host_has_one_format(peer, host):
    assert str(End(peer=peer).connection.remote_host) == host


@in_loop
async def test_undelivered_bytes_include_the_kernel_send_buffer():
    """The kernel's buffer holds megabytes, and the transport notices nothing before a third is
    read."""
    end = End()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                ours.send(bytes(1 << 12))
        end.transport.tcp.fileno = ours.fileno
        before = end.connection.undelivered_bytes
        assert before > 0
        theirs.recv(1 << 12)
        assert end.connection.undelivered_bytes < before
    assert end.connection.undelivered_bytes == 0  # because the socket is closed


# ---- clients of other protocols are recognized by their first bytes


@pytest.mark.parametrize(
    ("first_bytes", "name"),
    [
        (b"GET / HT", "HTTP"),
        (b"POST /x ", "HTTP"),
        (b"HEAD / H", "HTTP"),
        (b"PRI * HT", "HTTP/2"),
        (b"\x16\x03\x01\x02", "TLS"),
        (b"\x00\x00\x01\x00\x00\x00\x00\x80", None),
        (b"GE", None),
        (b"", None),
    ],
)
def test_foreign_protocol_is_detected_by_its_first_bytes(first_bytes, name):
    assert detect_protocol(first_bytes) == name


# ---- undelivered bytes of a client's socket, as the system reports them


def test_kernel_buffered_bytes_count_undelivered_data():
    with socket.create_server(("127.0.0.1", 0)) as server:
        writer = socket.create_connection(server.getsockname())
        reader, _ = server.accept()
    with writer, reader:
        assert kernel_buffered_bytes(writer.fileno()) == 0
        writer.setblocking(False)
        with suppress(BlockingIOError):
            while True:
                writer.send(bytes(1 << 16))
        assert kernel_buffered_bytes(writer.fileno()) > 0


def test_kernel_buffered_bytes_of_a_closed_socket_are_zero():
    assert kernel_buffered_bytes(-1) == 0
