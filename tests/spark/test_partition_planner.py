"""Queues share limits, and ranges are divided into partitions."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from rmq_spark.spark.plan.partition_planner import (
    Backlog,
    OffsetRange,
    divide_ranges,
    rows_within_bytes,
    share_rows,
)
from rmq_spark.wire.message_queue import MessageQueue

queues = st.builds(MessageQueue, st.sampled_from("TU"), st.sampled_from("ab"), st.integers(0, 5))
backlogs = st.dictionaries(
    queues, st.builds(Backlog, st.integers(0, 10_000), st.integers(0, 9)), max_size=12
)
A, B, C = (MessageQueue("T", "b", number) for number in range(3))


@given(backlogs, st.integers(1, 20_000))
def test_row_limit_is_used_up_and_never_exceeded(given_backlogs, rows):
    taken = share_rows(given_backlogs, rows)
    total = sum(backlog.messages for backlog in given_backlogs.values())
    assert sum(taken.values()) == min(rows, total)
    assert all(0 < count <= given_backlogs[queue].messages for queue, count in taken.items())


@given(backlogs, st.integers(1, 20_000))
def test_rate_limit_gives_every_queue_a_share(given_backlogs, rows):
    waiting = {queue for queue, backlog in given_backlogs.items() if backlog.messages}
    taken = share_rows(given_backlogs, rows)
    assert len(taken) == min(len(waiting), rows)


@given(backlogs, st.integers(1, 20_000))
def test_limit_shares_follow_the_waiting_messages(given_backlogs, rows):
    taken = share_rows(given_backlogs, rows)
    for one, other in itertools.permutations(taken, 2):
        if given_backlogs[one].messages >= given_backlogs[other].messages and len(taken) < rows:
            assert (
                taken[one] >= taken[other] - len(taken) - 1
            )  # rows left over by rounding go to the oldest messages


def test_row_limit_is_shared_in_proportion_to_backlogs():
    taken = share_rows({A: Backlog(1000), B: Backlog(100), C: Backlog(0)}, 110)
    assert taken == {A: 100, B: 10}


def test_rate_limit_below_queue_count_prefers_longest_waiting():
    assert share_rows(
        {A: Backlog(9, since_ms=30), B: Backlog(9, since_ms=10), C: Backlog(9, since_ms=20)}, 2
    ) == {
        B: 1,
        C: 1,
    }


def test_byte_limit_becomes_rows_by_each_queues_message_size():
    given_backlogs = {A: Backlog(100), B: Backlog(100)}
    assert rows_within_bytes(given_backlogs, {A: 10.0, B: 30.0}, 4_000) == 200
    assert rows_within_bytes(given_backlogs, {A: 10.0, B: 30.0}, 2_000) == 100
    assert rows_within_bytes(given_backlogs, {A: 10.0, B: 30.0}, 1) == 1


ranges = st.dictionaries(
    queues,
    st.tuples(st.integers(0, 1000), st.integers(0, 1000)).map(lambda pair: (pair[0], sum(pair))),
    max_size=8,
)


@given(ranges, st.none() | st.integers(1, 60), st.none() | st.integers(1, 500))
def test_planned_pieces_cover_each_offset_once(given_ranges, pieces_min, rows_max):
    found = divide_ranges(given_ranges, pieces_min, rows_max)
    for queue, (start, end) in given_ranges.items():
        at = start
        for piece in (piece for piece in found if piece.queue == queue):
            assert piece.start == at < piece.end
            at = piece.end
        assert at == end
    total = sum(end - start for start, end in given_ranges.values())
    assert len(found) >= min(pieces_min or 0, total)
    assert all(piece.end - piece.start <= (rows_max or total) for piece in found)
    assert found == divide_ranges(dict(reversed(given_ranges.items())), pieces_min, rows_max)


def test_large_queue_range_is_divided_and_small_ones_are_kept_whole():
    assert divide_ranges({A: (0, 900), B: (5, 15)}, ranges_min=4) == [
        OffsetRange(A, 0, 225),
        OffsetRange(A, 225, 450),
        OffsetRange(A, 450, 675),
        OffsetRange(A, 675, 900),
        OffsetRange(B, 5, 15),
    ]


def test_empty_ranges_give_no_partition():
    assert divide_ranges({A: (7, 7), B: (9, 3)}, ranges_min=5, rows_max=1) == []
