"""Our clients and a real RocketMQ over TLS: with its defaults, and with a strict setup.

By default, RocketMQ uses a self-signed certificate and accepts clients with TLS and without. With
certificates and ``enforcing``, it accepts only clients with a certificate of its own authority.
"""

import pytest
from support.brokers.broker_kinds import NAME, settings, store_config, wait_until
from support.brokers.tls_cluster import KNOWN, TlsCluster, assert_messages_go_every_way
from support.clients.conformance_clients import Clients
from support.rocketmq.real_broker import RocketMQ, free_broker_port, write_settings
from support.servers.tls import TRUSTING, certificate

from rmq_spark.client.admin.admin import Admin
from rmq_spark.client.errors import ClientError, NoNameServer
from rmq_spark.client.instance.instance import ClientInstance
from rmq_spark.client.message import Message, decode_messages
from rmq_spark.client.reading.bulk_pull import BulkPull
from rmq_spark.client.transport.tls.settings import TlsSettings
from rocketpoll.broker.store.config import FlushDiskType

pytestmark = [pytest.mark.interop, pytest.mark.peers]

UNVERIFIED = TlsSettings(verify=False)
SET_UP = {
    "tls.test.mode.enable": "false",
    "tls.server.need.client.auth": "require",
    "tls.server.keyPath": certificate("server.key"),
    "tls.server.certPath": certificate("server.pem"),
    "tls.server.authClient": "true",
    "tls.server.trustCertPath": certificate("ca.pem"),
    "tls.client.keyPath": certificate("client.key"),
    "tls.client.certPath": certificate("client.crt"),
    "tls.client.authServer": "true",
    "tls.client.trustCertPath": certificate("ca.pem"),
}


@pytest.fixture(
    scope="module",
    params=[
        (version, mode) for version in ("4.9.7", "5.5.0") for mode in ("as it comes", "enforcing")
    ],
    ids=" ".join,
)
def rocketmq(request, tmp_path_factory):
    """Return the TLS mode, the settings of accepted clients, and the addresses of name server and
    broker."""
    version, mode = request.param
    directory = tmp_path_factory.mktemp("tls")
    options = []
    if mode == "enforcing":
        file = write_settings(directory / "tls.properties", SET_UP)
        options = [f"-Dtls.config.file={file}", "-Dtls.server.mode=enforcing", "-Dtls.enable=true"]
    tls = KNOWN if mode == "enforcing" else UNVERIFIED
    peer = RocketMQ(version, directory, options)
    port = free_broker_port()
    store = store_config(directory / "store")
    process = peer.start_broker(NAME, port, store, settings(FlushDiskType.ASYNC_FLUSH))
    try:
        with Admin(instance=ClientInstance(peer.address, tls=tls)) as admin:

            def is_known():
                process.check_is_running()
                try:
                    return NAME in admin.masters()
                except ClientError:
                    return False

            wait_until("a broker that the name server knows", is_known, 120)
        yield mode, tls, peer.address, f"127.0.0.1:{port}"
    finally:
        process.kill()
        peer.kill()


@pytest.fixture
def cluster(rocketmq):
    _, tls, name_server, address = rocketmq
    cluster = TlsCluster(name_server, address, tls)
    yield cluster
    cluster.close()


def test_our_clients_send_and_consume_over_tls_with_rocketmq(cluster):
    assert_messages_go_every_way(Clients(cluster))


def test_megabytes_pass_both_ways_over_tls_with_rocketmq(cluster):
    clients = Clients(cluster)
    topic = cluster.topic(queues=1)
    body = bytes(range(256)) * (3 << 12)
    producer = clients.producer(rules={"compress_body_bytes": 9 << 20})
    for _ in range(3):
        producer.send(Message(topic, body))
    clients.read(topic, 3, queues=1)
    pull = BulkPull(cluster.api, cluster.address, "G", cluster.queue(topic), 0, 3)
    found = [each for chunk in pull for each in decode_messages(chunk.records, NAME)]
    assert [each.body for each in found] == [body] * 3


def test_untrusted_tls_client_of_rocketmq_learns_why(rocketmq):
    mode, _, name_server, _ = rocketmq

    def why_not(tls):
        instance = ClientInstance(name_server, tls=tls)
        try:
            instance.name_servers.admin.cluster_info()
        except NoNameServer as error:
            return str(error)
        finally:
            instance.shutdown()
        return "it is let in"

    if mode == "enforcing":
        assert "Does it require TLS?" in why_not(None)
        assert "certificate" in why_not(TRUSTING)
    else:
        assert why_not(None) == "it is let in"
        assert "its certificate is not trusted" in why_not(TRUSTING)
