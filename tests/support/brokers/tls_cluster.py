"""A broker of ours that accepts TLS only, and clients for it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import NamedTuple

from support.brokers.broker_kinds import NAME, wait_until
from support.brokers.clusters import Cluster
from support.brokers.in_process import BrokerThread, small_broker
from support.clients.conformance_clients import Listener, bodies_of, messages, numbers, polled
from support.servers.tls import BROKER_TLS, HOST, certificate, under_tls

from rmq_spark.client.admin.admin import Admin
from rmq_spark.client.message import Message
from rmq_spark.client.transport.tls.settings import TlsSettings
from rocketpoll.broker.server.event_loop import new_event_loop

KNOWN = TlsSettings.of_files(ca_file=certificate("ca.pem"), cert_file=certificate("client.pem"))
"""Settings of a client that the broker accepts."""


class TlsCluster(Cluster):
    """Creates clients that use TLS."""

    def __init__(self, name_server, address, tls=KNOWN):
        self.tls = tls
        super().__init__(name_server, address, NAME)

    def instance(self, **more):
        return super().instance(**{"tls": self.tls, **more})


def assert_messages_go_every_way(clients):
    """Check every kind of send, and both kinds of consumer."""
    __tracebackhide__ = True
    cluster = clients.cluster
    topic = cluster.topic()
    producer = clients.producer()
    lite, listener = clients.lite(topic=topic), Listener()
    clients.push(listener, topic=topic)
    producer.send(Message(topic, b"000", keys="k1"))
    producer.send_async(Message(topic, b"001")).result(10)
    producer.send_one_way(Message(topic, b"002"))
    producer.send_batch(messages(topic, numbers(3, start=3)))
    assert sorted(polled(lite, 6)) == numbers(6)
    listener.wait_for(numbers(6))
    lite.commit()
    with Admin(instance=cluster.instance()) as admin:
        assert set(admin.masters()) == {NAME}
        wait_until("its key", lambda: bodies_of(admin.messages_by_key(topic, "k1")) == ["000"])


_LARGE = {
    "brokerName": NAME,
    "maxMessageSize": 8 << 20,
    "mappedFileSizeCommitLog": 64 << 20,
}


class Front(NamedTuple):
    """The address of a broker, and the TLS settings of clients."""

    address: str


@contextmanager
def with_own_tls(directory):
    """Yield the address of a broker that terminates TLS itself and authenticates clients by
    certificate."""
    config = small_broker(
        directory / "store",
        **{
            **_LARGE,
            **BROKER_TLS,
            "tls.server.mode": "enforcing",
            "tls.server.authClient": "true",
            "tls.server.need.client.auth": "require",
            "tls.server.trustCertPath": certificate("ca.pem"),
        },
    )
    with BrokerThread(config, new_event_loop) as broker:
        yield broker, Front(f"127.0.0.1:{broker.port}")


@contextmanager
def behind_tls(directory):
    """Yield a broker behind a terminator that its routes name and that authenticates clients by
    certificate."""
    config = small_broker(directory / "store", brokerIP1=HOST, **_LARGE)
    with BrokerThread(config) as broker, under_tls(broker.port, clients_of="ca.pem") as terminator:
        yield broker, terminator
