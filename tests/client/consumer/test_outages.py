"""Broker outages are logged once at their start and once at their end."""

import logging

import pytest

from rmq_spark.client.errors import (
    BrokerRefused,
    ConnectionClosed,
    ConnectionFailed,
    RequestTimeout,
    refusal,
)
from rmq_spark.client.failure_log import OutageLog
from rmq_spark.wire.message_queue import MessageQueue

QUEUES = [MessageQueue("T", "a", number) for number in range(4)]
LATE = RequestTimeout("a", 11, 30)
OTHER = MessageQueue("T", "b", 0)


@pytest.fixture
def outages():
    return OutageLog("pulling")


@pytest.fixture
def warnings(caplog):
    caplog.set_level(logging.DEBUG)
    return lambda: [
        each.getMessage().partition(" after ")[0]
        for each in caplog.records
        if each.levelno == logging.WARNING
    ]


def test_broker_outage_is_logged_once_for_all_queues_and_errors(outages, warnings):
    for error in (
        ConnectionFailed("a", "nobody"),
        ConnectionClosed("a", "gone"),
        RequestTimeout("a", 11, 30),
    ):
        for queue in QUEUES:
            outages.record_failure(queue, error)
    assert warnings() == [
        f"pulling {QUEUES[0]} failed, retrying: {ConnectionFailed('a', 'nobody')}"
    ]
    outages.record_failure(OTHER, ConnectionFailed("b", "nobody"))
    assert len(warnings()) == 2


def test_recovery_from_a_broker_outage_is_logged_once(outages, warnings):
    outages.record_failure(QUEUES[0], ConnectionFailed("a", "nobody"))
    for queue in QUEUES:
        outages.record_success(queue)
    assert warnings()[1:] == ["pulling queues of a recovered"]
    outages.record_failure(QUEUES[1], ConnectionFailed("a", "nobody"))
    assert len(warnings()) == 3


def test_refusal_of_a_queue_is_logged_again_if_it_changes(outages, warnings):
    for code in (16, 16, 1, 1):
        outages.record_failure(QUEUES[0], BrokerRefused(code, "no", "a", 11))
    assert len(warnings()) == 2
    outages.record_success(QUEUES[1])
    assert len(warnings()) == 2
    outages.record_success(QUEUES[0])
    assert warnings()[2:] == [f"pulling {QUEUES[0]} recovered"]


def test_repeated_outage_errors_are_logged_at_debug_level(outages, caplog):
    caplog.set_level(logging.DEBUG)
    for _ in range(3):
        outages.record_failure(QUEUES[0], OSError("odd"))
    assert [each.levelname for each in caplog.records] == ["WARNING", "DEBUG", "DEBUG"]


def denied(resource):
    remark = (
        f"User:billing has no permission to access {resource} from 10.0.0.7, no matched policies."
    )
    return refusal(16, remark, "a:1", 11)


def test_denied_access_is_logged_once_for_all_queues_of_a_topic(outages, warnings):
    for queue in QUEUES:
        outages.record_failure(queue, denied("Topic:T"))
    [line] = warnings()
    assert line.endswith("Have an operator run rocketpoll acl grant billing Topic:T --actions Sub")
    outages.record_failure(QUEUES[2], denied("Group:billing"))  # the next missing right
    assert len(warnings()) == 2
    for queue in QUEUES:
        outages.record_success(queue)
    assert warnings()[2:] == ["pulling queues of topic T at a recovered"]


def test_refused_credentials_are_logged_once_for_all_topics_of_a_broker(outages, warnings):
    error = refusal(16, "check signature failed.", "a:1", 11)
    for topic in ("T", "U"):
        outages.record_failure(MessageQueue(topic, "a", 0), error)
    assert len(warnings()) == 1
    outages.record_success(QUEUES[0])
    assert warnings()[1:] == ["pulling queues of a recovered"]
