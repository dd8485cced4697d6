"""A broker of ours in a thread, small and fast, with a client connection; and a broker of each
kind, shared by all tests, with a `Cluster` for each test.

No client thread outlives the test that started it.
"""

from contextlib import nullcontext

import pytest
from support.brokers.broker_kinds import NAME
from support.brokers.clusters import EVERY_CLUSTER, Cluster, running
from support.brokers.in_process import BrokerThread, small_broker
from support.clients.thread_leaks import none_left
from support.suite.late_collection import selected_tests

from rmq_spark.client.api.broker_api import BrokerApi
from rmq_spark.client.transport.remoting_client import RemotingClient

_OF_A_MODULE = {"broker", "world"}
"""Module fixtures that bring clients: one test may start their threads, and the next
one use them."""

_OF_THE_SESSION = {"rocketpoll_broker", "rocketpoll_aio"}


def _uses(fixtures, *tests):
    return any(not fixtures.isdisjoint(test.fixturenames) for test in tests)


@pytest.fixture(autouse=True, scope="module")
def _no_thread_is_left_by_a_module(request):
    tests = selected_tests(request.session, request.path)
    with nullcontext() if _uses(_OF_THE_SESSION, *tests) else none_left():
        yield


@pytest.fixture(autouse=True)
def _no_thread_is_left(request):
    lasts_longer = _uses(_OF_A_MODULE | _OF_THE_SESSION, request.node)
    with nullcontext() if lasts_longer else none_left():
        yield


@pytest.fixture
def running_broker(tmp_path):
    with BrokerThread(small_broker(tmp_path / "store")) as broker:
        broker.address = f"127.0.0.1:{broker.port}"
        yield broker


@pytest.fixture
def connections():
    made = RemotingClient()
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
