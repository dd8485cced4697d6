"""A broker of ours in a thread, small and quick, and a client's connections to it."""

import pytest
from broker_stories import BrokerThread, small_broker

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
