"""The broker program with TLS: starts, reloads under load, openssl's client, bounded memory."""

import asyncio
import contextlib
import logging
import re
import shutil
import signal
import socket
import subprocess
import threading
import time

import pytest
from support.brokers.in_process import SMALL, run, tell
from support.brokers.processes import BrokerProcess, run_broker
from support.clients.remoting_clients import BrokerClients, pull_request, send_request
from support.rocketmq.real_broker import free_broker_port
from support.servers.tls import BROKER_TLS, CERTIFICATES, certificate, client_context

from rmq_spark.wire.remoting.command import decode_command
from rmq_spark.wire.remoting.framing import FrameReader

CERT, KEY = "tls.server.certPath", "tls.server.keyPath"
OPENSSL = shutil.which("openssl")
needs_openssl = pytest.mark.skipif(OPENSSL is None, reason="runs the openssl command")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({CERT: "/none.pem"}, "tls.server.certPath=/none.pem: the file does not exist. Correct"),
        ({KEY: certificate("client.key")}, "it is not the key of the certificate in"),
        ({KEY: certificate("locked.key")}, "is encrypted. Set tls.server.keyPassword"),
        ({CERT: certificate("server.key")}, "it holds no certificate in PEM"),
    ],
)
def test_unusable_tls_file_stops_the_start_with_one_line(tmp_path, changed, said):
    settings = {**SMALL, "storePathRootDir": tmp_path / "store", **BROKER_TLS, **changed}
    code, out, err = run_broker(*(f"{name}={value}" for name, value in settings.items()))
    assert (code, out) == (1, "")
    assert err.startswith("the broker cannot run: tls.server.")
    assert said in err
    assert err.count("\n") == 1
    assert not (tmp_path / "store").exists()


def test_contradicting_tls_settings_stop_the_start(tmp_path):
    code, _, err = run_broker("tls.server.mode=enforcing", f"storePathRootDir={tmp_path / 'store'}")
    assert code == 2
    assert "set tls.server.certPath and tls.server.keyPath" in err


def test_start_logs_tls_certificate_and_mode_but_no_password(tmp_path):
    settings = {
        CERT: certificate("client.crt"),
        KEY: certificate("locked.key"),
        "tls.server.keyPassword": "rocketpoll",
    }
    path = tmp_path / "broker.conf"
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    with BrokerProcess(tmp_path, "-c", str(path)) as broker:
        path.write_text(path.read_text().replace("rocketpoll", "other"))
        broker.signal(signal.SIGHUP)
        line_of(broker, "TLS is not reloaded")
        assert broker.stop() == 0
        said = "\n".join(broker.said())
    assert "with TLS (permissive; certificate valid until 2120-01-01 00:00:00 UTC" in said
    assert "tls.server.keyPassword does not decrypt the private key" in said
    assert "=rocketpoll" not in said
    assert "=other" not in said


def test_expired_certificate_is_an_error_in_the_log_of_a_start(tmp_path):
    with BrokerProcess(tmp_path, **{**BROKER_TLS, CERT: certificate("expired.pem")}) as broker:
        [line] = broker.log()
        assert broker.stop() == 0
    assert " ERROR " in line
    assert "the certificate expired at 2021-01-01 00:00:00 UTC" in line


def test_bind_address_without_required_tls_is_warned_of(tmp_path):
    remote = {"bindAddress": "0.0.0.0", "allowRemoteWithoutAuthentication": "true"}  # noqa: S104  # required by the test
    with BrokerProcess(tmp_path, **remote, **BROKER_TLS) as broker:
        [line] = broker.log()
        assert broker.stop() == 0
    assert "accepts other machines without TLS" in line
    assert "Set tls.server.mode=enforcing" in line


def test_required_certificates_of_clients_that_need_no_tls_are_warned_of(tmp_path):
    required = {
        "tls.server.authClient": "true",
        "tls.server.need.client.auth": "require",
        "tls.server.trustCertPath": certificate("ca.pem"),
    }
    with BrokerProcess(tmp_path, **BROKER_TLS, **required) as broker:
        [line] = broker.log()
        assert broker.stop() == 0
    assert "clients without a certificate can connect without TLS" in line
    enforcing = {**BROKER_TLS, **required, "tls.server.mode": "enforcing"}
    with BrokerProcess(tmp_path, **enforcing) as broker:
        assert broker.log() == []
        assert broker.stop() == 0


def line_of(broker, part, seconds=20):
    """Wait until the broker has logged a line."""
    deadline = time.monotonic() + seconds
    while True:
        found = [line for line in broker.said() if part in line]
        if found:
            return found[-1]
        assert time.monotonic() < deadline, broker.said()
        time.sleep(0.01)


class Sender(threading.Thread):
    """Sends one message after another over one connection, which must not end."""

    def __init__(self, port, context):
        super().__init__(name="Sender")
        self._stop_requested = threading.Event()
        plain = socket.create_connection(("127.0.0.1", port))
        self._socket = context.wrap_socket(plain, server_hostname="localhost")
        self.certificate = self._socket.getpeercert(binary_form=True)
        self.sent = 0
        self.failure = None

    def run(self):
        frames = FrameReader()
        try:
            while not self._stop_requested.is_set():
                self._socket.sendall(send_request("x" * 3_000, opaque=self.sent).encode())
                while (frame := frames.next_frame()) is None:
                    data = self._socket.recv(1 << 16)
                    assert data, "the broker has closed the connection"
                    frames.feed(data)
                answer = decode_command(frame)
                assert (answer.code, answer.opaque) == (0, self.sent)
                self.sent += 1
        except (OSError, AssertionError) as error:
            self.failure = error

    def stop(self):
        self._stop_requested.set()
        self.join(20)
        self._socket.close()


def test_tls_reload_under_load_loses_nothing_and_renews_the_certificate(tmp_path):
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"

    def put(name, of_key="server.key"):
        for source, path in ((name, cert), (of_key, key)):
            shutil.copy(CERTIFICATES / source, tmp_path / "new")
            (tmp_path / "new").replace(path)

    put("server.pem")
    path = tmp_path / "broker.conf"
    path.write_text(f"{CERT}={cert}\n{KEY}={key}\n")
    anybody = client_context()
    anybody.check_hostname = False
    with BrokerProcess(tmp_path, "-c", str(path)) as broker:
        senders = [Sender(broker.port, anybody) for _ in range(4)]
        for sender in senders:
            sender.start()
        kept = senders[0].certificate
        for round_number, (name, of_key, said, is_taken) in enumerate(
            (
                ("named.pem", "server.key", "TLS is reloaded: new connections get", True),
                ("named.pem", "client.key", "it is not the key of the certificate", False),
                ("expired.pem", "server.key", "the certificate expired at", False),
                ("server.pem", "server.key", "TLS is reloaded: new connections get", True),
            )
        ):
            before = [sender.sent for sender in senders]
            put(name, of_key)
            lines = len(broker.said())
            broker.signal(signal.SIGHUP)
            deadline = time.monotonic() + 20
            while not any(said in line for line in broker.said()[lines:]):
                assert time.monotonic() < deadline, broker.said()
                time.sleep(0.01)
            new = Sender(broker.port, anybody)
            is_other = new.certificate != kept
            assert is_other == (round_number < 3), "an unusable file leaves the one of before"
            new.start()
            senders.append(new)
            while any(sender.sent <= count for sender, count in zip(senders, before, strict=False)):
                assert time.monotonic() < deadline, "connections of before go on"
                time.sleep(0.01)
            refused = [line for line in broker.said()[lines:] if "TLS is not reloaded" in line]
            assert len(refused) == (not is_taken)
        for sender in senders:
            sender.stop()
        assert [sender.failure for sender in senders] == [None] * len(senders)
        assert broker.stop() == 0


def test_vip_channel_has_tls_as_well(tmp_path):
    port = free_broker_port()
    settings = {**BROKER_TLS, "tls.server.mode": "enforcing"}
    with BrokerProcess(tmp_path, listenPort=str(port), **settings) as broker:

        async def story():
            for each in (port, port - 2):
                async with BrokerClients(each) as clients:
                    client = await clients.connect(tls=client_context())
                    await client.put("x")
                    plain = await clients.connect()
                    plain.send(send_request("x"))
                    assert await plain.closed() == b""

        run(story())
        assert broker.stop() == 0


def test_broker_checks_certificate_expiry_once_a_day(tmp_path, caplog):
    seconds = {"now": 4_733_510_400 - 14.5 * 86_400}

    async def story(broker):
        assert "certificate expires" not in caplog.text
        seconds["now"] += 86_400
        broker.move(86_400)
        await broker.until(lambda: "certificate expires at 2120-01-01" in caplog.text)

    tell(story, tmp_path, now_ms=lambda: int(seconds["now"] * 1_000), **BROKER_TLS)


def test_metrics_count_tls_handshakes_and_show_certificate_expiry(tmp_path):
    port = free_broker_port()
    settings = {**BROKER_TLS, "tls.server.mode": "enforcing", "metricsPort": str(port)}
    with BrokerProcess(tmp_path, **settings) as broker:

        async def story():
            async with BrokerClients(broker.port) as clients:
                await (await clients.connect(tls=client_context())).put("x")
                plain = await clients.connect()
                plain.send(send_request("x"))
                await plain.closed()
                bad = await clients.connect()
                bad.send(b"\x16 no handshake")
                await bad.closed()
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(b"GET /metrics HTTP/1.0\r\n\r\n")
                text = (await reader.read()).decode()
                writer.close()
                return text

        text = asyncio.run(story())
        assert broker.stop() == 0
    results = dict(
        re.findall(r'rocketpoll_tls_handshakes_total\{.*result="(\w+)"\} ([0-9.]+)', text)
    )
    assert {name: float(count) for name, count in results.items()} == {
        "completed": 1,
        "failed": 1,
        "plain": 1,
    }
    found = re.search(
        r'rocketpoll_tls_certificate_expiry_seconds\{.*setting="tls.server.certPath".*\} (\S+)',
        text,
    )
    assert float(found[1]) == pytest.approx(4_733_510_400 - time.time(), abs=600)


# ---- openssl's own client


class OpensslClient:
    """``openssl s_client``, whose commands renegotiate and change keys."""

    def __init__(self, port, *options):
        arguments = ["-connect", f"127.0.0.1:{port}", "-CAfile", certificate("ca.pem")]
        self._process = subprocess.Popen(
            [OPENSSL, "s_client", "-verify_return_error", *arguments, *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self.output = b""

    def wait_for(self, part):
        while part not in self.output:
            data = self._process.stdout.read1(1 << 16)
            assert data, self.output
            self.output += data

    def send(self, data):
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(data)
            self._process.stdin.flush()

    def wait(self):
        """Wait for its end, without closing its stdin."""
        self.output += self._process.stdout.read()
        return self._process.wait(20)

    def close(self):
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()


@pytest.fixture
def openssl_to():
    clients = []

    def start(port, *options):
        clients.append(OpensslClient(port, *options))
        return clients[-1]

    yield start
    for client in clients:
        client.close()


@needs_openssl
@pytest.mark.parametrize("version", ["-tls1_2", "-tls1_3"])
def test_openssl_client_verifies_the_brokers_certificate(tmp_path, openssl_to, version):
    with BrokerProcess(tmp_path, **BROKER_TLS) as broker:
        client = openssl_to(broker.port, version)
        client.wait_for(b"Verify return code: 0 (ok)")
        assert broker.stop() == 0


@needs_openssl
def test_tls_versions_before_1_2_are_refused(tmp_path, openssl_to):
    with BrokerProcess(tmp_path, **BROKER_TLS) as broker:
        client = openssl_to(broker.port, "-tls1_1", "-cipher", "ALL:@SECLEVEL=0")
        assert client.wait() != 0
        assert broker.stop() == 0
        [line] = broker.log()
    assert "closed: the TLS handshake failed: it speaks a version of TLS before 1.2" in line


@needs_openssl
def test_client_that_renegotiates_is_closed_with_one_line(tmp_path, openssl_to):
    with BrokerProcess(tmp_path, **BROKER_TLS) as broker:
        client = openssl_to(broker.port, "-tls1_2")
        client.wait_for(b"Verify return code")
        client.send(b"R\n")
        client.wait()
        assert broker.stop() == 0
        [line] = broker.log()
    assert "closed: TLS: it requests a renegotiation" in line


@needs_openssl
def test_client_that_keeps_changing_keys_is_closed(tmp_path, monkeypatch, openssl_to):
    monkeypatch.setattr("rocketpoll.broker.server.tls.transport._SILENT_BYTES_MAX", 3_000)

    async def story(broker):
        client = openssl_to(broker.port, "-tls1_3")
        await asyncio.to_thread(client.wait_for, b"Verify return code")
        await broker.until(lambda: broker.controller.server.connections == 1)
        while broker.controller.server.connections:
            client.send(b"K\n")
            await asyncio.sleep(0.005)

    lines = []
    tell_with_lines(story, tmp_path, lines, **BROKER_TLS)
    [line] = lines
    assert re.search(r"closed: TLS: it has sent 30\d\d bytes that carry no data", line)


def tell_with_lines(story, root, lines, **settings):
    """Run a scenario, and collect the log lines of connections."""
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: lines.append(record.getMessage())
    logger = logging.getLogger("rocketpoll.broker.server")
    logger.addHandler(handler)
    try:
        tell(story, root, **settings)
    finally:
        logger.removeHandler(handler)


@pytest.mark.deep
def test_memory_of_clients_that_do_not_read_is_bounded(tmp_path):
    """Responses wait unencrypted, as slices of the log: 360 MiB are requested here."""
    settings = {
        **BROKER_TLS,
        "maxMessageSize": str(4 << 20),
        "mappedFileSizeCommitLog": str(64 << 20),
        "maxUnreadBytes": str(16 << 20),
        "maxTransferBytesOnMessageInMemory": str(4 << 20),
    }
    with BrokerProcess(tmp_path, **settings) as broker:

        async def story():
            async with BrokerClients(broker.port) as clients:
                first = await clients.connect(tls=client_context())
                await first.put("x" * (3 << 20), queue_id=0)
                readers = [
                    await clients.connect(receive_buffer=4_096, tls=client_context())
                    for _ in range(40)
                ]
                before = broker.rss_bytes()
                for reader in readers:
                    reader._reader._transport.pause_reading()
                    for number in range(3):
                        reader.send(pull_request(0, opaque=number))
                for _ in range(10):
                    assert (await first.pull(0)).code == 0
                return broker.rss_bytes() - before

        grown = asyncio.run(story())
        broker.kill()
    assert grown < 32 << 20
