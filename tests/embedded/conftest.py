from __future__ import annotations

import pytest

from rmq_spark.client.api.broker_api import BrokerApi
from rmq_spark.client.transport.remoting_client import RemotingClient
from rocketpoll import EmbeddedBroker


@pytest.fixture(scope="module")
def broker():
    """A broker of all tests of a file."""
    with EmbeddedBroker() as broker:
        yield broker


@pytest.fixture
def topic(broker, request):
    """A topic of one queue."""
    name = request.node.name.replace("[", "-").replace("]", "")
    broker.create_topic(name, queues=1)
    return name


@pytest.fixture
def api():
    """The requests of a client, which ends with the test."""
    connections = RemotingClient()
    yield BrokerApi(connections)
    connections.shutdown()
