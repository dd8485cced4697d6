"""The loop's clock in whole milliseconds, and its single timer for the next event."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.brokers.in_process import LOOPS, run

from rocketpoll.broker.server.event_loop import EarliestTimer, monotonic_ms, new_event_loop

each_loop = pytest.mark.usefixtures("on_each_loop")


class Rung:
    """A timer on the running loop, and the times at which it has rung."""

    def __init__(self):
        self.times_ms = []
        self.changed = asyncio.Event()
        self.timer = EarliestTimer(asyncio.get_running_loop(), self._ring)

    def _ring(self, now_ms):
        self.times_ms.append(now_ms)
        self.changed.set()

    async def once(self):
        await asyncio.wait_for(self.changed.wait(), 10)
        self.changed.clear()


def now_ms():
    return monotonic_ms(asyncio.get_running_loop())


@each_loop
def test_earliest_timer_fires_once_for_all_planned_times():
    async def story():
        rung = Rung()
        start_ms = now_ms()
        for after_ms in (5_000, 3, 4_000, 2, 3):
            rung.timer.schedule(start_ms + after_ms)
        await rung.once()
        assert len(rung.times_ms) == 1
        assert rung.times_ms[0] >= start_ms + 2
        asyncio.get_running_loop().move(60)
        await asyncio.sleep(0.001)
        assert len(rung.times_ms) == 1

    run(story())


@each_loop
@pytest.mark.parametrize("first_ms", [-1_000, 0, 1, 2])
@pytest.mark.parametrize("second_ms", [-1_000, 0, 1, 2])
def test_times_that_are_nearly_now_can_be_planned_again(first_ms, second_ms):
    """uvloop calls what is due within half a millisecond without a timer."""

    async def story():
        rung = Rung()
        for _ in range(20):
            start_ms = now_ms()
            rung.timer.schedule(start_ms + first_ms)
            rung.timer.schedule(start_ms + second_ms)
            await rung.once()
            assert rung.times_ms.pop() >= start_ms + min(first_ms, second_ms)
            assert rung.times_ms == []

    run(story())


@each_loop
def test_cancelled_loop_timer_is_silent_until_scheduled_again():
    async def story():
        rung = Rung()
        rung.timer.cancel()
        rung.timer.schedule(now_ms() + 1_000)
        rung.timer.cancel()
        asyncio.get_running_loop().move(60)
        await asyncio.sleep(0.001)
        assert rung.times_ms == []
        rung.timer.schedule(now_ms() + 1)
        await rung.once()

    run(story())


@each_loop
def test_earliest_timer_can_be_scheduled_while_it_fires():
    async def story():
        rung = Rung()
        timer = EarliestTimer(
            asyncio.get_running_loop(),
            lambda at_ms: (rung._ring(at_ms), timer.schedule(at_ms + 1_000)),
        )
        timer.schedule(now_ms())
        for count in (1, 2, 3):
            await rung.once()
            assert len(rung.times_ms) == count
            asyncio.get_running_loop().move(1)
        timer.cancel()

    run(story())


class ClockAlone:
    def __init__(self, seconds):
        self.time = lambda: seconds


@given(st.integers(0, 1 << 40))
def test_monotonic_ms_loses_no_millisecond_through_float_seconds(ms):
    assert monotonic_ms(ClockAlone(ms / 1_000)) == ms


@given(st.integers(0, 1 << 30), st.integers(0, 999_000))
def test_event_loop_clock_counts_whole_milliseconds(ms, nanoseconds):
    assert monotonic_ms(ClockAlone((ms * 1_000_000 + nanoseconds) / 1e9)) == ms


def test_new_event_loop_is_uvloop_where_installed():
    loop = new_event_loop()
    assert type(loop).__module__.startswith("uvloop") == ("uvloop" in LOOPS)
    loop.close()
