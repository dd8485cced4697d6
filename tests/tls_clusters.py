"""A broker of ours that can be reached under TLS only, and clients that do: what tests see of it."""

from __future__ import annotations

from contextlib import contextmanager

from broker_kinds import NAME
from broker_stories import BrokerThread, small_broker
from consumer_clusters import Cluster
from tls_parts import HOST, certificate, under_tls

from rmq_spark.client.tls_settings import TlsSettings

KNOWN = TlsSettings.of_files(ca_file=certificate("ca.pem"), cert_file=certificate("client.pem"))
"""A client that the broker lets in."""


class TlsCluster(Cluster):
    """Makes clients that speak TLS."""

    def instance(self, **more):
        return super().instance(**{"tls": KNOWN, **more})


@contextmanager
def behind_tls(directory):
    """The broker and the terminator, to which its routes lead; it knows its clients by their certificates."""
    config = small_broker(
        directory / "store",
        brokerName=NAME,
        brokerIP1=HOST,
        maxMessageSize=8 << 20,
        mappedFileSizeCommitLog=64 << 20,
    )
    with BrokerThread(config) as broker, under_tls(broker.port, clients_of="ca.pem") as terminator:
        yield broker, terminator
