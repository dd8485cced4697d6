"""Unmodified Go clients with keys send and consume as access lists permit.

The library's newest release has no TLS, so these brokers have none either.
"""

import pytest
from support.access.secured_brokers import (
    GROUPS,
    IDLE,
    READER,
    TOPICS,
    WRITER,
    WRONG,
    Secured,
    secured_broker,
)
from support.brokers.broker_kinds import KINDS, NAME, wait_until
from support.rocketmq.go_clients import GoClients, go_program
from support.suite.selection import PEERS

from rmq_spark.client.admin.admin import Admin
from rmq_spark.client.errors import ClientError
from rmq_spark.client.instance.instance import ClientInstance
from rmq_spark.client.transport.remoting_client import Credentials

pytestmark = pytest.mark.interop

_WAYS = {"sync", "async", "one-way", "batch"}


@pytest.fixture(scope="module")
def program():
    return go_program()


@pytest.fixture(
    scope="module",
    params=[
        Secured(kind, version, lists, "JSON")
        for version, lists in (("5.5.0", "users"), ("4.9.7", "accounts"))
        for kind in (KINDS if PEERS else ["rocketpoll"])
    ],
    ids=str,
)
def secured(request):
    return request.param


@pytest.fixture(scope="module")
def go(secured, program, tmp_path_factory):
    for broker in secured_broker(secured, tmp_path_factory.mktemp("secured"), has_tls=False):
        wait_until("a route", lambda: _is_known(broker), 120)  # noqa: B023  # the loop has a single broker
        yield GoClients(program, broker.name_server)


def _is_known(broker):
    credentials = Credentials(WRITER.name, WRITER.secret)
    with Admin(instance=ClientInstance(broker.name_server, credentials=credentials)) as admin:
        try:
            return NAME in {each.broker_name for each in admin.route(TOPICS[0]).broker_datas}
        except ClientError:
            return False


def test_go_producer_sends_in_every_way_and_push_consumer_receives(go):
    results = go.send(WRITER, TOPICS[0], ["1", "2"])
    assert {each["way"] for each in results} == _WAYS
    assert [each for each in results if "error" in each] == []
    expected = {f"{n} {way}" for n in "12" for way in _WAYS} | {
        "1 batch, second",
        "2 batch, second",
    }
    with go.consumer(READER, TOPICS[0], GROUPS[0]) as received:
        bodies = set()
        for each in received:
            bodies.add(each["body"])
            if bodies == expected:
                break
    assert bodies == expected


@pytest.mark.parametrize("key", [WRONG, IDLE, READER], ids=lambda key: f"{key.name} {key.secret}")
def test_refused_go_producer_sends_nothing(go, key):
    topic = TOPICS[1]
    refused = {each["way"] for each in go.send(key, topic, ["x"]) if "error" in each}
    assert {"sync", "async"} <= refused
    assert [each for each in go.send(WRITER, topic, ["y"]) if "error" in each] == []
    with go.consumer(READER, topic, f"{GROUPS[1]}") as received:
        first = next(received)
    assert first["body"].startswith("y")
