"""Discontinuities of queues, tested with a model queue: a list of messages with times."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.spark.source_queries import queue_of

from rmq_spark.spark.brokers.queue_client import MessageFingerprint
from rmq_spark.spark.plan.queue_identity import BatchRange, OffsetBounds, QueueIdentity
from rmq_spark.spark.plan.source_offset import QueuePosition, SourceOffset

QUEUE = queue_of("T")


class Held:
    """One queue's messages: their store times and marks from an offset on; None is an offset
    without a message. It has the methods of `QueueClient`."""

    def __init__(self, first, *times_ms, marks=None):
        self.first = first
        self.times_ms = times_ms
        self.marks = marks or [0] * len(times_ms)

    @property
    def bounds(self):
        return OffsetBounds(self.first, self.first + len(self.times_ms))

    def fingerprints(self, places):
        first, last = self.bounds
        return {
            place: MessageFingerprint(
                self.times_ms[place.queue_offset - first],
                100,
                self.marks[place.queue_offset - first],
            )
            for place in places
            if first <= place.queue_offset < last
            and self.times_ms[place.queue_offset - first] is not None
        }

    def offsets_for_times(self, wanted):
        return {
            queue: next(
                (at for at in range(start, end) if (self._time_ms(at) or 0) >= timestamp_ms),
                end,
            )
            for queue, (timestamp_ms, start, end) in wanted.items()
        }

    def first_at_or_after(self, places):
        return {
            place: next(
                at for at in range(place.queue_offset, self.bounds.next_offset) if self._time_ms(at)
            )
            for place in places
        }

    def _time_ms(self, at):
        return self.times_ms[at - self.first]


def break_of(held, *position):
    position = QueuePosition(*position)
    return QueueIdentity(held).discontinuities({QUEUE: position}, {QUEUE: held.bounds}).get(QUEUE)


def test_expired_last_message_is_no_break_of_the_queue():
    assert break_of(Held(0, 10, 20, None, 30), 3, 20) is None
    assert break_of(Held(2, None, 30), 3, 20) is None


def test_missing_last_message_with_newer_ones_before_it_is_a_break():
    """A recreated topic may have rolled-back rows at the offsets that were read."""
    found = break_of(Held(0, 21, None, None, 30), 3, 20)
    assert found.resume_offset == 0
    assert (
        "it has no message at offset 2, and had one stored at 20 ms when it was read" in found.loss
    )


def test_grown_queue_is_no_break():
    assert break_of(Held(0, 1, 2, 3), 2, 2) is None
    assert break_of(Held(1, 2, 3), 2, 2) is None
    assert break_of(Held(0), 0, None) is None


@pytest.mark.parametrize(
    ("held", "said", "go_on"),
    [
        (Held(5, 6, 7), "has lost offsets 3 to 4", 5),  # expired
        (
            Held(0, 1, 2),
            "ends at offset 2, but its position was 3 before",
            2,
        ),  # lost its end
        # lost its end; another message has the time of the last one
        (Held(0, 1, 3), "ends at offset 2", 2),
        (
            Held(0, 1, 2, 9, 9),
            "is not the one that was read",
            2,
        ),  # lost its end and has grown again
        (Held(0, 7, 8, 9, 9), "is not the one that was read", 0),  # recreated, and longer
        (Held(0, 7), "ends at offset 1", 0),  # recreated, and shorter
        (Held(0), "ends at offset 0", 0),
    ],
)
def test_break_reports_data_loss_and_resume_offset(held, said, go_on):
    """The query has read offsets 0 to 2, stored at 1, 2 and 3."""
    found = break_of(held, 3, 3)
    assert said in found.loss
    assert found.resume_offset == go_on


def test_break_without_a_store_time_resumes_at_the_end():
    assert break_of(Held(0, 1, 2), 3, None).resume_offset == 2


ascending = st.lists(st.integers(1, 30), max_size=12).map(sorted)


@given(ascending, st.integers(0, 12), ascending, st.integers(0, 12))
def test_break_after_tail_loss_reads_no_message_twice_and_skips_none(before, kept, added, first):
    """The queue has lost its end, or everything, and has grown since, with a clock that
    moves on."""
    read_ms = max(before, default=0)
    left = before[: min(kept, len(before))]
    times = [*left, *(read_ms + each for each in added)]
    held = Held(0, *times)
    if not before:
        return
    found = break_of(held, len(before), read_ms)
    go_on = len(before) if found is None else found.resume_offset
    unread = [at for at, time_ms in enumerate(times) if time_ms > read_ms]
    if found is not None or len(left) == len(before):
        assert list(range(go_on, len(times))) == unread


def test_messages_of_equal_store_time_are_distinguished_by_marks():
    same = Held(0, 5, 9, 9, 9, marks=[1, 2, 3, 4])
    assert break_of(same, 3, 9, 3) is None
    assert break_of(same, 3, 9, None) is None  # from a checkpoint of an earlier release
    found = break_of(same, 3, 9, 7)
    assert "has the same store time, 9 ms, but is another one" in found.loss
    assert "those of that time or later begin at offset 1: all are read" in found.loss
    assert found.resume_offset == 1


@given(ascending, st.integers(0, 12), ascending)
def test_break_with_a_stopped_clock_skips_no_new_message(before, kept, added):
    """New messages get the time of the last one until the clock has caught up.

    If it catches up before the queue has its former length, only the time shows the loss.
    """
    if not before:
        return
    read_ms, left = before[-1], before[: min(kept, len(before))]
    times = [*left, *(max(read_ms, each) for each in added)]
    marks = [*range(len(left)), *(100 + at for at in range(len(added)))]
    found = break_of(Held(0, *times, marks=marks), len(before), read_ms, len(before) - 1)
    if len(left) == len(before):
        assert found is None
    elif len(times) >= len(before) and times[len(before) - 1] == read_ms:
        unread_before = [at for at in range(len(left)) if times[at] < read_ms]
        assert len(unread_before) <= found.resume_offset <= len(left)


@given(ascending, st.integers(0, 12), st.lists(st.integers(1, 60), max_size=24).map(sorted))
def test_recreated_queue_at_least_as_long_is_read_whatever_its_store_times(before, kept, added):
    """The broker was restored from an older copy, or the topic recreated, with other times."""
    left = before[: min(kept, len(before) - 1)] if before else []
    times = [*left, *(max([each, *left[-1:]]) for each in added)]
    if not before or len(times) < len(before):
        return
    marks = [*range(len(left)), *(100 + at for at in range(len(added)))]
    found = break_of(Held(0, *times, marks=marks), len(before), before[-1], len(before) - 1)
    assert found.resume_offset < len(before)  # at least that message was not read
    if times[len(before) - 1] < before[-1]:
        assert found.resume_offset == 0
        assert "all are read" in found.loss


def left_of(held, start, end, began=None):
    """Return the remaining part of a batch, from its start or from the new start of the queue."""
    ranges = {QUEUE: BatchRange(start[0] if began is None else began, end[0])}
    offsets = [SourceOffset({QUEUE: QueuePosition(*each)}) for each in (start, end)]
    if began is not None:
        offsets[1] = SourceOffset(offsets[1].positions, {QUEUE: began})
    left, losses = QueueIdentity(held).surviving_ranges(*offsets, ranges, {QUEUE: held.bounds})
    return left.get(QUEUE), losses


def test_intact_planned_batch_is_read_as_planned():
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
def test_batch_of_a_broken_queue_reads_what_is_left(held, left, said):
    found, losses = left_of(held, (2, 2), (4, 4))
    assert found == left
    assert said in " ".join(losses)


def test_planned_batch_reports_loss_of_its_only_message():
    """For example because the topic was recreated, and rolled-back rows left gaps."""
    found, losses = left_of(Held(0, None), (0,), (1, 4))
    assert found == (0, 1)
    [said] = losses
    assert "has lost the message at offset 0, stored at 4 ms, before it was read" in said


def test_planned_batch_over_a_recreated_queue_of_one_store_time_reads_nothing():
    held = Held(0, *[4] * 9, marks=range(10, 19))
    found, losses = left_of(held, (2, 4, 1), (4, 4, 3))
    assert found is None
    assert "offset 3 has the same store time, 4 ms, but is another one" in " ".join(losses)
    assert break_of(held, 4, 4, 3).resume_offset == 0


@pytest.mark.parametrize(
    "held",
    [Held(0, 1, 2, 3, 3, 3, 3), Held(0, *[1] * 6), Held(0, 1, 1, 1)],
    ids=["an older copy", "made again", "made again, and shorter"],
)
def test_messages_after_clock_correction_are_left_to_the_next_batch(held):
    """The batch from offset 2 to 4 was planned while the clock was ahead."""
    found, losses = left_of(held, (2, 2), (4, 9))
    assert found is None
    assert len(losses) == 1


def test_batch_from_the_queue_start_compares_only_its_end():
    assert left_of(Held(0, 9, 9, 9, 9), (2, 5), (4, 9), began=0) == ((0, 4), [])
