"""The TLS of a server: reload, warnings of certificates, and log lines of failed handshakes."""

import logging
import shutil
import ssl
from contextlib import suppress
from pathlib import Path

import pytest
from support.servers.tls import certificate
from support.suite.log_records import lines_of

from rmq_spark.wire.message.hosts import Host
from rocketpoll.broker.common.log_limit import KEYS_MAX, LogLimit
from rocketpoll.broker.server.tls.server_tls import ServerTls
from rocketpoll.broker.settings.settings import config_of

FROM_2020, UNTIL_2120 = 1_577_836_800, 4_733_510_400
EXPIRED_SINCE = 1_609_459_200
NOW = 1_780_000_000
DAY = 86_400


class Files:
    """Certificate and key in a directory, replaced as an operator does."""

    def __init__(self, directory):
        self.directory = directory
        self.put("server.pem", "server.key")

    def put(self, cert, key="server.key"):
        shutil.copy(certificate(cert), self.directory / "cert.pem")
        shutil.copy(certificate(key), self.directory / "key.pem")

    def settings(self, **more):
        paths = {
            "tls.server.certPath": self.directory / "cert.pem",
            "tls.server.keyPath": self.directory / "key.pem",
        }
        return config_of({name: str(text) for name, text in {**paths, **more}.items()}).tls


@pytest.fixture
def files(tmp_path):
    return Files(tmp_path)


class Clock:
    def __init__(self, now=NOW):
        self.now = now
        self.uptime = 0.0

    def tls(self, config):
        return ServerTls(config, lambda: self.now, lambda: self.uptime)


def new_tls(config, now=NOW):
    return Clock(now).tls(config)


def presented(tls):
    """Return the certificate that a new connection gets, as PEM."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client, session = context.wrap_bio(incoming, outgoing), tls.new_session()
    while client.version() is None or not client.getpeercert(binary_form=True):
        for side in (client, session.tls):
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
            session.incoming.write(outgoing.read())
            incoming.write(session.outgoing.read())
    return ssl.DER_cert_to_PEM_cert(client.getpeercert(binary_form=True))


def pem(name):
    """Return a certificate of the tests' directory."""
    return Path(certificate(name)).read_text(encoding="ascii")


def test_server_offers_tls_when_it_has_a_certificate(files):
    assert not new_tls(config_of({}).tls).is_offered
    assert new_tls(files.settings()).is_offered
    assert not new_tls(files.settings(**{"tls.server.mode": "disabled"})).is_offered
    assert new_tls(files.settings(**{"tls.server.mode": "enforcing"})).is_enforced


def test_tls_reload_reads_the_current_files(files, caplog):
    tls = new_tls(files.settings())
    assert presented(tls) in pem("server.pem")
    files.put("named.pem")
    caplog.set_level(logging.INFO)
    assert tls.reload(files.settings()) == files.settings()
    assert presented(tls) in pem("named.pem")
    [line] = lines_of(caplog)
    assert line == (
        f"TLS is reloaded: new connections get the certificate of {files.directory}/cert.pem, "
        "valid until 2120-01-01 00:00:00 UTC"
    )


@pytest.mark.parametrize(
    ("cert", "key", "why"),
    [
        ("server.pem", "client.key", "it is not the key of the certificate"),
        ("server.key", "server.key", "it holds no certificate in PEM"),
        ("expired.pem", "server.key", "the certificate expired at 2021-01-01 00:00:00 UTC"),
    ],
)
def test_unusable_tls_files_at_a_reload_keep_the_old_ones(files, caplog, cert, key, why):
    tls = new_tls(files.settings())
    files.put(cert, key)
    changed = files.settings(**{"tls.server.mode": "enforcing"})
    assert tls.reload(changed) == files.settings()
    assert presented(tls) in pem("server.pem")
    assert not tls.is_enforced
    [line] = lines_of(caplog)
    assert line.startswith("TLS is not reloaded, the previous certificate stays in force: ")
    assert why in line


def test_reload_enables_and_disables_tls(files, caplog):
    tls = new_tls(config_of({}).tls)
    wrong = files.settings(**{"tls.server.certPath": files.directory / "none"})
    tls.reload(wrong)
    assert not tls.is_offered
    [line] = lines_of(caplog)
    assert line.startswith("TLS is not reloaded, no TLS stays in force: ")
    tls.reload(files.settings())
    assert tls.is_offered
    tls.reload(files.settings(**{"tls.server.mode": "disabled"}))
    assert not tls.is_offered
    assert tls.expiry_seconds() == {}


def test_expired_certificate_is_replaced_by_another_that_is_not_valid(files):
    """Nothing is lost, and the new one may have another key."""
    files.put("expired.pem")
    tls = new_tls(files.settings())
    files.put("future.pem")
    tls.reload(files.settings())
    assert presented(tls) in pem("future.pem")


def test_certificate_expiry_is_logged_at_the_start_and_on_request(files, caplog):
    clock = Clock(UNTIL_2120 - 20 * DAY)
    tls = clock.tls(files.settings())
    assert lines_of(caplog) == []
    clock.now += 7 * DAY
    tls.log_expiry()
    [line] = lines_of(caplog)
    assert line.endswith("in 13.0 days. Renew it and send SIGHUP")
    assert tls.expiry_seconds() == {"tls.server.certPath": 13 * DAY}
    caplog.clear()
    clock.now = UNTIL_2120 + DAY
    tls.log_expiry()
    [record] = caplog.records
    assert record.levelname == "ERROR"
    assert "the certificate expired at 2120-01-01" in record.getMessage()
    assert tls.expiry_seconds() == {"tls.server.certPath": -DAY}


@pytest.mark.parametrize(
    ("now", "why"),
    [
        (FROM_2020 - DAY, "Correct the clock, or wait until then"),
        (UNTIL_2120 + 1, "Renew it and send SIGHUP"),
    ],
)
def test_start_with_an_invalid_certificate_logs_it_and_continues(files, caplog, now, why):
    """A wrong clock or a forgotten renewal must not stop the broker."""
    assert new_tls(files.settings(), now).is_offered
    [line] = lines_of(caplog)
    assert why in line


def test_tls_reload_watches_the_client_authorities(files, caplog):
    settings = files.settings(
        **{
            "tls.server.authClient": "true",
            "tls.server.need.client.auth": "require",
            "tls.server.trustCertPath": certificate("expired.pem"),
        }
    )
    tls = new_tls(settings)
    assert tls.expiry_seconds() == {
        "tls.server.certPath": UNTIL_2120 - NOW,
        "tls.server.trustCertPath": EXPIRED_SINCE - NOW,
    }
    [line] = lines_of(caplog)
    assert line.startswith("tls.server.trustCertPath=")


def test_failed_handshakes_are_counted_and_logged_once_a_minute_and_address(files, caplog):
    clock = Clock()
    tls = clock.tls(files.settings())
    one, other = Host(bytes([10, 0, 0, 1]), 40_000), Host(bytes([10, 0, 0, 2]), 40_000)
    for _ in range(5):
        tls.handshake_failed(one, "it is odd")
    tls.handshake_failed(other, "it is odd")
    clock.uptime = 60.0
    tls.refuse_plain(one)
    assert (tls.handshakes_failed, tls.plain_refused) == (6, 1)
    assert lines_of(caplog) == [
        "10.0.0.1:40000: closed: the TLS handshake failed: it is odd",
        "10.0.0.2:40000: closed: the TLS handshake failed: it is odd",
        (
            "10.0.0.1:40000: closed: it does not use TLS, and tls.server.mode is enforcing. Turn "
            "TLS on in the client (4 more of this address since its last line)"
        ),
    ]


def test_log_limit_is_bounded_and_forgets_the_oldest_key():
    limit = LogLimit()
    assert [limit.admit(key, 0.0) for key in range(KEYS_MAX)] == [0] * KEYS_MAX
    assert limit.admit("one more", 59.0) is None
    assert limit.admit(0, 59.0) is None
    assert limit.admit(0, 60.0) == 1
    assert limit.admit("one more", 61.0) == 0
    assert limit.admit(1, 62.0) == 0, "it was the oldest, and forgotten"
    assert limit.admit("one more", 120.0) is None
    assert limit.admit("one more", 122.0) == 1
