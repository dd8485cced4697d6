"""Delivery times of delayed messages: never early, and late by at most the level's resolution."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketpoll.broker.schedule.schedule_message_service import (
    MARKS_PER_DELAY,
    RESOLUTION_MS_MIN,
    DelayLevel,
    StartTime,
)

START = StartTime(wall_ms=1_700_000_000_000, monotonic_ms=50_000)
ROUNDED_MS = 2
DAY_MS = 24 * 3_600_000

delays = st.sampled_from([0, 1, 1_000, 5_000, 60_000, 7_200_000])
arrivals = st.lists(
    st.tuples(st.sampled_from([0, 1, 3, 9, 10, 11, 500, 8_000]), st.integers(1, 3)), max_size=60
)


def grain_ms(delay_ms):
    return max(RESOLUTION_MS_MIN, delay_ms / MARKS_PER_DELAY)


@given(delays, arrivals)
def test_delay_level_due_time_is_late_by_at_most_its_resolution(delay_ms, arrivals):
    level = DelayLevel(delay_ms, START, 7)
    now_ms, end, stored_ms = START.monotonic_ms, 7, {}
    for gap_ms, count in arrivals:
        now_ms += gap_ms
        stored_ms |= dict.fromkeys(range(end, end + count), now_ms)
        end += count
        level.record_arrival(end, now_ms)
    due_ms = {queue_offset: level.due_ms(queue_offset, 0) for queue_offset in stored_ms}
    for queue_offset, at_ms in stored_ms.items():
        if at_ms + delay_ms < now_ms - grain_ms(delay_ms) - ROUNDED_MS:
            assert due_ms[queue_offset] <= now_ms  # the exact time no longer matters
        else:
            late_ms = due_ms[queue_offset] - at_ms - delay_ms
            assert 0 < late_ms <= grain_ms(delay_ms) + ROUNDED_MS
    assert list(due_ms.values()) == sorted(due_ms.values())


@given(delays)
def test_lone_delayed_message_is_due_to_the_millisecond(delay_ms):
    level = DelayLevel(delay_ms, START, 0)
    for number in range(3):
        now_ms = START.monotonic_ms + number * (delay_ms + 50)
        level.record_arrival(number + 1, now_ms)
        assert level.due_ms(number, 0) == now_ms + delay_ms + 1


def test_repeated_arrival_keeps_the_first_store_time():
    level = DelayLevel(1_000, START, 0)
    level.record_arrival(5, 60_000)
    level.record_arrival(5, 61_000)
    level.record_arrival(3, 62_000)
    assert {level.due_ms(queue_offset, 0) for queue_offset in range(5)} == {61_001}


@given(delays, st.integers(-10 * 365 * DAY_MS, 10 * 365 * DAY_MS))
def test_message_from_before_start_is_due_after_its_remaining_delay(delay_ms, ago_ms):
    level = DelayLevel(delay_ms, START, 1)
    wait_ms = level.due_ms(0, START.wall_ms - ago_ms) - START.monotonic_ms
    left_ms = min(max(delay_ms - ago_ms, 0), delay_ms)
    assert left_ms <= wait_ms <= left_ms + ROUNDED_MS
    if 0 < left_ms < delay_ms:
        assert wait_ms == left_ms + ROUNDED_MS


@given(delays, st.integers(-DAY_MS, DAY_MS), st.integers(0, 100))
def test_message_from_before_start_is_due_before_later_arrivals(delay_ms, ago_ms, after_ms):
    level = DelayLevel(delay_ms, START, 1)
    level.record_arrival(2, START.monotonic_ms + after_ms)
    assert level.due_ms(0, START.wall_ms - ago_ms) <= level.due_ms(1, 0)


@pytest.mark.parametrize("delay_ms", [1_000, 10_000, 7_200_000])
@pytest.mark.parametrize("is_delivered", [True, False], ids=["delivered", "stuck"])
def test_delay_level_keeps_a_bounded_number_of_marks(delay_ms, is_delivered):
    level = DelayLevel(delay_ms, START, 0)
    most = delivered = 0
    for number in range(5 * MARKS_PER_DELAY):
        now_ms = START.monotonic_ms + number * delay_ms // 2_000
        level.record_arrival(number + 1, now_ms)
        while is_delivered and level.due_ms(delivered, 0) <= now_ms:
            delivered += 1
        most = max(most, len(level._marks))
    assert most <= MARKS_PER_DELAY + 2
