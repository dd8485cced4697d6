"""The server over real sockets: good clients are served, bad ones are closed and do not affect
others."""

import asyncio
import logging
from dataclasses import replace

import pytest
from support.brokers.in_process import run as run_story
from support.clients.remoting_clients import RawClients, until
from support.suite.coroutine_tests import run_by
from support.suite.log_records import lines_of

from rmq_spark.wire.codes import SerializeType
from rmq_spark.wire.remoting.command import RemotingCommand
from rocketpoll.broker.server.client_connection import UNSENT_BYTES_MAX, kernel_buffered_bytes
from rocketpoll.broker.server.fair_scheduler import FairScheduler
from rocketpoll.broker.server.server import RemotingServer
from rocketpoll.broker.settings.config import ServerLimits

ECHO, LONG, SILENT, PIECES, HUGE = 1, 2, 3, 4, 5
LONG_BYTES = 200_000


def dispatch(connection, request):
    """Echo the request; or return a large response, or none."""
    if request.code == ECHO:
        return request.respond(0, "echo", request.ext_fields, request.body)
    if request.code == LONG:
        return request.respond(0, body=bytes(LONG_BYTES))
    if request.code == HUGE:
        return request.respond(0, body=bytes(80 * LONG_BYTES))
    if request.code == PIECES:
        head = request.respond(0).encode_head(15)
        connection.send_frame(head, [b"in ", memoryview(b"three "), bytearray(b"pieces")])
    return None


def new_server(limits, gone):
    turn = FairScheduler(asyncio.get_running_loop())
    return RemotingServer(limits, dispatch, gone.append, turn, lambda: None)


def serve(story, limits=None, **changed):
    """Run a scenario against a server."""

    async def run():
        gone = []
        server = new_server(limits or replace(ServerLimits(), **changed), gone)
        port = await server.start("127.0.0.1", 0)
        try:
            async with RawClients(port) as clients:
                await story(server, clients, gone)
        finally:
            server.stop_listening()
            await server.stop()
        assert server.connections == 0
        assert (server.in_flight_bytes, server.unread_bytes) == (0, 0)

    run_story(run())


on_server = run_by(serve, given=3)


@on_server
async def test_requests_are_answered_in_one_piece_in_many_and_byte_by_byte(server, clients, gone):
    client = await clients.connect()
    frames = b"".join(RemotingCommand(ECHO, opaque=n, body=b"x" * n).encode() for n in range(50))
    client.send(frames)
    assert [(await client.receive()).opaque for _ in range(50)] == list(range(50))
    for byte in RemotingCommand(ECHO, opaque=7, body=b"slowly").encode():
        client.send(bytes([byte]))
        await asyncio.sleep(0)
    answer = await client.receive()
    assert (answer.opaque, bytes(answer.body), answer.remark) == (7, b"slowly", "echo")
    assert bytes((await client.ask(PIECES)).body) == b"in three pieces"


@on_server
async def test_server_reports_closed_connection(server, clients, gone):
    client = await clients.connect()
    await client.ask(ECHO)
    assert server.connections == 1
    client.close()
    await until(lambda: gone)
    assert gone[0].is_closed
    assert server.connections == 0


STRANGE = {
    "garbage": (b"\xff" * 64, "not RocketMQ's remoting protocol"),
    "an HTTP request": (b"GET / HTTP/1.1\r\nHost: here\r\n\r\n", "it speaks HTTP"),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "it speaks HTTP/2"),
    "a TLS hello": (bytes.fromhex("16030100f8010000f40303") + bytes(240), "it speaks TLS"),
    "a length of 2 GB": (b"\x7f\xff\xff\xff" + bytes(60), "needed 4 to 16777212"),
    "a negative length": (b"\x80\x00\x00\x00" + bytes(60), "needed 4 to"),
    "a header longer than its frame": (
        b"\x00\x00\x00\x08\x00\xff\xff\xff" + bytes(4),
        "header length",
    ),
    "a header that is no JSON": (b"\x00\x00\x00\x08\x00\x00\x00\x04{{{{", "JSON"),
    "an unknown codec": (b"\x00\x00\x00\x08\x09\x00\x00\x04{}  ", "serialize type"),
}


@pytest.mark.parametrize(("data", "reason"), STRANGE.values(), ids=STRANGE)
def test_garbage_bytes_close_the_connection_with_one_log_line(data, reason, caplog):
    async def story(server, clients, gone):
        good = await clients.connect()
        await good.ask(ECHO)
        bad = await clients.connect()
        bad.send(data)
        assert await bad.closed() == b""
        assert (await good.ask(ECHO, opaque=2)).opaque == 2

    caplog.set_level(logging.INFO)
    serve(story)
    lines = [
        record.getMessage()
        for record in caplog.records
        if record.name.startswith("rocketpoll.broker")
    ]
    assert len(lines) == 1
    assert reason in lines[0]


@on_server
async def test_requests_before_the_bad_one_are_answered(server, clients, gone):
    client = await clients.connect()
    client.send(RemotingCommand(ECHO, opaque=5).encode() + b"\xff" * 16)
    assert (await client.receive()).opaque == 5
    await client.closed()


def test_first_frame_and_partial_frame_timeouts_close_silent_clients(caplog):
    async def story(server, clients, gone):
        silent = await clients.connect()
        half = await clients.connect()
        await half.ask(ECHO)
        half.send(RemotingCommand(ECHO, body=bytes(1000)).encode()[:-1])
        await asyncio.gather(silent.closed(), half.closed())

    caplog.set_level(logging.INFO)
    serve(story, first_frame_timeout_ms=50, partial_frame_timeout_ms=50)
    assert sorted(line.partition("closed: ")[2] for line in lines_of(caplog)) == [
        "it sent no request",
        "its request is incomplete",
    ]


def test_connections_closed_before_they_sent_anything_are_logged_once_a_minute(caplog):
    """RocketMQ's proxy constantly opens such connections to its name server, and does
    not use them."""

    async def story(server, clients, gone):
        async def close_silent():
            silent = await clients.connect()
            asyncio.get_running_loop().move(11)
            await silent.closed()

        for _ in range(3):
            await close_silent()
        half = await clients.connect()
        half.send(bytes(3))
        await until(lambda: server.in_flight_bytes)
        asyncio.get_running_loop().move(60)
        await half.closed()
        await close_silent()
        await until(lambda: server.closed_by_broker == 5)

    caplog.set_level(logging.INFO)
    serve(story, first_frame_timeout_ms=10_000)
    lines = [(each.levelname, each.getMessage()) for each in caplog.records]
    assert [(level, line.partition("closed: ")[2]) for level, line in lines] == [
        ("INFO", "it sent no request"),
        ("WARNING", "it sent no request"),
        ("INFO", "it sent no request (2 more of this address since its last line)"),
    ]


@pytest.mark.usefixtures("on_each_loop")
@on_server(first_frame_timeout_ms=10_000, partial_frame_timeout_ms=10_000, idle_timeout_ms=10_000)
async def test_bytes_that_arrive_while_the_process_is_stopped_are_read_before_a_client_is_closed(
    server, clients, gone
):
    silent, halting, idle = [await clients.connect() for _ in range(3)]
    frame = RemotingCommand(ECHO, body=bytes(1000)).encode()
    await idle.ask(ECHO)
    halting.send(frame[:-1])
    await until(lambda: server.in_flight_bytes)
    rests = ((silent, frame), (halting, frame[-1:]), (idle, frame))
    server._sweeps = 9  # the tenth sweep closes idle connections
    # As when SIGCONT comes a minute after SIGSTOP: timers are due, and bytes have arrived
    loop = asyncio.get_running_loop()
    loop.call_soon(lambda: [client.send_at_once(data) for client, data in rests])
    loop.move(60)
    for client in (silent, halting, idle):
        assert len((await client.receive()).body) == 1000
    await until(lambda: server._sweeps >= 10)
    assert server.connections == 3


@pytest.mark.parametrize("codec", [0, 1])
def test_first_frame_timeout_ends_when_the_header_has_arrived(codec, caplog):
    async def story(server, clients, gone):
        slow, halting = await clients.connect(), await clients.connect()
        frame = RemotingCommand(
            ECHO, body=bytes(1000), serialize_type=SerializeType(codec)
        ).encode()
        halting.send(frame[:20])
        slow.send(frame[:-1])
        await until(lambda: server.in_flight_bytes == len(frame) + 19)
        asyncio.get_running_loop().move(11)
        await halting.closed()
        slow.send(frame[-1:])
        assert len((await slow.receive()).body) == 1000
        slow.send(frame[:-1])
        await until(lambda: server.in_flight_bytes == len(frame) - 1)
        asyncio.get_running_loop().move(31)
        await slow.closed()

    serve(story, first_frame_timeout_ms=10_000, partial_frame_timeout_ms=30_000)
    assert [line.partition("closed: ")[2] for line in lines_of(caplog)] == [
        "it sent no request",
        "its request is incomplete",
    ]


def test_malformed_header_closes_the_connection_early(caplog):
    async def story(server, clients, gone):
        bad = await clients.connect()
        bad.send(b"\x00\x00\x10\x00\x00\x00\x00\x04{{{{" + bytes(100))
        assert await bad.closed() == b""

    serve(story)
    assert "JSON" in caplog.text


def test_throttled_newcomer_has_no_first_frame_timeout(caplog):
    """A throttled client has no timeout while memory is short, nor while it waits in line with a
    partial header."""

    async def story(server, clients, gone):
        first = await clients.connect()
        await first.ask(ECHO)
        first.send(RemotingCommand(ECHO, body=bytes(1 << 20)).encode()[: 1 << 19])
        await until(lambda: server.is_short_of_memory)
        newcomer = await clients.connect()
        frame = RemotingCommand(ECHO, ext_fields={"p": "x" * 20_000}, body=bytes(1 << 20)).encode()
        newcomer.send(frame[:18_000])
        await until(lambda: server._throttled)
        newcomer.send(frame[18_000:])
        asyncio.get_running_loop().move(29)
        await until(lambda: server._sweeps)
        asyncio.get_running_loop().move(29)
        await first.closed()
        assert len((await newcomer.receive()).body) == 1 << 20

    serve(story, in_flight_bytes_max=1 << 18, first_frame_timeout_ms=10_000)
    assert [line.partition("closed: ")[2] for line in lines_of(caplog)] == [
        "its request is incomplete"
    ]


@on_server(partial_frame_timeout_ms=500)
async def test_slow_stream_of_whole_requests_does_not_time_out(server, clients, gone):
    client = await clients.connect()
    frame = RemotingCommand(ECHO, body=bytes(100)).encode()
    client.send(frame[:50])
    for _ in range(30):  # 1.5 s: past the first sweep
        await asyncio.sleep(0.05)
        client.send(frame[50:] + frame[:50])
        await client.receive()


def test_non_reading_client_is_no_longer_read_and_then_closed(caplog):
    async def story(server, clients, gone):
        good = await clients.connect()
        bad = await clients.connect(receive_buffer=4096)
        bad.send(RemotingCommand(LONG).encode() * 3000)  # 600 MB of answers
        most = 0
        while not gone:
            await good.ask(ECHO)
            most = max(most, server.unread_bytes)
            await asyncio.sleep(0.01)
        assert LONG_BYTES < most < 4 * LONG_BYTES + (1 << 20)

    serve(story, slow_reader_timeout_ms=100, write_buffer_bytes=LONG_BYTES)
    assert "it does not read its responses" in caplog.text


@on_server(write_buffer_bytes=LONG_BYTES)
async def test_late_reading_client_gets_all_responses_in_order(server, clients, gone):
    client = await clients.connect(receive_buffer=4096)
    client.send(b"".join(RemotingCommand(LONG, opaque=n).encode() for n in range(60)))
    await asyncio.sleep(0.2)
    answers = [await client.receive() for _ in range(60)]
    assert [answer.opaque for answer in answers] == list(range(60))
    assert {len(answer.body) for answer in answers} == {LONG_BYTES}


def test_partial_requests_are_bounded_by_in_flight_bytes(caplog):
    async def story(server, clients, gone):
        frame = RemotingCommand(ECHO, body=bytes(1 << 20)).encode()
        many = [await clients.connect() for _ in range(20)]
        for client in many:
            client.send(frame[:-1])
        await asyncio.sleep(0.3)
        assert server.in_flight_bytes < 12 << 20  # of 20; each has one read of 256 KiB free
        for client in many:  # deferred ones continue as soon as others have finished
            client.send(frame[-1:])
        for client in many:
            assert len((await client.receive()).body) == 1 << 20

    serve(story, in_flight_bytes_max=6 << 20)
    assert lines_of(caplog) == []


def test_in_flight_bytes_limit_closes_oldest_partial_requests_only(caplog):
    """The connection that may continue stays, and so do the youngest."""

    async def story(server, clients, gone):
        frame = RemotingCommand(ECHO, body=bytes(1 << 17)).encode()
        honest = await clients.connect()
        torn = RemotingCommand(ECHO, body=b"slowly").encode()
        many = []
        for number in range(40):  # of 128 KiB, from one address; there is room for 1 MiB and one
            many.append(await clients.connect())
            many[-1].send(frame[:-1])
            taken = number + 1
            await until(lambda taken=taken: len(gone) + len(server._request_bytes) == taken)
            assert server.in_flight_bytes <= (2 << 19) + len(frame)
            honest.send(torn[:9])
            honest.send(torn[9:])
            assert bytes((await honest.receive()).body) == b"slowly"
        assert not server.is_overloaded
        left = {connection.remote_host.port for connection in server._request_bytes}
        staying = [client for client in many if client.address[1] in left]
        favoured = server._exempt_connection.remote_host.port
        youngest = [client for client in staying if client.address[1] != favoured]
        assert 7 <= len(youngest) < 20
        assert youngest == many[-len(youngest) :]
        for client in staying:
            client.send(frame[-1:])
            assert len((await client.receive()).body) == 1 << 17
        assert server.refused == {"maxInFlightBytes": len(many) - len(staying)}
        asyncio.get_running_loop().move(1)
        await until(lambda: len(lines_of(caplog)) == 2)

    serve(story, in_flight_bytes_max=1 << 19)
    begins, ends = lines_of(caplog)
    assert begins.endswith(": closing the oldest connections of the address that holds most")
    assert ends.startswith("partial requests are below their limit again; ")


@on_server(in_flight_bytes_max=1 << 17)
async def test_resumed_client_is_not_closed_for_partial_requests_of_others(server, clients, gone):
    frame = RemotingCommand(ECHO, body=bytes(1 << 15)).encode()
    waiting = {}
    while len(server._throttled) < 3:
        client = await clients.connect()
        client.send(frame[:-1])
        waiting[client.address[1]] = client
        taken = len(waiting)
        await until(lambda taken=taken: len(server._request_bytes) == taken)
    first = waiting[server._exempt_connection.remote_host.port]
    first.send(frame[-1:])
    assert len((await first.receive()).body) == 1 << 15
    second = waiting[server._exempt_connection.remote_host.port]
    assert second is not first
    for _ in range(20):  # all older ones are closed, and those after it
        (await clients.connect()).send(frame[:-1])
        taken += 1
        await until(lambda taken=taken: len(server._request_bytes) + len(gone) == taken - 1)
    others = {port for port in waiting if waiting[port] not in (first, second)}
    assert others <= {connection.remote_host.port for connection in gone}
    second.send(frame[-1:])
    assert len((await second.receive()).body) == 1 << 15


@on_server(in_flight_bytes_max=1 << 20)
async def test_partial_requests_of_one_address_do_not_delay_another_address(server, clients, gone):
    frame = RemotingCommand(ECHO, body=bytes(1 << 18)).encode()
    while len(server._throttled) < 2:
        (await clients.connect(address="127.0.0.2")).send(frame[:-1])
        taken = len(clients._all)
        await until(lambda taken=taken: len(server._request_bytes) == taken)
    honest = await clients.connect()
    honest.send(frame[:50_000])
    await until(lambda: len(server._request_bytes) == len(clients._all))
    honest.send(frame[50_000:])
    assert len((await honest.receive()).body) == 1 << 18


def test_slow_large_request_survives_partial_requests_of_many_addresses():
    """Each of the others holds less, but together they hold more than the limit."""

    async def story(server, clients, gone):
        small = RemotingCommand(ECHO, body=bytes(30_000)).encode()[:-1]
        large = RemotingCommand(ECHO, body=bytes(60_000)).encode()
        for number in range(40):
            (await clients.connect(address=f"127.0.0.{10 + number}")).send(small)
            taken = number + 1
            await until(lambda taken=taken: len(server._request_bytes) + len(gone) == taken)
        honest = await clients.connect()
        honest.send(large[:40_000])
        await until(lambda: honest.address[1] in ports(server._request_bytes))
        for number in range(40):
            (await clients.connect(address=f"127.0.0.{50 + number}")).send(small)
            taken = 42 + number
            await until(lambda taken=taken: len(server._request_bytes) + len(gone) == taken)
        honest.send(large[40_000:])
        assert len((await honest.receive()).body) == 60_000

    def ports(connections):
        return {connection.remote_host.port for connection in connections}

    serve(story, in_flight_bytes_max=1 << 20)


def test_throttled_client_has_no_partial_frame_timeout(caplog):
    async def story(server, clients, gone):
        frame = RemotingCommand(ECHO, body=bytes(1 << 20)).encode()
        first, second = await clients.connect(), await clients.connect()
        for client in (first, second):  # the first may finish, and does not; the second would
            await client.ask(ECHO)
            client.send(frame[: 1 << 19])
            await until(lambda: server.in_flight_bytes >= 1 << 18)
        await until(lambda: server._throttled)
        second.send(frame[1 << 19 :])
        asyncio.get_running_loop().move(121)
        await first.closed()
        assert len((await second.receive()).body) == 1 << 20

    serve(
        story, in_flight_bytes_max=1 << 18, partial_frame_timeout_ms=30_000, idle_timeout_ms=120_000
    )
    assert [line.partition("closed: ")[2] for line in lines_of(caplog)] == [
        "its request is incomplete"
    ]


def test_client_that_reads_slowly_is_closed_while_its_requests_wait(caplog):
    """A client may read slowly while it has only requested what it is about to read."""

    async def story(server, clients, gone):
        greedy, slow = [await clients.connect(receive_buffer=4096) for _ in range(2)]
        await greedy.ask(ECHO)
        greedy.send(RemotingCommand(ECHO, body=bytes(1 << 20)).encode()[:-1])
        await until(lambda: server.in_flight_bytes > 1 << 20)
        (connection,) = server._request_bytes
        for _ in range(80):
            connection.send(RemotingCommand(40, body=bytes(LONG_BYTES)))
        slow.send(RemotingCommand(HUGE).encode() + RemotingCommand(ECHO, opaque=9).encode())
        await until(lambda: [each.is_congested for each in server._connections] == [True, True])
        for _ in range(6):
            assert server.connections == 2
            for client in (greedy, slow):
                client._frame_reader.feed(await client._reader.read(1 << 16))
            asyncio.get_running_loop().move(5)
            await asyncio.sleep(0.01)
        asyncio.get_running_loop().move(5)
        await until(lambda: server.connections == 1)
        assert 0 < server.in_flight_bytes < 1 << 12
        assert len((await slow.receive()).body) == 80 * LONG_BYTES
        assert (await slow.receive()).opaque == 9

    times = {"partial_frame_timeout_ms": 30_000, "slow_reader_timeout_ms": 100_000}
    serve(story, unread_bytes_max=1 << 28, **times)
    assert [line.partition("closed: ")[2] for line in lines_of(caplog)] == [
        "its requests wait because it does not read its responses"
    ]


@on_server(in_flight_bytes_max=1 << 18)
async def test_closed_throttled_client_is_forgotten(server, clients, gone):
    frame = RemotingCommand(ECHO, body=bytes(1 << 20)).encode()
    for _ in range(2):
        (await clients.connect()).send(frame[: 1 << 19])
    await until(lambda: server._throttled)
    next(iter(server._throttled)).abort()
    await until(lambda: gone)
    assert not server._throttled
    asyncio.get_running_loop().move(1)
    await until(lambda: server._sweeps)
    assert server._partial_since.keys() == {server._exempt_connection}


@pytest.mark.parametrize("limit", ["max_connections", "max_connections_per_address"])
def test_closed_connection_frees_a_place_under_the_limit(limit):
    async def story(server, clients, gone):
        await clients.connect()
        for number in range(5):
            client = await clients.connect()
            await client.ask(ECHO)
            client.close()
            await until(lambda number=number: len(gone) > number)

    serve(story, **{limit: 2})


@on_server(unread_bytes_max=1 << 28)
async def test_kernel_buffers_little_for_clients_that_do_not_read(server, clients, gone):
    """The kernel would buffer up to four megabytes for each, which nothing counts."""
    for _ in range(4):
        client = await clients.connect(receive_buffer=4_096)
        for opaque in range(4):
            client.send(RemotingCommand(HUGE, opaque=opaque).encode())
    await until(lambda: sum(each.is_congested for each in server._connections) == 4)
    await asyncio.sleep(0.2)  # the kernel accepts as much as it may
    kept = [kernel_buffered_bytes(each.descriptor()) for each in server._connections]
    assert max(kept) < 2 * UNSENT_BYTES_MAX
    assert min(kept) > 0


@on_server
async def test_answers_in_kernel_buffers_count_as_unread(server, clients, gone):
    client = await clients.connect(receive_buffer=4_096)
    client.send(RemotingCommand(LONG).encode())
    await until(lambda: server.send_buffers._written)
    (connection,) = server._connections
    assert not connection.is_congested
    assert server.unread_bytes == 0
    asyncio.get_running_loop().move(1)
    await until(lambda: server.unread_bytes)
    assert 10_000 < server.unread_bytes <= LONG_BYTES + 100
    assert len((await client.receive()).body) == LONG_BYTES
    asyncio.get_running_loop().move(1)
    await until(lambda: not server.unread_bytes)


@on_server
async def test_broker_request_is_answered_times_out_or_fails_with_its_client(server, clients, gone):
    answers = []
    client = await clients.connect()
    await client.ask(ECHO)
    (connection,) = server._connections
    connection.request(RemotingCommand(307), 10_000, answers.append)
    question = await client.receive()
    assert question.code == 307
    client.send(question.respond(0, "here I am"))
    await until(lambda: answers)
    assert answers[0].remark == "here I am"
    connection.request(RemotingCommand(307), 20, answers.append)
    await until(lambda: len(answers) == 2)
    assert answers[1] is None
    connection.request(RemotingCommand(307), 10_000, answers.append)
    client.abort()
    await until(lambda: len(answers) == 3)
    assert answers[2] is None


@pytest.mark.usefixtures("on_each_loop")
@on_server
async def test_client_accepted_during_server_stop_is_closed(server, clients, gone):
    await server.stop()
    late = await clients.connect()
    assert await late.closed() == b""


@on_server
async def test_server_stop_sends_responses_in_progress(server, clients, gone):
    client = await clients.connect()
    await client.ask(ECHO)
    (connection,) = server._connections
    connection.send(RemotingCommand(40, body=b"last words"))
    await server.stop()
    assert bytes((await client.receive()).body) == b"last words"
