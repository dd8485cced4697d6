"""A TLS connection used by several threads, and its shutdown."""

import socket
import ssl
import threading
from concurrent.futures import wait
from contextlib import suppress

import pytest
from support.servers.fake_servers import FakeServer, answering, silent
from support.servers.tls import TRUSTING, server_context

from rmq_spark.client.errors import ConnectionClosed, ProtocolError, RequestTimeout
from rmq_spark.client.transport.connection import RemotingConnection
from rmq_spark.client.transport.tls.client import TlsClient
from rmq_spark.wire.remoting.command import RemotingCommand

ASK = RemotingCommand(105, ext_fields={"topic": "T"})
SECOND = 1_000


@pytest.fixture(params=[False, True], ids=["a thread reads", "who waits reads"])
def connect(request):
    made = []

    def connect(address, **settings):
        tls = TlsClient(TRUSTING)
        made.append(
            RemotingConnection.connect(address, reads_itself=request.param, tls=tls, **settings)
        )
        return made[-1]

    yield connect
    for connection in made:
        connection.close()


def serving(story):
    return FakeServer(story, tls=server_context())


def echo(request):
    return request.respond(0, "echo", request.ext_fields, bytes(request.body))


@pytest.mark.parametrize(
    "size", [16_383, 16_384, 16_385, 3 * 16_384 - 60, 65_536, 300_000, 15 << 20]
)
def test_tls_body_of_any_size_is_sent_and_returned(connect, size):
    body = (bytes(range(251)) * (size // 251 + 1))[:size]
    with serving(answering(echo)) as server:
        connection = connect(server.address)
        for _ in range(2):
            assert bytes(connection.request(ASK._replace(body=body), 30 * SECOND).body) == body


def test_tls_connection_reads_thousands_of_answers_at_once(connect):
    count = 3_000

    def story(peer):
        requests = [peer.receive() for _ in range(count)]
        peer.send(b"".join(echo(request).encode() for request in requests))
        peer.receive()

    with serving(story) as server:
        connection = connect(server.address)
        body = bytes(300)
        answers = [
            connection.request_async(ASK._replace(body=body), 30 * SECOND) for _ in range(count)
        ]
        assert all(bytes(answer.result(30).body) == body for answer in answers)


@pytest.mark.parametrize("_", range(6))
def test_tls_connection_is_written_by_many_threads_while_read(connect, _):
    """With Python's own socket, one round in four fails up to Python 3.12."""
    with serving(answering(echo)) as server:
        connection = connect(server.address)
        went_well = []

        def ask(number):
            for size in range(0, 60_000, 1_500):
                body = bytes([number]) * size
                assert bytes(connection.request(ASK._replace(body=body), 30 * SECOND).body) == body
            went_well.append(number)

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert sorted(went_well) == list(range(8))
        assert connection.pending_count == 0
        assert not connection.is_closed


def test_tls_peers_sending_megabytes_simultaneously_do_not_deadlock():
    """A blocked writer must not block the reader, because reading is what unblocks the writer."""
    each, count = bytes(1 << 20), 12
    heard = []

    def story(peer):
        requests = [peer.receive() for _ in range(count)]
        for request in requests:  # the peer reads nothing meanwhile
            peer.send(echo(request._replace(body=each)))
        heard.extend(len(peer.receive().body) for _ in range(count))
        done.set()
        peer.receive()

    done = threading.Event()
    with serving(story) as server:
        connection = RemotingConnection.connect(server.address, tls=TlsClient(TRUSTING))
        answers = [connection.request_async(ASK, 60 * SECOND) for _ in range(count)]
        for _ in range(count):
            connection.send_one_way(ASK._replace(body=each), 60 * SECOND)
        assert all(len(answer.result(60).body) == len(each) for answer in answers)
        assert done.wait(30)
        connection.close()
    assert heard == [len(each)] * count


def test_tls_response_in_small_pieces_is_assembled(connect):
    def story(peer):
        frame = echo(peer.receive()).encode()
        for start in range(0, len(frame), 7):
            peer.send(frame[start : start + 7])
        peer.receive()

    with serving(story) as server:
        assert connect(server.address).request(ASK, 10 * SECOND).remark == "echo"


def say_goodbye(peer):
    """Close cleanly, without waiting for an answer."""
    peer.socket.settimeout(0)
    with suppress(ssl.SSLWantReadError):
        peer.socket.unwrap()


@pytest.mark.parametrize("has_said_goodbye", [False, True], ids=["cut", "closed in order"])
def test_tls_connection_closed_within_a_response_says_so(connect, has_said_goodbye):
    def story(peer):
        peer.send(echo(peer.receive()._replace(body=bytes(200_000))).encode()[:-3])
        if has_said_goodbye:
            say_goodbye(peer)

    with (
        serving(story) as server,
        pytest.raises(ConnectionClosed, match="in the middle of a response, 200"),
    ):
        connect(server.address).request(ASK, 60 * SECOND)


def test_bytes_changed_in_transit_end_the_tls_connection(connect):
    def story(peer):
        request = peer.receive()
        peer.send(echo(request))
        socket.socket.sendall(peer.socket, b"\x17\x03\x03\x00\x20" + bytes(32))
        peer.receive()

    with serving(story) as server:
        connection = connect(server.address)
        assert connection.request(ASK, 10 * SECOND).remark == "echo"
        with pytest.raises(ConnectionClosed, match=r"TLS: the data was changed on its way"):
            connection.request(ASK, 60 * SECOND)


def test_garbage_response_under_tls_is_a_protocol_error(connect):
    def story(peer):
        peer.receive()
        peer.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        peer.receive()

    with (
        serving(story) as server,
        pytest.raises(ProtocolError, match="does not answer like a broker"),
    ):
        connect(server.address).request(ASK, 60 * SECOND)


def test_tls_server_that_accepts_no_bytes_does_not_hang_a_sender(connect):
    stop = threading.Event()
    with serving(lambda _: stop.wait(30)) as server:
        connection = connect(server.address)
        with pytest.raises((RequestTimeout, ConnectionClosed)):
            # silence is detected after a second
            connection.request(ASK._replace(body=bytes(15 << 20)), 1_500)
        assert connection.is_closed
        stop.set()


def test_close_under_tls_wakes_waiters_and_notifies_the_server():
    ended = []

    def story(peer):
        silent(peer)
        ended.append("in order")  # a truncated stream raises an error

    with serving(story) as server:
        connection = RemotingConnection.connect(server.address, tls=TlsClient(TRUSTING))
        futures = [connection.request_async(ASK, 60 * SECOND) for _ in range(3)]
        connection.close("we are done")
        connection.close("again")
        wait(futures, 5)
        assert {type(future.exception(0)) for future in futures} == {ConnectionClosed}
        server._threads[0].join(10)
    assert ended == ["in order"]


@pytest.mark.parametrize("has_said_goodbye", [False, True], ids=["cut", "closed in order"])
def test_self_reading_tls_connection_notices_closed_server(
    has_said_goodbye,
):
    def story(peer):
        peer.send(echo(peer.receive()))
        if has_said_goodbye:
            say_goodbye(peer)

    with serving(story) as server:
        connection = RemotingConnection.connect(
            server.address, reads_itself=True, tls=TlsClient(TRUSTING)
        )
        connection.request(ASK, 10 * SECOND)
        server._threads[0].join(10)
        with pytest.raises(ConnectionClosed, match="the broker closed it"):
            connection.request(ASK, 60 * SECOND)


def test_batched_tls_requests_are_written_as_whole_records():
    with serving(answering(echo)) as server:
        connection = RemotingConnection.connect(server.address, tls=TlsClient(TRUSTING))
        bodies = [bytes([number % 251]) * (number * 7 % 3_000) for number in range(2_000)]
        answers = [
            connection.request_async(ASK._replace(body=body), 60 * SECOND, may_batch=True)
            for body in bodies
        ]
        assert [bytes(answer.result(60).body) for answer in answers] == bodies
        connection.close()
