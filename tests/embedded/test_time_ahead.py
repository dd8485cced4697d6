"""The offset of a broker's clock from the machine's, now and at earlier moments."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from rocketpoll.broker.embedded.faults.clock import ClockOffset


def test_clock_offset_starts_at_zero_and_grows():
    ahead = ClockOffset()
    assert abs(ahead.now_ms() - time.time() * 1_000) < 60_000
    ahead.advance(3_600)
    ahead.advance(0.5)
    assert ahead.seconds == 3_600.5
    assert abs(ahead.now_ms() - (time.time() + 3_600.5) * 1_000) < 60_000


def test_clock_offset_of_past_times_is_the_one_of_then():
    ahead = ClockOffset()
    before = time.time() - 10
    ahead.advance(3_600)
    behind = time.time() + 10
    assert ahead.from_machine(before) == before
    assert ahead.from_machine(behind) == behind + 3_600


@given(st.lists(st.floats(0, 1e6), max_size=5), st.floats(-1e6, 1e6).map(lambda s: time.time() + s))
def test_clock_offset_conversion_is_reversible(moves, machine):
    ahead = ClockOffset()
    for seconds in moves:
        ahead.advance(seconds)
    assert abs(ahead.to_machine(ahead.from_machine(machine)) - machine) < 1e-3


def test_time_within_a_clock_jump_maps_to_the_moment_of_the_jump():
    ahead = ClockOffset()
    begun = time.time()
    ahead.advance(3_600)
    assert begun <= ahead.to_machine(begun + 1_800) <= time.time()
