"""Users' mistakes with TLS in the source, the sink and the client.

All three raise the same error, each with its own name of the setting.
"""

import traceback

import pytest
from support.servers.tls import certificate, under_tls

from rmq_spark.client.admin.admin import Admin
from rmq_spark.client.errors import NoNameServer, TlsRejected
from rmq_spark.client.instance.instance import ClientInstance
from rmq_spark.client.transport.tls.settings import TlsSettings
from rmq_spark.spark.errors import OptionError
from rmq_spark.spark.options.options import read_options, write_options
from rmq_spark.spark.preflight import check_with_brokers, check_writable
from rocketpoll.broker.embedded import EmbeddedBroker

OPTIONS = {
    "ca_file": "tlsCaFile",
    "cert_file": "tlsCertFile",
    "key_file": "tlsKeyFile",
    "key_password": "tlsKeyPassword",
    "server_name": "tlsServerName",
}
TEXT = certificate("make.sh")
CA = {"ca_file": certificate("ca.pem")}
CLIENT = {"cert_file": certificate("client.crt"), "key_file": certificate("client.key")}
PEM = "it must be a text file that contains -----BEGIN {} (PEM). Make one with keytool or openssl"
NO_FILE = "needed a PEM file on this machine. Correct the path, or put the file there"
AGAIN = "needed PEM that OpenSSL reads, such as the output of openssl x509. Copy the file again"

FILES = [
    ({"ca_file": "/no/ca.pem"}, "/no/ca.pem cannot be read: No such file or directory; " + NO_FILE),
    ({"ca_file": "/"}, "/ cannot be read: Is a directory; " + NO_FILE),
    ({"ca_file": TEXT}, f"{TEXT} contains no certificate: {PEM.format('CERTIFICATE')}"),
    (
        {"ca_file": certificate("client.key")},
        f"{certificate('client.key')} contains no certificate: {PEM.format('CERTIFICATE')}",
    ),
    ({"ca_file": "broken.pem"}, "contains no readable certificate: "),
    ({"ca_file": "broken.pem"}, AGAIN),
    (
        {**CLIENT, "cert_file": "/no/me.pem"},
        "/no/me.pem cannot be read: No such file or directory; " + NO_FILE,
    ),
    (
        {**CLIENT, "cert_file": TEXT},
        f"{TEXT} contains no certificate: {PEM.format('CERTIFICATE')}",
    ),
    (
        {"key_file": "/no/me.key", "cert_file": CLIENT["cert_file"]},
        "/no/me.key cannot be read: No such file or directory; " + NO_FILE,
    ),
    (
        {"key_file": CLIENT["cert_file"], "cert_file": CLIENT["cert_file"]},
        f"{CLIENT['cert_file']} contains no private key: {PEM.format('PRIVATE KEY')}",
    ),
    (
        {"key_file": certificate("server.key"), "cert_file": CLIENT["cert_file"]},
        (
            f"{certificate('server.key')} is not the key of the certificate in "
            f"{CLIENT['cert_file']}. Use the one that it was made with"
        ),
    ),
    (
        {
            "key_password": "sesame",
            "cert_file": CLIENT["cert_file"],
            "key_file": certificate("locked.key"),
        },
        "encryption. Pass the key's own password",
    ),
    ({"server_name": "."}, "no certificate can be for the name '.'"),
]
"""Settings, the first of which is wrong, and the resulting error."""

TLS_OPTIONS = (
    " (options: tlsCaFile for the trusted authority, tlsServerName for another "
    "name, tlsCertFile and tlsKeyFile for a client certificate; tls=false for no "
    "TLS)"
)
OFFERED = " (options: tls=true, and tlsCaFile for the trusted authority)"
UNTRUSTED = "Put the authority that signed it into the CA file"
ANSWERS = [
    ("server.pem", {"ca_file": certificate("other-ca.pem")}, UNTRUSTED, TLS_OPTIONS),
    ("server.pem", {}, UNTRUSTED, TLS_OPTIONS),
    (
        "server.pem",
        {**CA, "server_name": "brokers.example"},
        (
            "is not valid for 'brokers.example'). Connect to a name that it has, or set one as "
            "server name"
        ),
        TLS_OPTIONS,
    ),
    (
        "expired.pem",
        CA,
        "(certificate has expired). Renew it at the broker, or correct this machine's clock",
        TLS_OPTIONS,
    ),
    (
        "server.pem",
        None,
        (
            "Does it require TLS? If so, turn TLS on here. Check that this is the address of a "
            "name server, or of a rocketpoll broker"
        ),
        OFFERED,
    ),
    (
        None,
        CA,
        (
            "it closed the connection during the handshake, as a server without TLS does. Turn "
            "TLS on there, or off here"
        ),
        TLS_OPTIONS,
    ),
]
"""The broker's certificate, a client's settings (None: no TLS), and the errors of the client and in
Spark."""


@pytest.fixture(scope="module")
def broker():
    with EmbeddedBroker(brokerIP1="127.0.0.1") as broker:
        broker.create_topic("T")
        yield broker


@pytest.fixture(autouse=True)
def _broken_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    block = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
    (tmp_path / "broken.pem").write_text(block, encoding="ascii")


def of_source(address, given):
    check_with_brokers(read_options(options(address, given)))


def of_sink(address, given):
    check_writable(write_options(options(address, given)))


def of_client(address, given):
    tls = None if given is None else TlsSettings.of_files(**given)
    with ClientInstance(address, tls=tls) as instance, Admin(instance=instance) as admin:
        admin.topics()


def options(address, given):
    named = {OPTIONS[name]: value for name, value in (given or {}).items()}
    tls = {} if given is None else {"tls": "true"}
    return {"namesrvAddr": address, "topic": "T", **tls, **named}


EVERYBODY = pytest.mark.parametrize("ask", [of_source, of_sink, of_client])


def said_by(ask, *, address, given):
    with pytest.raises((OptionError, TlsRejected, NoNameServer)) as raised:
        ask(address, given)
    if ask is not of_client:  # no other traceback precedes it
        assert "".join(traceback.format_exception(raised.value)).count("Traceback") == 1
    assert "sesame" not in str(raised.value)
    return str(raised.value)


@EVERYBODY
@pytest.mark.parametrize(("given", "said"), FILES, ids=lambda value: str(value)[-40:])
def test_tls_file_mistakes_have_exact_messages(given, said, ask):
    found = said_by(ask, address="mq:9876", given=given)
    setting = next(iter(given))
    blamed = f"TLS setting {setting}" if ask is of_client else f"option {OPTIONS[setting]}"
    assert found.startswith(f"{blamed}: ")
    assert said in found


@EVERYBODY
@pytest.mark.parametrize(
    ("certificate_of_broker", "given", "said", "of_spark"),
    ANSWERS,
    ids=lambda value: str(value)[:40],
)
def test_tls_handshake_mistakes_have_exact_messages(
    broker, certificate_of_broker, given, said, of_spark, ask
):
    if certificate_of_broker is None:
        found = said_by(ask, address=broker.address, given=given)
    else:
        with under_tls(broker.port, name=certificate_of_broker) as terminator:
            found = said_by(ask, address=terminator.address, given=given)
    where = "no name server answers: "
    if ask is of_client:
        assert found.startswith(where)
        assert found.endswith(said)
    else:
        assert found.startswith(f"option namesrvAddr: {where}")
        assert found.endswith(said + of_spark)
