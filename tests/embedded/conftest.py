import pytest

from rmq_spark.client.api.broker_api import BrokerApi
from rmq_spark.client.transport.remoting_client import RemotingClient
from rocketpoll import EmbeddedBroker


@pytest.fixture(scope="module")
def broker():
    """Run one broker for all tests of a file."""
    with EmbeddedBroker() as broker:
        yield broker


@pytest.fixture
def topic(broker, request):
    """Return a topic of one queue."""
    name = request.node.name.replace("[", "-").replace("]", "")
    broker.create_topic(name, queues=1)
    return name


@pytest.fixture
def api():
    """Return a client's API, which is closed after the test."""
    connections = RemotingClient()
    yield BrokerApi(connections)
    connections.shutdown()
