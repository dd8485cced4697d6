"""A broker of ours in a thread, small and quick, and a client's connections to it; and a broker of
each kind, one for all tests, with a cluster for each test."""

import pytest
from broker_kinds import NAME
from broker_stories import BrokerThread, small_broker
from consumer_clusters import EVERY_CLUSTER, Cluster, running

from rmq_spark.client.connections.connections import Connections
from rmq_spark.client.requests.broker_api import BrokerApi


@pytest.fixture
def running_broker(tmp_path):
    with BrokerThread(small_broker(tmp_path / "store")) as broker:
        broker.address = f"127.0.0.1:{broker.port}"
        yield broker


@pytest.fixture
def connections():
    made = Connections()
    yield made
    made.shutdown()


@pytest.fixture
def api(connections):
    return BrokerApi(connections)


@pytest.fixture(scope="session", params=EVERY_CLUSTER)
def brokers(request, tmp_path_factory):
    with running(request.param, tmp_path_factory.mktemp("broker")) as addresses:
        yield addresses


@pytest.fixture
def cluster(brokers):
    cluster = Cluster(*brokers, NAME)
    yield cluster
    cluster.close()
