"""Connections are shared by address, negotiate extensions, sign requests and are reopened."""

import threading

import pytest
from support.brokers.broker_kinds import wait_until
from support.servers.fake_servers import FakeServer, answering, silent

from rmq_spark.client.errors import (
    ClientShutDown,
    ConnectionClosed,
    ConnectionFailed,
    MessageRejected,
    ProtocolError,
    RequestTimeout,
)
from rmq_spark.client.instance.instance import ClientInstance
from rmq_spark.client.transport import connection_pool
from rmq_spark.client.transport.connection import RemotingConnection
from rmq_spark.client.transport.remoting_client import Credentials, RemotingClient
from rmq_spark.wire.codes import RequestCode, SerializeType
from rmq_spark.wire.extensions import Extension
from rmq_spark.wire.remoting.command import RemotingCommand
from rmq_spark.wire.signature import SIGNATURE, sign

ASK = RemotingCommand(28, ext_fields={"topic": "T", "_UNIQUE_KEY_QUERY": "true"})


class Heard:
    """A RocketMQ broker that records requests."""

    def __init__(self, version=407):
        self.requests = []
        self._version = version

    def __call__(self, request):
        self.requests.append(request)
        if request.code == RequestCode.EXTENSIONS:
            return request.respond(3, "not supported")._replace(version=self._version)
        return request.respond(0, "yes")._replace(version=self._version)

    @property
    def codes(self):
        return [request.code for request in self.requests]


def test_connection_is_shared_per_address_and_reopened_after_close(connections):
    heard = Heard()
    with FakeServer(answering(heard)) as server:
        assert connections.request(server.address, ASK).remark == "yes"
        assert connections.request(server.address, ASK).remark == "yes"
        assert len(server.peers) == 1
        connections.close(server.address)
        assert connections.request(server.address, ASK).remark == "yes"
        assert len(server.peers) == 2


def test_silent_extension_negotiation_times_out_with_the_request():
    """A request with a timeout of 300 ms waits no longer for the negotiation."""
    with FakeServer(silent) as server:
        instance = ClientInstance("127.0.0.1:1", request_timeout_ms=300)
        try:
            with pytest.raises(RequestTimeout, match="300 ms"):
                instance.connections.agreement(server.address)
        finally:
            instance.shutdown()


@pytest.mark.parametrize("reads_itself", [False, True], ids=["a thread reads", "who waits reads"])
def test_connection_closed_while_idle_is_reopened_without_a_failed_request(
    reads_itself,
):
    def story(peer):
        for _ in range(2):  # the negotiation, one request, then the end
            peer.send(heard(peer.receive()))

    heard = Heard()
    connections = RemotingClient(reads_itself=reads_itself)
    with FakeServer(story) as server:
        for _ in range(3):
            assert connections.request(server.address, ASK).remark == "yes"
            server._threads[-1].join(10)
            if not reads_itself:  # the reading thread notices a moment later
                wait_until("an end", lambda: connections.get(server.address) is None)
        assert len(server.peers) == 3
        connections.shutdown()


def test_rocketmq_broker_is_asked_for_extensions_once_then_gets_binary_headers(connections):
    heard = Heard()
    with FakeServer(answering(heard)) as server:
        connections.request(server.address, ASK)
        connections.send_one_way(server.address, ASK)
        connections.request(server.address, ASK)
        assert connections.agreement(server.address).extensions == frozenset()
    assert heard.codes == [29_000, 28, 28, 28]
    assert [request.serialize_type for request in heard.requests] == [
        SerializeType.JSON,
        *[SerializeType.ROCKETMQ] * 3,
    ]


def test_broker_is_ready_while_connected_and_negotiated(connections):
    with FakeServer(answering(Heard())) as server:
        assert not connections.is_ready(server.address)
        connections.request(server.address, ASK, is_broker=False)
        assert not connections.is_ready(server.address)
        connections.request(server.address, ASK)
        assert connections.is_ready(server.address)
        connections.close(server.address)
        assert not connections.is_ready(server.address)


def test_connect_timeout_of_one_caller_leaves_connection_to_others(connections, monkeypatch):
    go_on, real = threading.Event(), RemotingConnection.connect

    def connect(*arguments, **more):
        assert go_on.wait(10)
        return real(*arguments, **more)

    monkeypatch.setattr(RemotingConnection, "connect", connect)
    with FakeServer(answering(Heard())) as server:
        with pytest.raises(ConnectionFailed, match="no answer within 20 ms"):
            connections.connect(server.address, 20)
        waits = threading.Thread(target=connections.connect, args=(server.address, 10_000))
        waits.start()
        go_on.set()
        waits.join(10)
        assert connections.is_ready(server.address)
        assert len(server.peers) == 1


def test_slow_connect_marks_the_address_as_silent(monkeypatch):
    monkeypatch.setattr(connection_pool, "SLOW_SECONDS", 0.0)
    monkeypatch.setattr(connection_pool, "RECONNECT_SECONDS", 0.0)
    connections = RemotingClient(connect_timeout_ms=100)
    is_back = threading.Event()

    def story(peer):
        request = peer.receive()
        if is_back.is_set():
            peer.send(heard(request))
            peer.receive()

    heard = Heard()
    with FakeServer(story) as server:
        assert not connections.is_silent(server.address)
        with pytest.raises(ConnectionClosed):
            connections.connect(server.address, 10_000)
        assert connections.silent_addresses == (server.address,)
        is_back.set()
        # A query starts a new check, and waits for nothing.
        wait_until("a broker that is back", lambda: not connections.is_silent(server.address))
        assert connections.is_ready(server.address)
    connections.shutdown()


def test_address_of_a_connection_that_fell_silent_is_listed_as_silent(connections):
    def story(peer):
        peer.send(heard(peer.receive()))
        silent(peer)

    heard = Heard()
    with FakeServer(story) as server:
        with pytest.raises(RequestTimeout):
            connections.request(server.address, ASK, 1_100)
        assert connections.silent_addresses == (server.address,)


def test_refused_connect_is_retried_at_once(connections):
    with FakeServer(silent) as server:
        address = server.address
    for _ in range(3):
        with pytest.raises(ConnectionFailed):
            connections.connect(address, 10_000)
    assert connections.silent_addresses == ()


def test_connection_without_a_startable_thread_fails(connections, monkeypatch):
    real, limited = threading.Thread.start, {"rocketpoll dials": True, "rocketpoll reader": True}

    def start(thread):
        if any(thread.name.startswith(name) and left for name, left in limited.items()):
            raise RuntimeError("can't start new thread")
        real(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    with FakeServer(answering(Heard())) as server:
        with pytest.raises(ConnectionFailed, match="cannot start a thread that connects"):
            connections.request(server.address, ASK)
        limited["rocketpoll dials"] = False
        with pytest.raises(ConnectionFailed, match="cannot start a thread that reads from it"):
            connections.request(server.address, ASK)
        limited["rocketpoll reader"] = False
        assert connections.request(server.address, ASK).remark == "yes"


def test_name_server_is_not_asked_for_extensions(connections):
    heard = Heard()
    with FakeServer(answering(heard)) as server:
        connections.request(server.address, ASK, is_broker=False)
    assert heard.codes == [28]


def test_our_broker_agrees_on_all_extensions_and_messagepack(running_broker, connections):
    agreement = connections.agreement(running_broker.address)
    assert agreement.serialize_type is SerializeType.MSGPACK
    assert agreement.extensions == frozenset(Extension)
    assert agreement.store_host == running_broker.address
    assert agreement.born_host.startswith("127.0.0.1:")
    assert connections.request(running_broker.address, RemotingCommand(28)).serialize_type is (
        SerializeType.MSGPACK
    )


def test_many_threads_needing_one_connection_dial_once(connections):
    heard = Heard()
    with FakeServer(answering(heard)) as server:
        threads = [
            threading.Thread(target=connections.request, args=(server.address, ASK))
            for _ in range(10)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        assert len(server.peers) == 1
    assert heard.codes.count(29_000) == 1
    assert heard.codes.count(28) == 10


@pytest.mark.parametrize("version", [407, 513])
def test_requests_are_signed_as_the_peer_version_checks(version):
    heard = Heard(version)
    credentials = Credentials("RocketMQ", "12345678", "token")
    connections = RemotingClient(credentials=credentials)
    with FakeServer(answering(heard)) as server:
        connections.request(server.address, ASK._replace(body=b"b"))
        connections.shutdown()
    without = ("_UNIQUE_KEY_QUERY",) if version == 407 else ()
    assert heard.codes == [29_000, 28]
    for request in heard.requests:
        assert request.ext_fields["AccessKey"] == "RocketMQ"
        signed = sign(request.ext_fields, request.body, "12345678", excluded=without)
        assert request.ext_fields[SIGNATURE] == signed


def test_credentials_repr_hides_the_secret():
    assert "12345678" not in repr(Credentials("RocketMQ", "12345678", "12345678"))


@pytest.mark.parametrize("field", ["access_key", "secret_key", "security_token"])
@pytest.mark.parametrize(
    "found", ["87654321\ud800", b"87654321", 87654321], ids=["no text", "bytes", "number"]
)
def test_invalid_credentials_are_refused_without_showing_them(field, found):
    keys = {"access_key": "me", "secret_key": "12345678", field: found}
    said = rf"{field}: needed .*(text|string)"
    with pytest.raises((MessageRejected, TypeError), match=said) as refused:
        Credentials(**keys)
    assert "87654321" not in str(refused.value)


def test_broker_that_closes_on_the_extension_question_raises_connection_closed(
    connections,
):
    def story(peer):
        peer.receive()

    with FakeServer(story) as server, pytest.raises(ConnectionClosed):
        connections.request(server.address, ASK)


def test_malformed_agreement_is_a_protocol_error(connections):
    with (
        FakeServer(answering(lambda request: request.respond(0))) as server,
        pytest.raises(ProtocolError, match="names"),
    ):
        connections.request(server.address, ASK)


def test_shutdown_fails_waiting_requests_and_refuses_new_ones(connections):
    waits = threading.Event()

    def story(peer):
        peer.receive()
        waits.set()
        peer.receive()

    with FakeServer(story) as server:
        failed = []

        def ask():
            try:
                connections.request(server.address, ASK, 60_000, is_broker=False)
            except ConnectionClosed as error:
                failed.append(error.why)

        thread = threading.Thread(target=ask)
        thread.start()
        assert waits.wait(10)
        connections.shutdown()
        thread.join(10)
        assert failed == ["the client was shut down"]
        with pytest.raises(ClientShutDown):
            connections.request(server.address, ASK)


def test_close_callback_gets_the_address():
    gone = []
    connections = RemotingClient(on_closed=gone.append)
    with FakeServer(silent) as server:
        with pytest.raises(RequestTimeout):
            connections.request(server.address, ASK, 1_100, is_broker=False)
        assert gone == [server.address]
    with pytest.raises(ConnectionFailed):
        connections.request(server.address, ASK)
    assert connections.peer_version(server.address) == 0


def test_peer_version_is_known_after_a_broker_has_answered(connections, running_broker):
    connections.request(running_broker.address, ASK)
    assert connections.peer_version(running_broker.address) > 0
