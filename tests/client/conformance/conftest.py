"""One broker of each kind for the whole suite, and for each test a `Cluster` with our clients.

With ROCKETPOLL_PEERS=1, producers, consumers and readers are also tested behind RocketMQ's proxy.
"""

import pytest
from support.brokers.broker_kinds import NAME
from support.brokers.clusters import EVERY_CLUSTER, PROXY, Cluster, running
from support.clients.conformance_clients import AioClients, Clients
from support.suite.selection import PEERS

THROUGH_THE_PROXY = (
    "test_bulk_pulling",
    "test_listening",
    "test_polling",
    "test_producing",
    "test_reading_tables",
)
NOT_THROUGH_THE_PROXY = {
    "test_invalid_sql_subscription_is_refused_at_start": "CHECK_CLIENT_CONFIG checks nothing",
    "test_invalid_sql_for_assigned_queues_is_refused_without_change": "as above",
    "test_missing_topic_subscription_suggests_the_nearest": "there is no list of topics",
    "test_missing_topic_is_created_by_the_first_message": "the missing topic has no message type",
    "test_running_info_shows_the_state_of_a_push_consumer": "brokers know the proxy only",
    "test_push_members_with_different_subscriptions_are_warned": "the proxy keeps one member only",
}
"""Tests that fail behind the proxy, with the reason: "Behind the proxy" in
docs/rocketmq-differences.md."""


def pytest_collection_modifyitems(config, items):
    """Deselect tests of requests that the proxy does not support."""
    left_out = [item for item in items if _is_by_proxy(item) and not _is_served(item)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


def _is_by_proxy(item):
    call = getattr(item, "callspec", None)
    return str(call and call.params.get("brokers")).startswith(PROXY)


def _is_served(item):
    module = item.module.__name__.rpartition(".")[2]
    return module in THROUGH_THE_PROXY and item.originalname not in NOT_THROUGH_THE_PROXY


@pytest.fixture(
    scope="session",
    params=[
        *EVERY_CLUSTER,
        *(
            pytest.param(f"{PROXY}{version}", id=f"{PROXY}{version}", marks=pytest.mark.interop)
            for version in ["5.5.0"]
            if PEERS
        ),
    ],
)
def brokers(request, tmp_path_factory):
    with running(request.param, tmp_path_factory.mktemp("broker")) as addresses:
        yield request.param, *addresses


@pytest.fixture
def cluster(brokers):
    kind, name_server, address = brokers
    attributes = {"message.type": "MIXED"} if kind.startswith(PROXY) else None
    cluster = Cluster(name_server, address, NAME, attributes)
    yield cluster
    cluster.close()


@pytest.fixture
def is_ours(brokers):
    """Return whether the broker has our extensions; they may change speed but no result."""
    return brokers[0] == "rocketpoll"


@pytest.fixture
def clients(cluster):
    return Clients(cluster)


@pytest.fixture(params=["threads", "asyncio"])
def both_clients(request, cluster):
    """Parametrize with the threaded and the asyncio client; modules use it as `clients`."""
    if request.param == "threads":
        yield Clients(cluster)
        return
    clients = AioClients(cluster)
    yield clients
    cluster.close()  # before its event loop
    clients.close()
