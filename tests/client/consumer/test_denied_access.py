"""Consumers log a lost right of their user once, and continue when it is granted again."""

import logging
import threading

import pytest
from support.brokers.broker_kinds import wait_until
from support.brokers.secured import client_of, secured_broker
from support.suite.log_records import lines_of

from rmq_spark.client.errors import AccessDenied
from rmq_spark.client.transport.remoting_client import Credentials
from rocketpoll import (
    AclPolicy,
    Admin,
    ConsumeFromWhere,
    LitePullConsumer,
    LitePullSettings,
    Message,
    Producer,
    PushConsumer,
    PushSettings,
)

BILLING = Credentials("billing", "of billing")
TOPIC = AclPolicy("billing", "Topic:orders", ("Sub",))
GROUP = AclPolicy("billing", "Group:billing", ("Sub",))
QUEUES = 4


@pytest.fixture
def broker():
    with secured_broker() as broker:
        yield broker


@pytest.fixture
def admin(broker):
    """Return the operator's admin, which has allowed billing to consume a topic."""
    with Admin(instance=client_of(broker)) as admin:
        admin.create_user(BILLING.access_key, BILLING.secret_key)
        admin.create_topic("orders", QUEUES)
        admin.create_acl(TOPIC)
        admin.create_acl(GROUP)
        yield admin


def send(broker, *bodies):
    with Producer("feeder", instance=client_of(broker)) as producer:
        for body in bodies:
            producer.send(Message("orders", body))


def pulls_in(lines):
    return [line for line in lines if line.startswith("pulling ")]


def test_push_consumer_logs_denied_pulls_once_and_resumes_when_granted(broker, admin, caplog):
    caplog.set_level(logging.WARNING)
    found, has_come = [], threading.Event()

    def lines():
        return lines_of(caplog, "rmq_spark.client")

    def listen(messages, _):
        found.extend(message.body for message in messages)
        has_come.set()

    settings = PushSettings(
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
    )
    instance = client_of(broker, BILLING, heartbeat_interval_ms=500)
    with PushConsumer("billing", instance=instance, listener=listen, settings=settings) as consumer:
        consumer.subscribe("orders")
        send(broker, b"one")
        assert has_come.wait(20)
        admin.delete_acl("billing", TOPIC.resource)
        send(broker, *(b"two" for _ in range(QUEUES)))  # releases the held pulls of all queues
        wait_until("a refused pull", lambda: pulls_in(lines()))
        wait_until(
            "a refused heartbeat", lambda: [each for each in lines() if "heartbeats to" in each]
        )
        admin.create_acl(TOPIC)
        wait_until("the messages", lambda: found.count(b"two") == QUEUES)
        wait_until("the recovery", lambda: " recovered after " in pulls_in(lines())[-1])
        wait_until("the recovered heartbeats", lambda: any(
            each.startswith("heartbeats to") and " recovered after " in each for each in lines()
        ))  # fmt: skip
    failed, recovered = pulls_in(lines())
    assert " failed, retrying: " in failed
    assert "rocketpoll acl grant billing Topic:orders --actions Sub" in failed
    assert recovered.startswith("pulling queues of topic orders at broker-a recovered after ")


def test_lite_pull_consumer_gets_messages_once_its_group_is_granted(broker, admin, caplog):
    caplog.set_level(logging.WARNING)
    admin.delete_acl("billing", GROUP.resource)
    settings = LitePullSettings(consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
    send(broker, b"one")
    instance = client_of(broker, BILLING, heartbeat_interval_ms=500)
    with LitePullConsumer("billing", instance=instance, settings=settings) as consumer:
        consumer.subscribe("orders")
        assert consumer.poll(timeout_ms=500) == []
        [line] = [line for line in lines_of(caplog, "rmq_spark.client") if "heartbeats to" in line]
        assert "rocketpoll acl grant billing Group:billing --actions Sub" in line
        admin.create_acl(GROUP)
        wait_until("the message", lambda: consumer.poll(timeout_ms=500))


def test_consumer_error_for_a_denied_topic_names_the_command_that_grants_it(broker, admin):
    admin.delete_acl("billing", TOPIC.resource)
    consumer = LitePullConsumer("billing", instance=client_of(broker, BILLING))
    consumer.subscribe("orders")
    with pytest.raises(AccessDenied, match="acl grant billing Topic:orders"):
        consumer.start()
