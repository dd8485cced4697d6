"""Lag counts from the next offset, and sums over queues."""

from rmq_spark.client.admin.lag import Lag, messages_behind, total_lag
from rmq_spark.wire.message_queue import MessageQueue


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
