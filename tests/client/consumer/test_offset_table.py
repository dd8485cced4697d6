from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_spark.client.consumer.offsets.offset_store import OffsetTable
from rmq_spark.wire.message_queue import MessageQueue

QUEUES = [MessageQueue(topic, "broker-a", number) for topic in ("T", "U") for number in range(2)]


def test_an_older_offset_is_passed_over_unless_going_back_is_meant():
    table = OffsetTable()
    table.update(QUEUES[0], 7, increase_only=True)
    table.update(QUEUES[0], 5, increase_only=True)
    assert table.get(QUEUES[0]) == 7
    table.update(QUEUES[0], 5, increase_only=False)
    assert table.get(QUEUES[0]) == 5


def test_no_offset_is_below_zero():
    with pytest.raises(ValueError, match="needed 0 or more, found -1"):
        OffsetTable().update(QUEUES[0], -1, increase_only=False)


def test_what_is_taken_over_does_not_replace_what_is_known():
    table = OffsetTable()
    table.update(QUEUES[0], 7, increase_only=True)
    table.add_missing({QUEUES[0]: 9, QUEUES[1]: 3})
    assert table.copy() == {QUEUES[0]: 7, QUEUES[1]: 3}


def test_topics_are_kept_apart():
    table = OffsetTable()
    for number, queue in enumerate(QUEUES):
        table.update(queue, number, increase_only=True)
    assert table.get_topic("U") == {QUEUES[2]: 2, QUEUES[3]: 3}
    table.remove(QUEUES[2])
    table.remove(QUEUES[2])
    assert table.get_many([QUEUES[2], QUEUES[3]]) == {QUEUES[3]: 3}


@given(st.lists(st.tuples(st.sampled_from(QUEUES), st.integers(0, 99), st.booleans())))
def test_a_table_is_where_its_updates_have_brought_it(updates):
    table, model = OffsetTable(), {}
    for queue, offset, increase_only in updates:
        table.update(queue, offset, increase_only=increase_only)
        model[queue] = max(offset, model.get(queue, 0)) if increase_only else offset
    assert table.copy() == model


def test_no_update_of_many_threads_is_lost():
    table, start = OffsetTable(), threading.Barrier(8)

    def count(thread):
        start.wait(20)
        for offset in range(500):
            table.update(QUEUES[0], offset * 8 + thread, increase_only=True)
            table.update(MessageQueue("N", "b", thread), offset, increase_only=True)

    threads = [threading.Thread(target=count, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert table.get(QUEUES[0]) == 499 * 8 + 7
    assert len(table.copy()) == 9
