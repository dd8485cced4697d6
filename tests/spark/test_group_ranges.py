"""Offset ranges are grouped into tasks: distribution, and the resulting reads."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.spark.streaming_engine import Crashed, Engine, assert_read, send

from rmq_spark.spark.plan.partition_planner import OffsetRange, group_ranges
from rmq_spark.wire.message_queue import MessageQueue


def pieces_of(*sizes):
    return [OffsetRange(MessageQueue("T", "b", at), 7, 7 + size) for at, size in enumerate(sizes)]


@given(st.lists(st.integers(1, 1_000_000)), st.none() | st.integers(1, 40))
def test_groups_of_ranges_contain_each_range_once_in_order(sizes, groups_max):
    pieces = pieces_of(*sizes)
    found = group_ranges(pieces, groups_max)
    assert [piece for group in found for piece in group] == pieces
    assert all(found)
    assert len(found) <= (groups_max or len(pieces))


@given(st.lists(st.integers(1, 1_000), min_size=1), st.integers(1, 40))
def test_size_of_a_group_of_ranges_is_bounded(sizes, groups_max):
    pieces = pieces_of(*sizes)
    if len(pieces) > groups_max:
        rows = [sum(piece.row_count for piece in each) for each in group_ranges(pieces, groups_max)]
        assert max(rows) <= sum(sizes) / groups_max + max(sizes)


@pytest.mark.parametrize(
    ("sizes", "groups_max", "shares"),
    [
        ([3, 3, 3], None, [[3], [3], [3]]),
        ([3, 3, 3], 3, [[3], [3], [3]]),
        ([1, 1, 1, 1], 2, [[1, 1], [1, 1]]),
        ([1, 1, 100, 1], 2, [[1, 1], [100, 1]]),
        ([5, 5], 1, [[5, 5]]),
        ([], 2, []),
    ],
)
def test_adjacent_ranges_share_a_task(sizes, groups_max, shares):
    found = group_ranges(pieces_of(*sizes), groups_max)
    assert [[piece.row_count for piece in group] for group in found] == shares


@pytest.mark.parametrize("crash", [None, "partitions", "task", "sink"])
def test_batch_of_many_queues_has_few_tasks_and_repeats_the_same_rows(
    rocketpoll_broker, crash, request
):
    topic = f"many-{crash}"
    rocketpoll_broker.create_topic(topic, 100)
    bodies = send(rocketpoll_broker, topic, 300)
    query = Engine(rocketpoll_broker.address, subscribe=topic, maxPartitions=4)
    query.start()
    request.addfinalizer(query.stop)
    start, _ = query._reader.initialOffset(), query.trigger()
    assert len(query._reader.partitions(start, query.end())) == 4
    assert_read(query, bodies)
    bodies += send(rocketpoll_broker, topic, 150)
    query.crash_at = crash
    if crash is not None:
        with pytest.raises(Crashed):
            query.trigger()
        query.crash_at = None
        query.start()
    query.run()
    assert_read(query, bodies)
