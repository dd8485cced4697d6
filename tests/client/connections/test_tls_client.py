"""TLS handshakes: successful ones, and the errors that users read."""

import logging
import re
import socket
import ssl
import threading
from contextlib import closing
from dataclasses import replace

import pytest
from support.servers.fake_servers import FakeServer, answering, silent
from support.servers.tls import CERTIFICATES, TRUSTING, certificate, server_context

from rmq_spark.client.errors import (
    ConnectionClosed,
    ConnectionFailed,
    ProtocolError,
    TlsFailed,
    TlsRejected,
)
from rmq_spark.client.instance.instance import ClientInstance
from rmq_spark.client.transport.connection import RemotingConnection
from rmq_spark.client.transport.remoting_client import RemotingClient
from rmq_spark.client.transport.tls.client import TlsClient, TlsSocket, ssl_context
from rmq_spark.client.transport.tls.settings import TlsSettings
from rmq_spark.wire.remoting.command import RemotingCommand

ASK = RemotingCommand(105, ext_fields={"topic": "T"})
SECOND = 1_000
CLIENT = TlsSettings.of_files(ca_file=certificate("ca.pem"), cert_file=certificate("client.pem"))


def answer_of(server, settings, **more):
    """Return the response of a server to a client with these settings, or raise the
    client's error."""
    tls = settings and TlsClient(settings)
    connection = RemotingConnection.connect(server.address, tls=tls, **more)
    try:
        return connection.request(ASK, 10 * SECOND).remark
    finally:
        connection.close()


def server_of(story=None, **context):
    return FakeServer(
        story or answering(lambda request: request.respond(0, "yes")), server_context(**context)
    )


def why_not(server, settings, kind=TlsFailed, **more):
    with pytest.raises(kind) as raised:
        answer_of(server, settings, **more)
    return str(raised.value)


def test_tls_server_with_its_address_in_the_certificate_is_trusted():
    with server_of() as server:
        assert answer_of(server, TRUSTING) == "yes"


def test_tls_server_with_another_name_is_trusted_only_under_that_server_name():
    with server_of(name="named.pem") as server:
        assert answer_of(server, replace(TRUSTING, server_name="brokers.example")) == "yes"
        said = why_not(server, TRUSTING)
        assert (
            f"the TLS handshake with {server.address} failed: its certificate is for another name"
            in said
        )
        assert "127.0.0.1" in said
        assert "set one as server name" in said


@pytest.mark.parametrize(
    ("name", "ca", "says"),
    [
        ("server.pem", "other-ca.pem", "Put the authority that signed it into the CA file"),
        ("server.pem", None, "is not trusted"),
        ("expired.pem", "ca.pem", "out of date (certificate has expired)"),
    ],
)
def test_untrusted_certificate_error_says_why(name, ca, says):
    with server_of(name=name) as server:
        settings = TlsSettings.of_files(ca_file=certificate(ca)) if ca else TlsSettings()
        assert says in why_not(server, settings)


def test_tls_without_verify_accepts_any_certificate_with_a_warning(caplog):
    with server_of(name="expired.pem") as server:
        assert answer_of(server, TlsSettings(verify=False)) == "yes"
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "anyone on the network" in caplog.text


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_missing_client_certificate_is_explained(version):
    """With TLS 1.3 the client learns of the refusal only with the first response."""
    context = server_context(clients_of="ca.pem")
    context.maximum_version = version
    with FakeServer(answering(lambda request: request.respond(0, "yes")), context) as server:
        assert answer_of(server, CLIENT) == "yes"
        kind = TlsFailed if version is ssl.TLSVersion.TLSv1_2 else ConnectionClosed
        # A reset may arrive before the alert; then the error lists possible reasons.
        why = why_not(server, TRUSTING, kind)
        assert re.search(
            "Pass one that its authority signed, and the key|require a certificate", why
        )


def test_unknown_client_certificate_is_explained():
    """With TLS 1.3 the request may have been sent already, and the alert may get lost."""
    with server_of(clients_of="other-ca.pem") as server:
        said = why_not(server, CLIENT, (TlsFailed, ConnectionClosed))
    assert re.search(
        "does not trust this client's certificate|a certificate from this client, or another", said
    )


def test_plain_broker_is_explained_to_a_tls_client(running_broker):
    said = why_not(running_broker, TRUSTING)
    assert "as a server without TLS does. Turn TLS on there, or off here" in said


def test_handshake_with_a_server_without_tls_says_so():
    def story(peer):
        peer.socket.recv(1)
        peer.send(b"220 hello, this is something else\r\n" * 10)
        peer.socket.recv(1 << 16)

    with FakeServer(story) as server:
        assert "does not speak TLS" in why_not(server, TRUSTING)


def test_silent_tls_server_costs_the_connect_timeout():
    stop = threading.Event()
    with FakeServer(lambda _: stop.wait(30)) as server:
        assert "no response to the handshake in time" in why_not(server, TRUSTING, timeout_ms=50)
        stop.set()


def test_tls_server_closed_before_the_handshake_is_explained():
    """Python then returns a socket without TLS."""
    here, there = socket.socketpair()
    there.close()
    alone = socket.socket()  # unconnected, like a socket after a reset
    for sock in (here, alone):
        with pytest.raises(TlsFailed, match="as a server without TLS does"):
            TlsClient(TRUSTING).handshake(sock, "h:1", "h", 1)
        assert sock.fileno() == -1


def test_tls_version_below_1_2_is_refused():
    context = server_context()
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    with FakeServer(silent, context) as server:
        assert "Turn on TLS 1.2 or newer there" in why_not(server, TRUSTING)


def test_refused_connection_is_no_tls_error():
    with server_of() as server:
        pass
    assert "Connection refused" in why_not(server, TRUSTING, ConnectionFailed)


@pytest.mark.parametrize("reads_itself", [False, True], ids=["a thread reads", "who waits reads"])
def test_plain_client_of_a_tls_server_gets_a_hint(reads_itself):
    with server_of() as server:
        said = why_not(server, None, ConnectionClosed, reads_itself=reads_itself)
        assert "and it never answered anything. Does it require TLS?" in said


@pytest.mark.parametrize("reads_itself", [False, True], ids=["a thread reads", "who waits reads"])
def test_tls_alert_of_a_closed_connection_is_the_reason_of_the_next_request(reads_itself):
    with server_of(clients_of="ca.pem") as server:
        connection = RemotingConnection.connect(
            server.address, tls=TlsClient(TRUSTING), reads_itself=reads_itself
        )
    with closing(connection), pytest.raises(ConnectionClosed, match="requires a certificate from"):
        connection.request(ASK, 10 * SECOND)


def test_tls_alert_to_a_plain_client_is_explained():
    def story(peer):
        peer.receive()
        peer.send(b"\x15\x03\x03\x00\x02\x02\x46\x15")
        peer.receive()

    with FakeServer(story) as server:
        assert "the peer speaks TLS, and this side does not" in why_not(server, None, ProtocolError)


def test_truncated_tls_alert_gets_a_hint():
    def story(peer):
        peer.receive()
        peer.send(b"\x15\x03\x03\x00\x02\x02\x46")

    with FakeServer(story) as server:
        assert "Does it require TLS?" in why_not(server, None, ConnectionClosed)


CERTIFICATE = {"cert_file": certificate("client.crt")}


@pytest.mark.parametrize(
    ("given", "setting", "says"),
    [
        (
            {**CERTIFICATE, "key_file": certificate("server.key")},
            "key_file",
            "is not the key of the certi",
        ),
        (
            {**CERTIFICATE, "key_file": certificate("ed25519.key")},
            "key_file",
            "is not the key of the certi",
        ),
        (
            {**CERTIFICATE, "key_file": certificate("locked.key"), "key_password": "wrong"},
            "key_password",
            "it does not decrypt the key in .*locked.key",
        ),
        (
            {**CERTIFICATE, "key_file": certificate("locked.key"), "key_password": "x" * 2_000},
            "key_password",
            "password cannot be longer",
        ),
        ({"server_name": "."}, "server_name", "no certificate can be for the name '.'"),
        ({"server_name": ""}, "server_name", "no certificate can be for the name ''"),
        ({"server_name": "x" * 300}, "server_name", "no certificate can be for the name"),
        ({"server_name": "x" * 70_000}, "server_name", "no certificate can be for the name"),
        ({"server_name": "a\0b"}, "server_name", "no certificate can be for the name"),
    ],
)
def test_contradicting_tls_settings_are_refused_before_connecting(given, setting, says):
    with pytest.raises(TlsRejected, match=says) as raised:
        RemotingClient(tls=TlsSettings.of_files(**given))
    assert raised.value.setting == setting
    assert "wrong" not in str(raised.value)
    assert len(str(raised.value)) < 400


@pytest.mark.parametrize(("setting", "name"), [("ca_file", "ca.pem"), ("cert_file", "client.pem")])
def test_damaged_tls_file_is_refused_by_its_setting(tmp_path, setting, name):
    lines = (CERTIFICATES / name).read_text(encoding="ascii").splitlines()
    lines[1] = lines[1][:10]
    (tmp_path / name).write_text("\n".join(lines), encoding="ascii")
    with pytest.raises(TlsRejected, match=r"contains? no readable") as raised:
        ssl_context(TlsSettings.of_files(**{setting: str(tmp_path / name)}))
    assert raised.value.setting == setting


def test_encrypted_key_is_loaded_without_temporary_files(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    locked = TlsSettings.of_files(
        **CERTIFICATE,
        key_file=certificate("locked.key"),
        key_password="rocketpoll",
        ca_file=certificate("ca.pem"),
    )
    with server_of(clients_of="ca.pem") as server:
        assert answer_of(server, locked) == "yes"
    assert list(tmp_path.iterdir()) == []


def test_missing_temporary_directory_for_the_key_is_reported(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(TlsRejected, match="the directory for temporary files"):
        ssl_context(CLIENT)


def test_client_instance_with_invalid_tls_settings_is_refused():
    with pytest.raises(TlsRejected):
        ClientInstance("localhost:9876", tls=TlsSettings(server_name=""))


def test_tls_handshake_does_not_hold_the_fork_lock(monkeypatch):
    """The connecting thread must not hold the lock for which a fork waits."""
    held = []
    made = TlsSocket.__init__

    def making(self, sock):
        held.append(client._lock.locked())
        made(self, sock)

    monkeypatch.setattr(TlsSocket, "__init__", making)
    client = TlsClient(TRUSTING)
    with FakeServer(silent, server_context()) as server:
        host, port = server.address.split(":")
        sock = socket.create_connection((host, int(port)))
        client.handshake(sock, server.address, host, 10).close()
    assert held == [False]
