"""A user may see a topic, but not send to it: sends are refused once and not retried."""

import pyarrow as pa
import pytest
from support.brokers.secured import client_of, secured_broker

from rmq_spark.client.errors import AccessDenied, AuthenticationFailed, SendFailed
from rmq_spark.client.transport.remoting_client import Credentials
from rmq_spark.wire.codes import RequestCode
from rocketpoll import AclPolicy, Admin, Message, Producer

READER = Credentials("reader", "of the reader")
SENDS = {RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE, RequestCode.APPEND_CHUNK}
MESSAGE = Message("orders", b"x")
WAYS = {
    "send": lambda producer: producer.send(MESSAGE),
    "send_async": lambda producer: producer.send_async(MESSAGE).result(20),
    "send_batch": lambda producer: producer.send_batch([MESSAGE, MESSAGE]),
    "send_table": lambda producer: producer.send_table(
        pa.table({"body": [b"x", b"y"]}), topic="orders"
    ),
}


@pytest.fixture(scope="module")
def broker():
    with secured_broker() as broker, Admin(instance=client_of(broker)) as admin:
        admin.create_topic("orders", 4)
        admin.create_user(READER.access_key, READER.secret_key)
        admin.create_acl(AclPolicy("reader", "Topic:orders", ("Get",)))
        yield broker


@pytest.fixture
def producer(broker):
    with Producer("shop", instance=client_of(broker, READER)) as producer:
        assert producer.publish_queues("orders")  # the route is allowed
        yield producer


@pytest.fixture
def sends(producer, monkeypatch):
    """Record the send requests of a producer's client."""
    made = []
    connections = producer.instance.connections
    sign = connections._sign

    def signed(connection, command):
        if command.code in SENDS:
            made.append(command.code)
        return sign(connection, command)

    monkeypatch.setattr(connections, "_sign", signed)
    return made


@pytest.mark.parametrize("way", WAYS)
def test_denied_send_is_made_once_and_names_the_right(producer, sends, way):
    with pytest.raises((AccessDenied, SendFailed)) as raised:
        WAYS[way](producer)
    denied = raised.value
    if way == "send_table":  # whose error always has the number of attempts
        [denied] = raised.value.tries
    assert isinstance(denied, AccessDenied)
    assert denied.resource == "Topic:orders"
    assert "rocketpoll acl grant reader Topic:orders --actions Pub" in str(raised.value)
    assert len(sends) == 1


def test_send_of_a_user_that_was_disabled_meanwhile_is_made_once(broker, producer, sends):
    with Admin(instance=client_of(broker)) as admin:
        admin.update_user("reader", is_enabled=False)
        try:
            with pytest.raises(AuthenticationFailed, match="user update reader --enable"):
                producer.send(MESSAGE)
        finally:
            admin.update_user("reader", is_enabled=True)
    assert len(sends) == 1
