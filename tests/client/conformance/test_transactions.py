"""Transactions on every kind of broker: a message is delivered only after its producer
commits it."""

import threading

import pytest
from support.brokers.broker_kinds import wait_until

from rmq_spark.client.errors import ClientShutDown, MessageRejected
from rmq_spark.client.message import Message
from rmq_spark.client.producer.transaction_producer import TransactionState

COMMIT, ROLLBACK, UNKNOWN = TransactionState


@pytest.fixture
def clients(both_clients):
    return both_clients


@pytest.fixture
def topic(cluster):
    return cluster.topic()


class Checks:
    """A check listener that records its calls."""

    def __init__(self, *answers):
        self.messages, self._answers, self._lock = [], list(answers), threading.Lock()

    def __call__(self, message):
        with self._lock:
            self.messages.append(message)
            answer = self._answers.pop(0) if self._answers else UNKNOWN
        if isinstance(answer, Exception):
            raise answer
        return answer

    def wait_for(self, count):
        wait_until(f"{count} checks", lambda: len(self.messages) >= count)
        return self.messages


def never(_):
    raise AssertionError("the transaction had an end")


def test_committed_transaction_is_delivered_as_it_was_sent(clients, topic):
    producer = clients.transaction_producer(never)
    sent = Message(topic, b"x" * 10_000, keys="k", tags="blue", properties={"place": "here"})
    seen = []
    begun = clients.in_transaction(
        producer, sent, lambda begun: seen.append((begun.send_result, begun.result))
    )
    ((stored, before),) = seen
    assert before is None
    assert begun.result.state is COMMIT
    assert begun.result.is_acknowledged
    (found,) = clients.read(topic, 1)
    assert (found.body, found.keys, found.tags) == (sent.body, ("k",), "blue")
    assert found.properties["place"] == "here"
    assert found.message_id == begun.message_id == stored.message_id


def test_transaction_whose_block_raises_is_rolled_back(clients, topic):
    producer = clients.transaction_producer(never)

    def fail(_):
        raise KeyError("no such account")

    with pytest.raises(KeyError, match="no such account"):
        clients.in_transaction(producer, Message(topic, b"no"), fail)
    producer.send(Message(topic, b"yes"))
    assert [each.body for each in clients.read(topic, 1)] == [b"yes"]


def test_transaction_that_is_left_open_is_ended_by_the_check_listener(clients, topic):
    checks = Checks(UNKNOWN, COMMIT)
    producer = clients.transaction_producer(checks)
    sent = Message(topic, b"order", keys="k", tags="blue")
    begun = clients.in_transaction(producer, sent, lambda begun: begun.leave_open())
    (found,) = clients.read(topic, 1)
    assert found.message_id == begun.message_id
    for asked in checks.wait_for(2):
        assert (asked.topic, asked.body, asked.keys, asked.tags) == (
            topic,
            b"order",
            ("k",),
            "blue",
        )
        assert asked.message_id == begun.message_id
    assert len(checks.messages) == 2


def test_check_listener_that_fails_is_called_again(clients, topic, caplog):
    checks = Checks(ValueError("database is down"), None, ROLLBACK)
    producer = clients.transaction_producer(checks)
    clients.in_transaction(producer, Message(topic, b"no"), lambda begun: begun.leave_open())
    checks.wait_for(3)
    assert "check_listener of Group" in caplog.text
    assert "database is down" in caplog.text
    assert "what check_listener has returned: needed a TransactionState, found None" in caplog.text


def test_transaction_check_is_answered_by_another_producer_of_the_group(clients, topic, cluster):
    group = f"{cluster.group()}-committers"
    first = clients.transaction_producer(never, group=group)
    checks = Checks(COMMIT)
    clients.in_transaction(first, Message(topic, b"left"), lambda begun: begun.leave_open())
    first.shutdown()
    clients.transaction_producer(checks, group=group, topics=[topic])
    assert [each.body for each in clients.read(topic, 1)] == [b"left"]
    assert [each.body for each in checks.messages] == [b"left"]


@pytest.mark.parametrize("state", [COMMIT, ROLLBACK])
def test_send_in_transaction_ends_as_its_function_says(clients, topic, state):
    producer = clients.transaction_producer(never)
    result = producer.send_in_transaction(Message(topic, b"x"), lambda _: state)
    assert (result.state, result.is_acknowledged) == (state, True)
    producer.send(Message(topic, b"after"))
    expected = {b"x", b"after"} if state is COMMIT else {b"after"}
    assert {each.body for each in clients.read(topic, len(expected))} == expected


def test_send_in_transaction_whose_function_fails_is_left_to_the_check_listener(clients, topic):
    checks = Checks(COMMIT, COMMIT)
    producer = clients.transaction_producer(checks)

    def fail(_):
        raise OSError("the commit was interrupted")

    with pytest.raises(OSError, match="the commit was interrupted"):
        producer.send_in_transaction(Message(topic, b"1"), fail)
    with pytest.raises(TypeError, match="what local_transaction has returned"):
        producer.send_in_transaction(Message(topic, b"2"), lambda _: None)
    assert {each.body for each in clients.read(topic, 2)} == {b"1", b"2"}


def test_immunity_delays_the_first_check(clients, topic):
    checks = Checks(COMMIT)
    producer = clients.transaction_producer(checks)
    clients.in_transaction(
        producer, Message(topic, b"x"), lambda begun: begun.leave_open(), check_immunity_seconds=1
    )
    (found,) = clients.read(topic, 1)
    assert found.properties["CHECK_IMMUNITY_TIME_IN_SECONDS"] == "1"
    assert found.store_timestamp - found.born_timestamp >= 1_000


def test_message_that_no_transaction_can_have_is_rejected(clients, topic):
    producer = clients.transaction_producer(never)
    with pytest.raises(MessageRejected, match="delay_level in a transaction"):
        producer.transaction(Message(topic, b"x", delay_level=1))
    with pytest.raises(MessageRejected, match="check_immunity_seconds"):
        producer.transaction(Message(topic, b"x"), check_immunity_seconds=0)
    with pytest.raises(TypeError, match="a Message"):
        producer.transaction(b"x")


def test_stopped_producer_begins_no_transaction(clients, topic):
    producer = clients.transaction_producer(never)
    producer.shutdown()
    with pytest.raises(ClientShutDown):
        clients.in_transaction(producer, Message(topic, b"x"), never)
