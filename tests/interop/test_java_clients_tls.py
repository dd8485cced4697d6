"""Java clients use one port with and without TLS: with their defaults, and verifying the broker.

The tests run on a real RocketMQ with a certificate, and on our broker with the same one.
"""

import pytest
from support.brokers.broker_kinds import (
    RocketMQBroker,
    RocketPollBroker,
    every_kind,
    wait_until_known,
)
from support.rocketmq.java_clients import (
    JavaClients,
    JavaError,
    LiteConsumer,
    Producer,
    bodies_of,
    numbered,
)
from support.rocketmq.java_vectors import VERSIONS
from support.rocketmq.real_broker import write_settings
from support.servers.tls import certificate

from rocketpoll.broker.store.config import FlushDiskType

pytestmark = pytest.mark.interop

_SERVER = {
    "tls.server.keyPath": certificate("server.key"),
    "tls.server.certPath": certificate("server.pem"),
}
AS_IT_COMES = ("-Dtls.enable=true",)
"""A Java client trusts every certificate by default."""


@pytest.fixture(scope="module", params=every_kind(VERSIONS))
def broker(request, tmp_path_factory):
    kind, version = request.param
    directory = tmp_path_factory.mktemp("broker")
    flush = FlushDiskType.ASYNC_FLUSH
    if kind == "rocketmq":
        settings = {**_SERVER, "tls.test.mode.enable": "false"}
        file = write_settings(directory / "tls.properties", settings)
        broker = RocketMQBroker(
            version, directory, flush, java_options=(f"-Dtls.config.file={file}",)
        )
    else:
        broker = RocketPollBroker(version, directory, flush, more=_SERVER)
    try:
        yield broker
    finally:
        broker.close()


@pytest.fixture
def clients_with(broker, tmp_path):
    """Return a function that starts a JVM with options."""
    made = []

    def clients_with(*options):
        home = tmp_path / str(len(made))
        made.append(JavaClients(broker.version, home, broker.name_server, *options))
        return made[-1]

    yield clients_with
    for clients in made:
        clients.kill()


def verifying(directory, authority):
    """Return the options of a client that only trusts brokers of this authority."""
    settings = {
        "tls.test.mode.enable": "false",
        "tls.client.authServer": "true",
        "tls.client.trustCertPath": certificate(authority),
    }
    file = write_settings(directory / "client.properties", settings)
    return (*AS_IT_COMES, f"-Dtls.config.file={file}")


def assert_messages_go_both_ways(broker, clients, topic):
    wait_until_known(broker, clients)
    clients.ask("admin create topic", address=broker.address, topic=topic, queues=1)
    producer = Producer(clients, f"{topic}-senders")
    producer.send(topic, *numbered(3))
    consumer = LiteConsumer(clients, f"{topic}-readers", topic=topic)
    consumer.wait_for(bodies_of(numbered(3)))


def test_java_client_with_default_tls_sends_and_consumes(broker, clients_with):
    assert_messages_go_both_ways(broker, clients_with(*AS_IT_COMES), "AsItComes")


def test_java_client_without_tls_uses_the_same_port(broker, clients_with):
    assert_messages_go_both_ways(broker, clients_with(), "WithoutTls")


def test_java_client_verifies_the_brokers_certificate(broker, clients_with, tmp_path):
    options = verifying(tmp_path, "ca.pem")
    assert_messages_go_both_ways(broker, clients_with(*options), "Verifying")


def test_java_client_refuses_a_broker_of_another_authority(broker, clients_with, tmp_path):
    clients = clients_with(*verifying(tmp_path, "other-ca.pem"))
    with pytest.raises(JavaError, match=r"connect to|closed|send request"):
        clients.ask("admin create topic", address=broker.address, topic="Never", queues=1)
