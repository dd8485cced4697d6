"""Topic sizes estimated from the ends of their queues."""

import random

from rmq_spark.client.admin.lag import Lag, messages_behind, total_lag
from rmq_spark.client.message import Message
from rmq_spark.client.producer.producer import Producer
from rmq_spark.wire.message_queue import MessageQueue

FIRST, SECOND = (MessageQueue("T", "broker-a", each) for each in range(2))


def test_topic_size_of_an_empty_topic_is_zero(admin):
    assert admin.topic_size("T") == (0, 0, 0)


def test_topic_size_of_equal_messages_is_exact(admin):
    with Producer("P", instance=admin.instance) as producer:
        producer.send(Message("T", b"x" * 1_000), FIRST)
        one = admin.topic_size("T")
        producer.send_batch([Message("T", b"x" * 1_000) for _ in range(199)])
    size = admin.topic_size("T")
    assert size.messages == 200
    assert 1_000 < one.stored_bytes < 1_300
    assert abs(size.stored_bytes - 200 * one.stored_bytes) < 200 * 50
    assert size.last_timestamp >= one.last_timestamp > 0


def test_topic_size_estimates_from_both_ends_of_each_queue(admin):
    with Producer("P", instance=admin.instance) as producer:
        for body in (b"x", random.Random(1).randbytes(10_000)):
            for _ in range(40):
                producer.send(Message("T", body), SECOND)
    size = admin.topic_size("T")
    assert size.messages == 80
    assert 40 * 10_000 < size.stored_bytes < 40 * 10_600


# ---- lag counts from the next offset, and sums over queues


def test_lag_counts_from_the_next_offset_and_is_never_negative():
    assert messages_behind(5, 2) == 3
    assert messages_behind(5, None) == 5
    assert messages_behind(5, 5) == 0
    assert messages_behind(5, 9) == 0


def test_total_lag_adds_queues_and_none_hides_another():
    queues = [MessageQueue("T", "a", number) for number in range(3)]
    offsets = ((5, 9), (5, None), (5, 4))
    lags = [Lag(queue, *each, 0) for queue, each in zip(queues, offsets, strict=True)]
    assert total_lag(lags) == 6
