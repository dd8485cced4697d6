"""One Spark and one broker of each kind for all tests in here; for each test a room of its own."""

import pytest
from broker_kinds import NAME
from consumer_clusters import EVERY_CLUSTER, Cluster, running
from source_rooms import SourceRoom
from spark_sessions import started_session


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    session = started_session(tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()


@pytest.fixture(scope="session", params=EVERY_CLUSTER)
def brokers(request, tmp_path_factory):
    with running(request.param, tmp_path_factory.mktemp("broker")) as addresses:
        yield addresses


@pytest.fixture
def cluster(brokers):
    cluster = Cluster(*brokers, NAME)
    yield cluster
    cluster.close()


@pytest.fixture
def source(spark, cluster, tmp_path):
    room = SourceRoom(spark, cluster, tmp_path)
    yield room
    room.close()
