"""One connection: responses, timeouts, silence, garbage, and errors for all waiters at its end."""

import socket
import threading
from concurrent.futures import wait

import pytest
from support.brokers.broker_kinds import wait_until
from support.servers.fake_servers import FakeServer, answering, silent
from support.suite.clocks import Clock

from rmq_spark.client.errors import (
    ConnectionClosed,
    ConnectionFailed,
    ProtocolError,
    RequestTimeout,
)
from rmq_spark.client.transport.connection import RemotingConnection, parse_address
from rmq_spark.client.transport.pending_requests import UNSOLICITED_MAX, ResponseFuture
from rmq_spark.errors import HeaderError
from rmq_spark.wire.remoting.command import RemotingCommand

ASK = RemotingCommand(105, ext_fields={"topic": "T"})
SECOND = 1_000


@pytest.fixture(params=[False, True], ids=["a thread reads", "who waits reads"])
def reads_itself(request):
    return request.param


@pytest.fixture
def connect(reads_itself):
    made = []

    def connect(address, **settings):
        made.append(RemotingConnection.connect(address, reads_itself=reads_itself, **settings))
        return made[-1]

    yield connect
    for connection in made:
        connection.close()


def echo(request):
    return request.respond(0, "echo", request.ext_fields, bytes(request.body))


def test_connection_request_gets_its_response(connect):
    with FakeServer(answering(echo)) as server:
        connection = connect(server.address)
        answer = connection.request(ASK._replace(body=b"x"), SECOND)
        assert (answer.remark, dict(answer.ext_fields), bytes(answer.body)) == (
            "echo",
            {"topic": "T"},
            b"x",
        )
        assert connection.peer_version == answer.version
        assert connection.pending_count == 0


@pytest.mark.parametrize("reads_itself", [False], indirect=True)
def test_cancelled_or_discarded_request_in_the_write_queue_is_not_written(connect):
    go_on, found = threading.Event(), []

    def story(peer):
        go_on.wait(10)
        while (request := peer.receive()) is not None:
            found.append(bytes(request.body[:4]))
            peer.send(request.respond(0))

    with FakeServer(story) as server:
        connection = connect(server.address)
        large = bytes(15 << 20)
        kept = connection.request_async(
            ASK._replace(body=b"kept" + large), 60 * SECOND, may_batch=True
        )
        late = connection.request_async(ASK._replace(body=b"late"), 10, may_batch=True)
        left = connection.request_async(ASK._replace(body=b"left"), SECOND, may_batch=True)
        left.abandon()
        assert isinstance(late.exception(10), RequestTimeout)
        last = connection.request_async(ASK._replace(body=b"last"), 60 * SECOND, may_batch=True)
        go_on.set()
        assert kept.result(30)
        assert last.result(30)
        assert found == [b"kept", b"last"]
        wait_until("all is counted as written", lambda: not connection.unwritten_bytes)


@pytest.mark.parametrize("reads_itself", [False], indirect=True)
def test_request_cancelled_before_it_is_enqueued_is_not_kept(connect, monkeypatch):
    with FakeServer(silent) as server:
        connection = connect(server.address)
        gather, withdrawn = connection._writer.enqueue, []

        def late(command, soon):
            answer.cancel()
            connection.discard(answer)
            gather(command, soon)

        monkeypatch.setattr(connection._writer, "enqueue", late)
        monkeypatch.setattr(connection._writer, "cancel", withdrawn.append)
        answer = ResponseFuture(connection, 105, 10, connection.clock(), lambda command: command)
        connection.submit(answer, ASK, may_batch=True)
        assert withdrawn == [answer.opaque] * 2  # once when the request is discarded, once after it


def test_connection_transfers_bodies_of_megabytes(connect):
    body = bytes(range(256)) * (40_000)
    with FakeServer(answering(echo)) as server:
        assert (
            bytes(connect(server.address).request(ASK._replace(body=body), 30 * SECOND).body)
            == body
        )


def test_connection_accepts_answers_in_any_order(connect):
    def story(peer):
        requests = [peer.receive() for _ in range(3)]
        for request in reversed(requests):
            peer.send(echo(request))
        peer.receive()

    with FakeServer(story) as server:
        connection = connect(server.address)
        futures = [
            connection.request_async(ASK._replace(body=bytes([n])), SECOND) for n in range(3)
        ]
        assert [bytes(future.result().body) for future in futures] == [b"\0", b"\1", b"\2"]


def test_many_threads_share_one_client_connection(connect):
    with FakeServer(answering(echo)) as server:
        connection = connect(server.address)
        wrong = []

        def ask(n):
            for i in range(20):
                body = b"%d/%d" % (n, i)
                if bytes(connection.request(ASK._replace(body=body), 10 * SECOND).body) != body:
                    wrong.append(body)

        threads = [threading.Thread(target=ask, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert wrong == []
        assert connection.pending_count == 0


def connection_of(server, clock, *, reads_itself):
    sock = socket.create_connection(parse_address(server.address))
    return RemotingConnection(sock, server.address, reads_itself=reads_itself, clock=clock)


def test_server_silent_for_a_second_times_out_and_loses_its_connection(reads_itself):
    clock = Clock()
    with FakeServer(silent) as server:
        connection = connection_of(server, clock, reads_itself=reads_itself)
        held = connection.request_async(ASK, 60 * SECOND)
        asked = connection.request_async(ASK, SECOND)
        clock.now += 1.0
        connection._expire_overdue()
        error = asked.exception(0)
        assert isinstance(error, RequestTimeout)
        assert (error.request_code, error.timeout_ms) == (105, 1_000)
        # The broker has sent nothing meanwhile, so all other waiters fail as well.
        assert connection.is_closed
        assert connection.is_silent
        with pytest.raises(ConnectionClosed, match="silent for 1000 ms"):
            held.result(5)


def test_short_timeouts_close_connection_only_after_long_silence(reads_itself):
    clock = Clock()
    with FakeServer(silent) as server:
        connection = connection_of(server, clock, reads_itself=reads_itself)
        held = connection.request_async(ASK, 60 * SECOND)
        for _ in range(4):  # each timeout alone is too short, but all together prove silence
            assert not connection.is_closed
            hurried = connection.request_async(ASK, 250)
            clock.now += 0.25
            connection._expire_overdue()
            assert isinstance(hurried.exception(0), RequestTimeout)
        assert connection.is_closed
        with pytest.raises(ConnectionClosed, match="silent"):
            held.result(5)


@pytest.mark.parametrize(("answers_after", "falls_silent"), [(0.25, True), (2.25, False)])
def test_silence_counts_from_an_answer_to_another_on(reads_itself, answers_after, falls_silent):
    """A broker that falls silent after an answer costs one timeout; the next request fails within a
    second."""

    def story(peer):
        peer.receive()
        peer.send(echo(peer.receive()))
        peer.receive()

    clock = Clock()
    with FakeServer(story) as server:
        connection = connection_of(server, clock, reads_itself=reads_itself)
        asked = connection.request_async(ASK, 3 * SECOND)
        clock.now += answers_after
        connection.request(ASK, SECOND)
        clock.now += 3 - answers_after
        connection._expire_overdue()
        assert isinstance(asked.exception(0), RequestTimeout)
        assert connection.is_silent == connection.is_closed == falls_silent
        connection.close()


def test_connection_with_other_answers_survives_timeout_of_a_hurried_request(connect):
    go_on = threading.Event()

    def story(peer):
        first, hurried = peer.receive(), peer.receive()
        go_on.wait(10)
        for request in (hurried, first):
            peer.send(echo(request))
        peer.receive()

    with FakeServer(story) as server:
        connection = connect(server.address)
        first = connection.request_async(ASK, 60 * SECOND)
        with pytest.raises(RequestTimeout):
            connection.request(ASK, 1)
        go_on.set()
        assert first.result(10).remark == "echo"
        assert not connection.is_closed


def test_slow_response_among_others_times_out_alone_and_keeps_the_connection(connect):
    def story(peer):
        first = peer.receive()
        peer.send(echo(peer.receive()))
        peer.receive()
        peer.send(echo(first))  # after its timeout
        request = peer.receive()
        peer.send(echo(request))
        peer.receive()

    with FakeServer(story) as server:
        connection = connect(server.address)
        slow = connection.request_async(ASK, 100)
        connection.request(ASK, SECOND)
        with pytest.raises(RequestTimeout):
            slow.result()
        assert not connection.is_closed
        connection.send_one_way(ASK, SECOND)
        connection.request(ASK, SECOND)
        assert not connection.is_closed


GARBAGE = {
    "another protocol": b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n",
    "a frame that is too long": b"\x7f\xff\xff\xff\x00\x00\x00\x10",
    "a header that is longer than its frame": b"\x00\x00\x00\x08\x00\x00\xff\xff",
    "a header that is no header": b"\x00\x00\x00\x08\x00\x00\x00\x04{{{{",
    "an unknown codec": b"\x00\x00\x00\x08\x09\x00\x00\x04abcd",
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE)
def test_garbage_fails_all_waiters_of_a_connection_at_once(connect, garbage):
    def story(peer):
        peer.receive()
        peer.receive()
        peer.send(garbage)
        peer.receive()

    with FakeServer(story) as server:
        connection = connect(server.address)
        first = connection.request_async(ASK, 60 * SECOND)
        with pytest.raises(ProtocolError, match="does not answer like a broker"):
            connection.request(ASK, 60 * SECOND)
        with pytest.raises(ProtocolError):
            first.result(5)
        with pytest.raises(ConnectionClosed):
            connection.request(ASK, SECOND)


def test_answer_of_a_web_server_is_recognized(connect):
    def story(peer):
        peer.receive()
        peer.send(GARBAGE["another protocol"])

    with (
        FakeServer(story) as server,
        pytest.raises(ProtocolError, match="found 'HTTP': the peer is a web server"),
    ):
        connect(server.address).request(ASK, 60 * SECOND)


def test_response_over_frame_bytes_max_is_a_protocol_error(reads_itself):
    with FakeServer(answering(lambda request: request.respond(0, body=bytes(2_000)))) as server:
        sock = socket.create_connection(parse_address(server.address))
        connection = RemotingConnection(
            sock, server.address, reads_itself=reads_itself, frame_bytes_max=1_000
        )
        with pytest.raises(ProtocolError, match="frame length"):
            connection.request(ASK, 10 * SECOND)


def test_connection_closed_within_a_response_says_so(connect):
    def story(peer):
        frame = echo(peer.receive()).encode()
        peer.send(frame[:-3])

    with (
        FakeServer(story) as server,
        pytest.raises(ConnectionClosed, match="in the middle of a response"),
    ):
        connect(server.address).request(ASK, 60 * SECOND)


def test_partial_answer_followed_by_silence_times_out(connect):
    def story(peer):
        peer.send(echo(peer.receive()).encode()[:10])
        peer.receive()

    with FakeServer(story) as server, pytest.raises(RequestTimeout):
        connect(server.address).request(ASK, 50)


def test_response_with_another_opaque_is_ignored(connect):
    def story(peer):
        request = peer.receive()
        peer.send(echo(request)._replace(opaque=request.opaque + 1_000))
        peer.receive()

    with FakeServer(story) as server, pytest.raises(RequestTimeout):
        connect(server.address).request(ASK, 50)


@pytest.mark.parametrize("reads_itself", [False], indirect=True)
def test_response_held_up_in_the_reading_thread_is_a_request_timeout(connect, monkeypatch):
    go_on, answered = threading.Event(), ResponseFuture.on_response

    def held_up(answer, command):  # a slow handler of the log does the same
        go_on.wait(30)
        answered(answer, command)

    monkeypatch.setattr(ResponseFuture, "on_response", held_up)
    monkeypatch.setattr("rmq_spark.client.transport.connection.TICK_SECONDS", 0.05)
    with FakeServer(answering(echo)) as server:
        connection = connect(server.address)
        try:
            with pytest.raises(RequestTimeout):
                connection.request(ASK, 50)
        finally:
            go_on.set()


def test_flood_of_unsolicited_responses_closes_connection(connect):
    def story(peer):
        request = peer.receive()
        for stray in range(UNSOLICITED_MAX + 1):
            peer.send(echo(request)._replace(opaque=1_000_000 + stray))
        peer.receive()

    with FakeServer(story) as server, pytest.raises(ProtocolError, match="responses to no request"):
        connect(server.address).request(ASK, 60 * SECOND)


def test_server_that_reads_nothing_does_not_block_a_sender(connect):
    def story(_):
        stop.wait(30)

    stop = threading.Event()
    with FakeServer(story) as server:
        connection = connect(server.address)
        for _ in range(10):
            with pytest.raises((RequestTimeout, ConnectionClosed)):
                connection.request(ASK._replace(body=bytes(15 << 20)), 100)
            if connection.is_closed:
                break
        assert connection.is_closed
        stop.set()


def test_request_of_a_broker_on_a_client_connection_is_answered(connect):
    asked = threading.Event()

    def on_request(_, command):
        return command.respond(0, f"got {command.code}")

    answers = []

    def story(peer):
        request = peer.receive()
        peer.send(RemotingCommand(307, opaque=5))
        answers.append(peer.receive())
        peer.send(RemotingCommand(40, opaque=6, flag=2))  # one-way, so there is no response
        peer.send(echo(request))
        asked.set()
        peer.receive()

    with FakeServer(story) as server:
        connect(server.address, on_request=on_request).request(ASK, 10 * SECOND)
        assert asked.wait(10)
    assert [(a.opaque, a.remark, a.is_response) for a in answers] == [(5, "got 307", True)]


@pytest.mark.parametrize(
    ("on_request", "code", "remark"),
    [(None, 3, "not supported"), (lambda *_: 1 / 0, 1, "ZeroDivisionError: division by zero")],
    ids=["nobody listens", "it fails"],
)
def test_request_from_broker_is_answered_even_if_handler_fails(connect, on_request, code, remark):
    answers = []

    def story(peer):
        request = peer.receive()
        peer.send(RemotingCommand(307, opaque=5))
        answers.append(peer.receive())
        peer.send(echo(request))
        peer.receive()

    with FakeServer(story) as server:
        connect(server.address, on_request=on_request).request(ASK, 10 * SECOND)
    assert answers[0].code == code
    assert remark in answers[0].remark


def test_closed_connection_wakes_all_waiters():
    with FakeServer(silent) as server:
        told = []
        connection = RemotingConnection.connect(server.address, on_closed=told.append)
        futures = [connection.request_async(ASK, 60 * SECOND) for _ in range(3)]
        connection.close("we are done")
        connection.close("again")
        wait(futures, 5)
        assert {str(future.exception(0)) for future in futures} == {
            f"the connection to {server.address} is closed: we are done"
        }
        assert told == [connection]


def test_error_in_response_interpreter_is_raised_by_the_future(connect):
    def interpret(_):
        raise HeaderError("header", at="x", needed="y", found="z")

    with FakeServer(answering(echo)) as server:
        connection = connect(server.address)
        with pytest.raises(ProtocolError, match="needed y"):
            connection.request_async(ASK, SECOND, interpret).result(5)
        with pytest.raises(ZeroDivisionError):
            connection.request_async(ASK, SECOND, lambda _: 1 / 0).result(5)
        assert connection.request_async(ASK, SECOND, lambda answer: answer.code).result(5) == 0


def test_cancelled_future_does_not_disturb_the_connection(connect):
    with FakeServer(answering(echo)) as server:
        connection = connect(server.address)
        connection.request_async(ASK, SECOND).cancel()
        assert connection.request(ASK, SECOND).code == 0


def test_future_without_waiter_gets_its_timeout():
    with FakeServer(silent) as server:
        future = RemotingConnection.connect(server.address).request_async(ASK, 1)
        assert isinstance(future.exception(10), (RequestTimeout, ConnectionClosed))


def test_self_reading_connection_notices_closed_server_before_next_request():
    def story(peer):
        peer.send(echo(peer.receive()))

    with FakeServer(story) as server:
        connection = RemotingConnection.connect(server.address, reads_itself=True)
        connection.request(ASK, SECOND)
        server._threads[0].join(10)
        with pytest.raises(ConnectionClosed, match="the broker closed it"):
            connection.request(ASK, 60 * SECOND)


def test_request_of_a_broker_that_has_closed_the_connection_is_not_processed():
    """A response would need the lock of the request that has detected the end."""
    requests = []
    own, theirs = socket.socketpair()
    connection = RemotingConnection(
        own, "b:1", lambda _, request: requests.append(request), reads_itself=True
    )
    theirs.sendall(ASK.encode())
    theirs.close()
    with pytest.raises(ConnectionClosed, match="the broker closed it"):
        connection.request(ASK, 60 * SECOND)
    assert requests == []


def test_connect_error_names_the_address():
    with FakeServer(silent) as server:
        address = server.address
    with pytest.raises(ConnectionFailed, match=f"cannot connect to {address}: Connection refused"):
        RemotingConnection.connect(address)


@pytest.mark.parametrize(
    "address",
    ["", "localhost", "localhost:", "localhost:x", ":9876", "h:0", "h:65536", "h:-1", "h:٣"],
)
def test_parse_address_refuses_text_that_is_no_address(address):
    with pytest.raises(ConnectionFailed, match="host:port"):
        parse_address(address)


@pytest.mark.parametrize("host", ["broker..example", "x" * 64 + ".example", "."])
def test_invalid_host_name_is_refused(host):
    with pytest.raises(ConnectionFailed, match="is not a valid host name"):
        RemotingConnection.connect(f"{host}:9876")


def test_parse_address_accepts_ipv4_and_ipv6():
    assert parse_address("localhost:9876") == ("localhost", 9876)
    assert parse_address("[::1]:9876") == ("::1", 9876)
