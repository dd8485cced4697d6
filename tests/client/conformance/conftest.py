"""One broker of each kind for the whole suite, and for each test a cluster's view of it,
with our clients."""

import pytest
from broker_kinds import NAME
from conforming_clients import Clients
from consumer_clusters import EVERY_CLUSTER, Cluster, running


@pytest.fixture(scope="session", params=EVERY_CLUSTER)
def brokers(request, tmp_path_factory):
    with running(request.param, tmp_path_factory.mktemp("broker")) as addresses:
        yield request.param, *addresses


@pytest.fixture
def cluster(brokers):
    _, name_server, address = brokers
    cluster = Cluster(name_server, address, NAME)
    yield cluster
    cluster.close()


@pytest.fixture
def is_ours(brokers):
    """Whether the broker has more to offer than RocketMQ's; which results never depend on."""
    return brokers[0] == "rocketpoll"


@pytest.fixture
def clients(cluster):
    return Clients(cluster)
