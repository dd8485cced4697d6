import pytest

from rmq_spark.client.api.broker_api import BrokerApi
from rmq_spark.client.transport.remoting_client import RemotingClient
from rocketpoll import EmbeddedBroker


@pytest.fixture(scope="module")
def broker():
    """Run one broker for all tests of a file."""
    with EmbeddedBroker() as broker:
        yield broker


@pytest.fixture(params=[False, True], ids=["thread", "process"])
def kind(request):
    """Run the broker in a thread, and in a process."""
    return {"own_process": request.param}


@pytest.fixture
def temporary(tmp_path_factory, monkeypatch):
    """Return the directory of temporary files, so that tests see leftovers."""
    place = tmp_path_factory.mktemp("temporary")
    monkeypatch.setenv("TMPDIR", str(place))
    monkeypatch.setattr("tempfile.tempdir", str(place))
    return place


@pytest.fixture
def topic(broker, request):
    """Create a topic with one queue."""
    name = request.node.name.replace("[", "-").replace("]", "")
    broker.create_topic(name, queues=1)
    return name


@pytest.fixture
def api():
    """Return a client's API, which is closed after the test."""
    connections = RemotingClient()
    yield BrokerApi(connections)
    connections.shutdown()
