"""Connections with TLS over real sockets: responses equal those without TLS, and refusals have a
reason."""

import asyncio
import contextlib
import logging
import socket
import ssl
import time

import pytest
from support.brokers.in_process import on_broker, run, tell
from support.clients.remoting_clients import RawClients, send_request, until
from support.servers.tls import BROKER_TLS, certificate, client_context
from support.suite.coroutine_tests import run_by
from support.suite.log_records import lines_of

from rmq_spark.wire.codes import RequestCode
from rmq_spark.wire.remoting.command import RemotingCommand
from rocketpoll.broker.server.fair_scheduler import FairScheduler
from rocketpoll.broker.server.server import RemotingServer
from rocketpoll.broker.server.tls.server_tls import ServerTls
from rocketpoll.broker.settings.config import ServerLimits
from rocketpoll.broker.settings.settings import config_of

pytestmark = pytest.mark.usefixtures("on_each_loop")

TLS_1_2, TLS_1_3 = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3
ENFORCING = {**BROKER_TLS, "tls.server.mode": "enforcing"}
MUTUAL = {
    **BROKER_TLS,
    "tls.server.authClient": "true",
    "tls.server.need.client.auth": "require",
    "tls.server.trustCertPath": certificate("ca.pem"),
}


def handshakes(broker):
    tls = broker.controller.tls
    return tls.handshakes_completed, tls.handshakes_failed, tls.plain_refused


@pytest.mark.parametrize("version", [TLS_1_2, TLS_1_3])
@on_broker(**BROKER_TLS)
async def test_sends_and_pulls_over_tls_equal_those_without(broker, version):
    plain = await broker.connect()
    secret = await broker.connect(tls=client_context(version=version))
    for client in (plain, secret):
        await client.put(*range(50), queue_id=0)  # from the second message on, by the fast path
        await client.put("x" * 400_000, queue_id=0)
    answers = [await client.pull(0, count=32) for client in (plain, secret)]
    assert answers[0].bodies == answers[1].bodies == [str(n) for n in range(32)]
    for client in (plain, secret):
        assert (await client.pull(50)).bodies == ["x" * 400_000]
    assert handshakes(broker) == (1, 0, 0)


@on_broker(**BROKER_TLS)
async def test_held_pull_is_answered_under_tls(broker):
    broker.make_topic()
    client = await broker.connect(tls=client_context())
    waiting = asyncio.ensure_future(client.pull(0, suspend_ms=20_000))
    await broker.held(1)
    await (await broker.connect()).put("news")
    assert (await waiting).bodies == ["news"]


@on_broker(**BROKER_TLS)
async def test_requests_in_one_write_and_byte_by_byte_are_answered(broker):
    client = await broker.connect(tls=client_context())
    client.send(b"".join(send_request(n, opaque=n).encode() for n in range(200)))
    assert [(await client.receive()).opaque for _ in range(200)] == list(range(200))
    for byte in send_request("slowly", opaque=7).encode():
        client.send(bytes([byte]))  # a record each
    assert (await client.receive()).opaque == 7


def test_enforcing_tls_mode_refuses_plain_connections_with_one_log_line(tmp_path, caplog):
    async def story(broker):
        for _ in range(3):
            plain = await broker.connect()
            plain.send(send_request("x"))
            assert await plain.closed() == b""
        secret = await broker.connect(tls=client_context())
        await secret.put("x")
        assert handshakes(broker) == (1, 0, 3)

    tell(story, tmp_path, **ENFORCING)
    [line] = [line for line in lines_of(caplog) if "closed: " in line]
    assert line.partition(": ")[2] == (
        "closed: it does not use TLS, and tls.server.mode is enforcing. Turn TLS on in the client"
    )


@pytest.mark.parametrize("settings", [{}, {**BROKER_TLS, "tls.server.mode": "disabled"}])
def test_tls_handshake_is_refused_by_a_server_without_tls(tmp_path, caplog, settings):
    async def story(broker):
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await broker.connect(tls=client_context())
        await (await broker.connect()).put("x")

    tell(story, tmp_path, **settings)
    [line] = [line for line in lines_of(caplog) if "closed: " in line]
    assert "it speaks TLS, not RocketMQ's remoting protocol, and TLS is off here" in line
    assert "set tls.server.certPath and tls.server.keyPath" in line


@pytest.mark.parametrize("need", ["none", "optional", "require"])
@pytest.mark.parametrize("own", [None, "client.pem", "expired.pem"])
def test_client_certificates_are_required_as_configured(tmp_path, caplog, need, own):
    settings = {**MUTUAL, "tls.server.need.client.auth": need}
    if need == "none":
        settings["tls.server.authClient"] = "false"
    context = client_context()
    if own == "expired.pem":
        context.load_cert_chain(certificate(own), certificate("server.key"))
    elif own is not None:
        context.load_cert_chain(certificate(own))
    is_accepted = need == "none" or own == "client.pem" or (need == "optional" and own is None)

    async def story(broker):
        if is_accepted:
            await (await broker.connect(tls=context)).put("x")
            assert handshakes(broker) == (1, 0, 0)
            return
        with pytest.raises((ssl.SSLError, ConnectionError, AssertionError)):
            await (await broker.connect(tls=context)).put("x")
        await broker.until(lambda: handshakes(broker) == (0, 1, 0))
        await (await broker.connect(tls=client_context(own="client.pem"))).put("x")

    tell(story, tmp_path, **settings)
    lines = [line for line in lines_of(caplog) if "closed: " in line]
    if is_accepted:
        assert lines == []
        return
    [line] = lines
    why = (
        "it presents no certificate, and tls.server.need.client.auth is require"
        if own is None
        else "its certificate is not accepted: certificate has expired. See tls.server.trustCert"
    )
    assert f"closed: the TLS handshake failed: {why}" in line


def test_client_that_does_not_trust_the_certificate_is_counted(tmp_path, caplog):
    async def story(broker):
        end = OwnEnd(await broker.connect(), context=client_context("other-ca.pem"))
        with pytest.raises(ssl.SSLCertVerificationError):
            await end.handshake()
        await broker.until(lambda: handshakes(broker)[1] == 1)

    tell(story, tmp_path, **BROKER_TLS)
    [line] = [line for line in lines_of(caplog) if "closed: " in line]
    assert "it does not trust the broker's certificate. Give it the authority's" in line


def test_tls_sessions_are_resumed_with_tickets(tmp_path):
    """A handshake with a ticket has no certificate and no signature."""

    def connect(port, context, session):
        with (
            socket.create_connection(("127.0.0.1", port)) as sock,
            context.wrap_socket(sock, server_hostname="localhost", session=session) as secret,
        ):
            secret.sendall(RemotingCommand(RequestCode.GET_ALL_TOPIC_CONFIG).encode())
            secret.recv(100)
            return secret.session, secret.session_reused

    async def story(broker):
        for version in (TLS_1_2, TLS_1_3):
            context = client_context(version=version)
            session, is_reused = await asyncio.to_thread(connect, broker.port, context, None)
            assert not is_reused
            _, is_reused = await asyncio.to_thread(connect, broker.port, context, session)
            assert is_reused

    tell(story, tmp_path, **BROKER_TLS)


def test_reload_keeps_connections_and_gives_new_ones_the_new_certificate(tmp_path):
    def certificate_of(client):
        return client._writer.get_extra_info("ssl_object").getpeercert(binary_form=True)

    async def story(broker):
        before = await broker.connect(tls=client_context())
        await before.put("before")
        config = broker.controller._config
        texts = {**ENFORCING, "tls.server.certPath": certificate("named.pem")}
        changed = config_of({"storePathRootDir": "/", **texts})
        reload = broker.controller.reload(type(config)(**{**vars_of(config), "tls": changed.tls}))
        assert reload.reloaded == (
            "tls.server.mode=enforcing",
            f"tls.server.certPath={certificate('named.pem')}",
        )
        context = client_context()
        context.check_hostname = False
        after = await broker.connect(tls=context)
        assert certificate_of(before) != certificate_of(after)
        await before.put("after")
        await after.put("after")
        plain = await broker.connect()
        plain.send(send_request("x"))
        assert await plain.closed() == b""
        assert (await after.pull(0)).bodies == ["before", "after", "after"]

    tell(story, tmp_path, **BROKER_TLS)


def vars_of(config):
    return {name: getattr(config, name) for name in config.__dataclass_fields__}


# ---- a server alone, whose responses a test sets

ECHO, HUGE = 1, 2
HUGE_BYTES = 12 << 20


def dispatch(connection, request):
    if request.code == HUGE:
        connection.send_frame(request.respond(0).encode_head(HUGE_BYTES), [bytes(HUGE_BYTES)])
        return None
    return request.respond(0, body=request.body)


def serve(story, **limits):
    async def whole():
        loop = asyncio.get_running_loop()
        tls = ServerTls(config_of(BROKER_TLS).tls, time.time, loop.time)
        gone = []
        server = RemotingServer(
            ServerLimits(**limits),
            dispatch,
            gone.append,
            FairScheduler(loop),
            lambda: None,
            tls=tls,
        )
        port = await server.start("127.0.0.1", 0)
        try:
            async with RawClients(port) as clients:
                await story(server, clients)
        finally:
            server.stop_listening()
            await server.stop()
        assert server.connections == 0
        assert (server.in_flight_bytes, server.unread_bytes) == (0, 0)

    run(whole())


on_server = run_by(serve, given=2)


@pytest.mark.parametrize("version", [TLS_1_2, TLS_1_3])
@on_server
async def test_large_tls_response_arrives_whole_while_others_are_answered(server, clients, version):
    large = await clients.connect(tls=client_context(version=version))
    other = await clients.connect(tls=client_context(version=version))
    await other.ask(ECHO)
    large.send(RemotingCommand(HUGE, opaque=3))
    for n in range(20):
        assert bytes((await other.ask(ECHO, body=b"%d" % n)).body) == b"%d" % n
    answer = await large.receive()
    assert (answer.opaque, len(answer.body)) == (3, HUGE_BYTES)
    assert bytes((await large.ask(ECHO, body=b"behind it")).body) == b"behind it"


@on_server
async def test_client_that_does_not_read_is_congested_and_its_answers_are_not_encrypted_ahead(
    server, clients
):
    client = await clients.connect(receive_buffer=4_096, tls=client_context())
    client._reader._transport.pause_reading()
    client.send(RemotingCommand(HUGE))
    await until(lambda: server.unread_bytes)
    [connection] = server._connections
    assert connection.is_congested
    assert server.unread_bytes >= HUGE_BYTES
    await asyncio.sleep(0.1)  # until the kernel accepts no more
    encrypted = connection._tls._transport.get_write_buffer_size()
    assert encrypted <= 2 * 65_536
    assert connection.undelivered_bytes > HUGE_BYTES // 2
    client.send(RemotingCommand(ECHO, opaque=2))
    client._reader._transport.resume_reading()
    assert len((await client.receive()).body) == HUGE_BYTES
    assert (await client.receive()).opaque == 2
    await until(lambda: not server.unread_bytes)
    assert not connection.is_congested


def test_slow_tls_reader_is_closed(caplog):
    async def story(server, clients):
        client = await clients.connect(receive_buffer=4_096, tls=client_context())
        client._reader._transport.pause_reading()
        client.send(RemotingCommand(HUGE))
        await until(lambda: server.unread_bytes)
        await until(lambda: not server.connections)

    serve(story, slow_reader_timeout_ms=50)
    [line] = lines_of(caplog)
    assert line.endswith("closed: it does not read its responses")


HELLO_START = bytes.fromhex("1603010200010001fc0303")


def test_stalled_tls_handshake_is_closed_by_the_first_frame_timeout(caplog):
    async def story(server, clients):
        stalled = await clients.connect()
        stalled.send(HELLO_START)
        await until(lambda: server.in_flight_bytes == len(HELLO_START))
        assert await stalled.closed() == b""
        assert server.tls.handshakes_failed == 1

    serve(story, first_frame_timeout_ms=50)
    [line] = lines_of(caplog)
    assert line.endswith("closed: the TLS handshake failed: it sent no request")


def test_tls_client_without_a_first_request_is_closed_by_the_first_frame_timeout(caplog):
    async def story(server, clients):
        silent = await clients.connect(tls=client_context())
        assert await silent.closed() == b""
        assert server.tls.handshakes_failed == 0

    caplog.set_level(logging.INFO)
    serve(story, first_frame_timeout_ms=50)
    [line] = lines_of(caplog)
    assert line.endswith("closed: it sent no request")


def test_incomplete_tls_record_counts_as_a_partial_request(caplog):
    async def story(server, clients):
        pair = OwnEnd(await clients.connect())
        await pair.handshake()
        pair.send_plain(RemotingCommand(ECHO, body=b"whole"))
        await pair.receive_plain()
        record = pair.encrypted(RemotingCommand(ECHO, body=bytes(5_000)).encode())
        pair.client.send(record[:-1])
        await until(lambda: server.in_flight_bytes == len(record) - 1)
        await until(lambda: not server.connections)

    serve(story, partial_frame_timeout_ms=50)
    [line] = lines_of(caplog)
    assert line.endswith("closed: its request is incomplete")


GARBAGE = {
    "no hello": (b"\x16\x03\x01\x00\x05hello", "the TLS handshake failed: "),
    "a record that is too long": (b"\x16\x03\x01\xff\xff", "the TLS handshake failed: "),
    "another first byte of a version": (b"\x16" + bytes(40), "the TLS handshake failed: "),
    "data before the handshake": (
        HELLO_START[:3] + b"\x00\x02\x01\x00" + b"\x17\x03\x03\x00\x03abc",
        "the TLS handshake failed: ",
    ),
}


@pytest.mark.parametrize(("data", "why"), GARBAGE.values(), ids=GARBAGE)
def test_garbage_in_a_tls_handshake_closes_with_one_log_line_and_an_alert(data, why, caplog):
    async def story(server, clients):
        bad = await clients.connect()
        bad.send(data)
        said = await bad.closed()
        assert said[:1] in (b"\x15", b"")
        assert (await (await clients.connect(tls=client_context())).ask(ECHO)).code == 0
        assert (server.tls.handshakes_completed, server.tls.handshakes_failed) == (1, 1)
        assert server.closed_by_broker == 1

    serve(story)
    [line] = lines_of(caplog)
    assert why in line


def test_client_disconnecting_during_the_tls_handshake_is_counted(caplog):
    async def story(server, clients):
        gone = await clients.connect()
        gone.send(HELLO_START)
        await until(lambda: server.in_flight_bytes)
        gone.close()
        await until(lambda: not server.connections)
        assert server.tls.handshakes_failed == 1

    serve(story)
    [line] = lines_of(caplog)
    assert line.endswith("the TLS handshake failed: the client has closed the connection")


class OwnEnd:
    """A client whose TLS the test runs itself, so that it can change the encrypted bytes."""

    def __init__(self, client, version=None, context=None):
        self.client = client
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = (context or client_context(version=version)).wrap_bio(
            self.incoming, self.outgoing, server_hostname="localhost"
        )

    async def handshake(self):
        while not self._is_done():
            await self._read()

    def _is_done(self):
        """Continue the handshake; return whether it is done."""
        try:
            self.tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        finally:
            self.client.send(self.outgoing.read())
        return True

    def encrypted(self, data):
        self.tls.write(data)
        return self.outgoing.read()

    def send_plain(self, command):
        self.client.send(self.encrypted(command.encode()))

    async def receive_plain(self):
        while True:
            with contextlib.suppress(ssl.SSLWantReadError):
                return self.tls.read(1 << 16)
            await self._read()

    async def _read(self):
        data = await asyncio.wait_for(self.client._reader.read(1 << 16), 10)
        assert data
        self.incoming.write(data)


@pytest.mark.parametrize("version", [TLS_1_2, TLS_1_3])
def test_changed_tls_bytes_close_the_connection_with_one_log_line(caplog, version):
    async def story(server, clients):
        end = OwnEnd(await clients.connect(), version)
        await end.handshake()
        end.send_plain(RemotingCommand(ECHO, body=b"good"))
        assert b"good" in await end.receive_plain()
        bad = bytearray(end.encrypted(RemotingCommand(ECHO, body=b"bad").encode()))
        bad[-1] ^= 1
        end.client.send(bytes(bad))
        with pytest.raises(ssl.SSLError, match="ALERT_BAD_RECORD_MAC"):
            await end.receive_plain()
        await until(lambda: not server.connections)

    serve(story)
    [line] = lines_of(caplog)
    assert "closed: TLS: " in line
    assert "MAC" in line


def test_clients_close_notify_ends_the_connection_after_its_answers(caplog):
    async def story(server, clients):
        end = OwnEnd(await clients.connect())
        await end.handshake()
        request = end.encrypted(RemotingCommand(ECHO, body=b"the last").encode())
        with contextlib.suppress(ssl.SSLWantReadError):
            end.tls.unwrap()
        end.client.send(request + end.outgoing.read())
        assert b"the last" in end_of(await end.client.closed(), end)

    caplog.set_level(logging.WARNING)
    serve(story)
    assert lines_of(caplog) == []


def end_of(encrypted, end):
    """Return what a client reads until the close_notify alert, which must arrive."""
    end.incoming.write(encrypted)
    data = b""
    while True:
        try:
            piece = end.tls.read(1 << 16)
        except ssl.SSLZeroReturnError:
            return data
        if not piece:
            return data
        data += piece


@on_server
async def test_server_stop_sends_close_notify(server, clients):
    end = OwnEnd(await clients.connect())
    await end.handshake()
    end.send_plain(RemotingCommand(ECHO, body=b"one"))
    await end.receive_plain()
    server.stop_listening()
    await server.stop()
    assert end_of(await end.client.closed(), end) == b""


@on_server
async def test_half_closed_tls_client_gets_its_responses(server, clients):
    end = OwnEnd(await clients.connect())
    await end.handshake()
    end.send_plain(RemotingCommand(ECHO, body=b"the last"))
    end.client._writer.write_eof()
    assert b"the last" in end_of(await end.client.closed(), end)


@on_server(max_connections_per_address=1)
async def test_connections_under_tls_count_against_the_accept_limits(server, clients):
    first = await clients.connect(tls=client_context())
    await first.ask(ECHO)
    refused = await clients.connect()  # whatever it would send
    assert await refused.closed() == b""
    assert server.refused == {"maxConnectionsPerAddress": 1}
    assert server.tls.handshakes_completed == 1
