"""A group's offsets in memory keep the last update of each queue."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_spark.client.consumer.offsets.offset_store import RemoteBrokerOffsetStore
from rmq_spark.wire.message_queue import MessageQueue

QUEUES = [MessageQueue(topic, "broker-a", number) for topic in ("T", "U") for number in range(2)]


def test_negative_offset_update_is_refused():
    with pytest.raises(ValueError, match="needed 0 or more, found -1"):
        RemoteBrokerOffsetStore(None).update_offset(QUEUES[0], -1, increase_only=False)


@given(st.lists(st.tuples(st.sampled_from(QUEUES), st.integers(0, 99), st.booleans())))
def test_offset_table_holds_the_result_of_any_sequence_of_updates(updates):
    table, model = RemoteBrokerOffsetStore(None), {}
    for queue, offset, increase_only in updates:
        table.update_offset(queue, offset, increase_only=increase_only)
        model[queue] = max(offset, model.get(queue, 0)) if increase_only else offset
    assert table.offsets() == model


def test_offset_updates_of_many_threads_are_all_kept():
    table, start = RemoteBrokerOffsetStore(None), threading.Barrier(8)

    def count(thread):
        start.wait(20)
        for offset in range(500):
            table.update_offset(QUEUES[0], offset * 8 + thread, increase_only=True)
            table.update_offset(MessageQueue("N", "b", thread), offset, increase_only=True)

    threads = [threading.Thread(target=count, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert table.known_offset(QUEUES[0]) == 499 * 8 + 7
    assert len(table.offsets()) == 9
