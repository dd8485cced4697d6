"""The brokers that consumers are tried on, one of each kind for all tests,
and a cluster for each test."""

import pytest
from broker_kinds import NAME
from consumer_clusters import EVERY_CLUSTER, Cluster, running


@pytest.fixture(scope="session", params=EVERY_CLUSTER)
def brokers(request, tmp_path_factory):
    with running(request.param, tmp_path_factory.mktemp("broker")) as addresses:
        yield addresses


@pytest.fixture
def cluster(brokers):
    cluster = Cluster(*brokers, NAME)
    yield cluster
    cluster.close()
