"""A broker with authentication and authorization, and clients with keys."""

from __future__ import annotations

import json
from contextlib import contextmanager, suppress
from typing import NamedTuple

from support.access.answers import WITH_USERS
from support.brokers.broker_kinds import NAME, START_SECONDS_MAX, RocketMQBroker, wait_until

from rmq_spark.client.errors import ClientError
from rmq_spark.client.instance.instance import ClientInstance
from rmq_spark.client.transport.remoting_client import Credentials
from rocketpoll import Admin, EmbeddedBroker
from rocketpoll.broker.store.config import FlushDiskType

OPERATOR = Credentials("operator", "of the operator")
"""The super user."""

_FIRST = json.dumps({"username": OPERATOR.access_key, "password": OPERATOR.secret_key})
_INNER = json.dumps({"accessKey": OPERATOR.access_key, "secretKey": OPERATOR.secret_key})
_OF_ROCKETMQ = {
    **WITH_USERS,
    "initAuthenticationUser": _FIRST,
    "innerClientAuthenticationCredentials": _INNER,
}


@contextmanager
def secured_broker(directory=None, **settings):
    """Yield a broker of ours with users and access lists; `OPERATOR` is the super user."""
    with EmbeddedBroker(
        directory,
        authenticationEnabled=True,
        authorizationEnabled=True,
        initAuthenticationUser=_FIRST,
        **settings,
    ) as broker:
        yield broker


class RealBroker(NamedTuple):
    """A real RocketMQ; clients connect to its name server."""

    address: str


@contextmanager
def secured_rocketmq(directory):
    """Yield a RocketMQ 5.5.0 with users and access lists; `OPERATOR` is the super user."""
    broker = RocketMQBroker("5.5.0", directory, FlushDiskType.ASYNC_FLUSH, _OF_ROCKETMQ)
    found = RealBroker(broker.name_server)
    try:
        with Admin(instance=client_of(found)) as admin:

            def answers():
                with suppress(ClientError):
                    return OPERATOR.access_key in admin.users().get(NAME, {})
                return False

            wait_until("a broker that answers", answers, START_SECONDS_MAX)
        yield found
    finally:
        broker.close()


def client_of(broker, credentials=OPERATOR, **settings):
    """Return a client with keys that is not started yet."""
    return ClientInstance(
        broker.address, credentials=credentials, request_timeout_ms=5_000, **settings
    )
