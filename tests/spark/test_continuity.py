"""Breaks of queues, held against a model: a queue that is any list of messages with times."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from source_parts import queue_of

from rmq_spark.spark.continuity import Bounds, Continuity, Range
from rmq_spark.spark.queues import Stored
from rmq_spark.spark.source_offset import QueuePosition, SourceOffset

QUEUE = queue_of("T")


class Held:
    """One queue's messages: when each was stored, from an offset on.
    It answers as `Queues` does."""

    def __init__(self, first, *times_ms):
        self.first = first
        self.times_ms = times_ms

    @property
    def bounds(self):
        return Bounds(self.first, self.first + len(self.times_ms))

    def stored(self, places):
        first, last = self.bounds
        return {
            place: Stored(self.times_ms[place.queue_offset - first], 100)
            for place in places
            if first <= place.queue_offset < last
        }

    def first_since(self, wanted):
        return {
            queue: next(
                (at for at in range(start, end) if self.times_ms[at - self.first] >= timestamp_ms),
                end,
            )
            for queue, (timestamp_ms, start, end) in wanted.items()
        }


def break_of(held, next_offset, stored_ms):
    position = QueuePosition(next_offset, stored_ms)
    return Continuity(held).breaks({QUEUE: position}, {QUEUE: held.bounds}).get(QUEUE)


def test_a_queue_that_has_only_grown_is_no_break():
    assert break_of(Held(0, 1, 2, 3), 2, 2) is None
    assert break_of(Held(1, 2, 3), 2, 2) is None
    assert break_of(Held(0), 0, None) is None


@pytest.mark.parametrize(
    ("held", "said", "go_on"),
    [
        (Held(5, 6, 7), "has lost offsets 3 to 4", 5),  # retention
        (
            Held(0, 1, 2),
            "ends at offset 2, and was read, or to be read, to 3 before",
            2,
        ),  # a lost tail
        (
            Held(0, 1, 2, 9, 9),
            "is not the one that was read",
            2,
        ),  # a lost tail that has grown again
        (Held(0, 7, 8, 9, 9), "is not the one that was read", 0),  # made again, and longer
        (Held(0, 7), "ends at offset 1", 0),  # made again, and shorter
        (Held(0), "ends at offset 0", 0),
    ],
)
def test_what_is_gone_is_said_and_the_query_goes_on_behind_what_it_has_read(held, said, go_on):
    """It has read offsets 0 to 2, stored at 1, 2 and 3."""
    found = break_of(held, 3, 3)
    assert said in found.loss
    assert found.go_on == go_on


def test_without_a_time_the_query_goes_on_at_the_end():
    assert break_of(Held(0, 1, 2), 3, None).go_on == 2


ascending = st.lists(st.integers(1, 30), max_size=12).map(sorted)


@given(ascending, st.integers(0, 12), ascending, st.integers(0, 12))
def test_nothing_is_read_twice_and_nothing_new_is_left_out(before, kept, added, first):
    """A queue of which a tail was lost, or all, and that has been added to since,
    by a clock that goes on."""
    read_ms = max(before, default=0)
    left = before[: min(kept, len(before))]
    times = [*left, *(read_ms + each for each in added)]
    held = Held(0, *times)
    if not before:
        return
    found = break_of(held, len(before), read_ms)
    go_on = len(before) if found is None else found.go_on
    unread = [at for at, time_ms in enumerate(times) if time_ms > read_ms]
    if found is not None or len(left) == len(before):
        assert list(range(go_on, len(times))) == unread


def left_of(held, start, end, began=()):
    """What is left of a batch between two positions."""
    ranges = {QUEUE: Range(start[0], end[0])}
    offsets = [SourceOffset({QUEUE: QueuePosition(*each)}) for each in (start, end)]
    offsets[1] = SourceOffset(offsets[1].positions, dict.fromkeys(began, start[0]))
    left, losses = Continuity(held).left_of(*offsets, ranges, {QUEUE: held.bounds})
    return left.get(QUEUE), losses


def test_a_planned_batch_that_is_all_there_is_read_as_it_was_planned():
    assert left_of(Held(0, 1, 2, 3, 4, 5), (2, 2), (4, 4)) == ((2, 4), [])


@pytest.mark.parametrize(
    ("held", "left", "said"),
    [
        (Held(3, 4, 5), (3, 4), "has lost offsets 2 to 2"),
        (Held(0, 1, 2, 3), (2, 3), "ends at offset 3"),
        (Held(0, 9, 9, 9, 9, 9), None, "is not the one that was read"),
        (Held(0, 9), None, "ends at offset 1"),
        (Held(9, 9), None, "has lost offsets 2 to 3"),
    ],
)
def test_of_one_that_is_not_the_rest_is_read(held, left, said):
    found, losses = left_of(held, (2, 2), (4, 4))
    assert found == left
    assert said in " ".join(losses)


def test_where_a_queue_began_within_a_batch_only_its_end_is_compared():
    assert left_of(Held(0, 9, 9, 9, 9), (0, 5), (4, 9), began=[QUEUE]) == ((0, 4), [])
