"""Sends use queues round-robin, keys select a queue, and failed or slow brokers are avoided."""

import pytest
from support.suite.clocks import Clock

from rmq_spark.client.producer.topic_sender import QueueSelector, not_available_ms, queue_for_key
from rmq_spark.wire.message_queue import MessageQueue

A = [MessageQueue("T", "a", n) for n in range(2)]
B = [MessageQueue("T", "b", n) for n in range(2)]


def nobody(_):
    return False


@pytest.mark.parametrize(
    ("latency_ms", "away_ms"),
    [
        (0, 0),
        (99, 0),
        (549, 0),
        (550, 30_000),
        (1_000, 60_000),
        (2_500, 120_000),
        (3_000, 180_000),
        (30_000, 600_000),
    ],
)
def test_slower_brokers_are_avoided_for_longer(latency_ms, away_ms):
    assert not_available_ms(latency_ms) == away_ms


def test_queue_selector_uses_queues_round_robin():
    choice = QueueSelector(Clock(), nobody)
    chosen = [choice.select(A + B) for _ in range(8)]
    assert sorted(chosen[:4]) == A + B
    assert chosen[:4] == chosen[4:]


def test_queue_selector_avoids_a_failed_broker():
    choice = QueueSelector(Clock(), nobody)
    assert {choice.select(A + B, "a").broker_name for _ in range(8)} == {"b"}
    assert choice.select(A, "a") in A


def test_slow_broker_is_skipped_until_its_penalty_ends():
    clock = Clock()
    choice = QueueSelector(clock, nobody, send_latency_fault_enable=True)
    choice.record_latency("a", 600)
    choice.record_latency("b", 10)
    assert {choice.select(A + B).broker_name for _ in range(8)} == {"b"}
    clock.now += 30
    assert {choice.select(A + B).broker_name for _ in range(8)} == {"a", "b"}


def test_queue_selector_picks_the_broker_that_recovers_first():
    choice = QueueSelector(Clock(), nobody, send_latency_fault_enable=True)
    choice.record_failure("a")
    choice.record_latency("b", 600)
    assert choice.select(A + B).broker_name == "b"
    assert choice.select(A + B, "b").broker_name == "a"


def test_failed_broker_stays_available_without_latency_fault():
    choice = QueueSelector(Clock(), nobody)
    choice.record_failure("a")
    assert choice.is_available("a")


def test_sharding_key_selects_the_same_queue_as_java():
    queues = [MessageQueue("T", "a", n) for n in range(8)]
    assert queue_for_key(queues, "TagA").queue_id == 2_598_919 % 8
    assert queue_for_key(queues, "polygenelubricants").queue_id == 2_147_483_648 % 8
