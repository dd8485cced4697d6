"""Transactions of Java's TransactionMQProducer end as its listener says.

Each test runs on a real RocketMQ and on our broker, with clients of both versions.
"""

import pytest
from support.brokers.broker_kinds import wait_until
from support.rocketmq.java_clients import to_send

pytestmark = pytest.mark.interop

COMMIT, ROLLBACK, UNKNOWN = "COMMIT_MESSAGE", "ROLLBACK_MESSAGE", "UNKNOW"


def transaction(body, local, check=UNKNOWN, **fields):
    return to_send(body, properties={"local": local, "check": check}, **fields)


def test_committed_message_of_a_java_transaction_arrives_whole(scenario):
    topic = scenario.topic()
    producer = scenario.transaction_producer()
    sent = transaction("one", COMMIT, tags="blue", keys="k", flag=7)
    (result,) = producer.send_in_transaction(topic, sent)
    assert (result["status"], result["topic"]) == ("SEND_OK", topic)
    (found,) = scenario.read(topic, 1)
    assert (found["body"], found["tags"], found["keys"], found["flag"]) == ("one", "blue", "k", 7)
    assert found["messageId"] == result["messageIds"][0]
    assert found["properties"]["PGROUP"] == producer.group
    assert found["queueOffset"] == 0


def test_rolled_back_message_of_a_java_transaction_never_arrives(scenario):
    topic = scenario.topic()
    producer = scenario.transaction_producer()
    producer.send_in_transaction(topic, transaction("no", ROLLBACK), transaction("yes", COMMIT))
    assert [each["body"] for each in scenario.read(topic, 1)] == ["yes"]


def test_check_commits_and_rolls_back_what_a_java_producer_left_open(scenario):
    topic = scenario.topic(queues=2)
    producer = scenario.transaction_producer()
    producer.send_in_transaction(
        topic,
        transaction("commit", UNKNOWN, COMMIT),
        transaction("roll back", UNKNOWN, ROLLBACK),
        transaction("open", UNKNOWN),
    )
    consumer = scenario.lite(group=f"{scenario.name}-readers")
    consumer.assign(topic, 0, 1)
    consumer.wait_for(["commit"])
    wait_until(
        "a second check of the open one",
        lambda: [each["body"] for each in producer.checks()].count("open") > 1,
    )
    checked = producer.checks()
    assert {each["body"] for each in checked} == {"commit", "roll back", "open"}
    assert {each["topic"] for each in checked} == {topic}
    assert [each["body"] for each in checked].count("commit") == 1
    consumer.look()
    assert set(consumer.bodies) == {"commit"}


def test_transaction_check_asks_another_java_producer_when_the_first_was_killed(
    scenario, more_clients
):
    topic = scenario.topic()
    first = scenario.transaction_producer(clients=more_clients)
    first.send_in_transaction(topic, transaction("left", UNKNOWN, COMMIT))
    more_clients.kill()
    second = scenario.transaction_producer()
    second.send_in_transaction(topic, transaction("own", COMMIT))  # 5.5 joins with its first send
    assert [each["body"] for each in scenario.read(topic, 2)] == ["own", "left"]
