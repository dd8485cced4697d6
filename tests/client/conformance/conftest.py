"""One broker of each kind for the whole suite, and for each test a cluster's view of it,
with our clients."""

import pytest
from support.brokers.broker_kinds import NAME
from support.brokers.clusters import EVERY_CLUSTER, Cluster, running
from support.clients.conformance_clients import AioClients, Clients


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


@pytest.fixture(params=["threads", "asyncio"])
def both_clients(request, cluster):
    """Our clients by threads and by asyncio, for what both can do: `clients` of such a module."""
    if request.param == "threads":
        yield Clients(cluster)
        return
    clients = AioClients(cluster)
    yield clients
    cluster.close()  # first: what it ends lives in the loop
    clients.close()
