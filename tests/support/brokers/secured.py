"""A broker that authenticates its clients and checks what they may do; and clients with keys."""

from __future__ import annotations

import json
from contextlib import contextmanager

from rmq_spark.client.instance.instance import ClientInstance
from rmq_spark.client.transport.remoting_client import Credentials
from rocketpoll import EmbeddedBroker

OPERATOR = Credentials("operator", "of the operator")
"""The super user of these brokers."""


@contextmanager
def secured_broker(directory=None, **settings):
    """Yield a broker of ours with users and access lists, whose super user is `OPERATOR`."""
    first = json.dumps({"username": OPERATOR.access_key, "password": OPERATOR.secret_key})
    with EmbeddedBroker(
        directory,
        authenticationEnabled=True,
        authorizationEnabled=True,
        initAuthenticationUser=first,
        **settings,
    ) as broker:
        yield broker


def client_of(broker, credentials=OPERATOR, **settings):
    """Return a client with keys, which a test starts."""
    return ClientInstance(
        broker.address, credentials=credentials, request_timeout_ms=5_000, **settings
    )
