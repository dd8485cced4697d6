"""The loop's clock in whole milliseconds, its timer for the next event, and jobs that are due."""

import asyncio
import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.brokers.in_process import LOOPS, in_loop, run

from rocketpoll.broker.server.event_loop import DueJob, EarliestTimer, monotonic_ms, new_event_loop

each_loop = pytest.mark.usefixtures("on_each_loop")


class Rung:
    """A timer on the running loop, and the times at which it fired."""

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
@in_loop
async def test_earliest_timer_fires_once_for_all_planned_times():
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


@each_loop
@pytest.mark.parametrize("first_ms", [-1_000, 0, 1, 2])
@pytest.mark.parametrize("second_ms", [-1_000, 0, 1, 2])
@in_loop
async def test_times_that_are_nearly_now_can_be_planned_again(first_ms, second_ms):
    """uvloop runs timers that are due within half a millisecond immediately."""
    rung = Rung()
    for _ in range(20):
        start_ms = now_ms()
        rung.timer.schedule(start_ms + first_ms)
        rung.timer.schedule(start_ms + second_ms)
        await rung.once()
        assert rung.times_ms.pop() >= start_ms + min(first_ms, second_ms)
        assert rung.times_ms == []


@each_loop
@in_loop
async def test_cancelled_loop_timer_is_silent_until_scheduled_again():
    rung = Rung()
    rung.timer.cancel()
    rung.timer.schedule(now_ms() + 1_000)
    rung.timer.cancel()
    asyncio.get_running_loop().move(60)
    await asyncio.sleep(0.001)
    assert rung.times_ms == []
    rung.timer.schedule(now_ms() + 1)
    await rung.once()


@each_loop
@in_loop
async def test_earliest_timer_can_be_scheduled_while_it_fires():
    rung = Rung()
    timer = EarliestTimer(
        asyncio.get_running_loop(),
        lambda at_ms: (rung._ring(at_ms), timer.schedule(at_ms + 60_000)),
    )
    timer.schedule(now_ms())
    for count in (1, 2, 3):
        await rung.once()
        assert len(rung.times_ms) == count
        asyncio.get_running_loop().move(60)
    timer.cancel()


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


class Chore:
    """A `DueJob` on the running loop, whose clock the test moves; each run has the next outcome: a
    delay in ms, or an error."""

    def __init__(self, *outcomes):
        asyncio.get_running_loop().stand_still()
        self.outcomes = list(outcomes)
        self.times_ms = []
        self.job = DueJob(asyncio.get_running_loop(), self._run, "chores are not done")

    def _run(self, now_ms):
        self.times_ms.append(now_ms)
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return None if outcome is None else now_ms + outcome

    async def after(self, seconds, runs):
        asyncio.get_running_loop().move(seconds)
        for _ in range(20):  # turns in which the job would run, if it were due
            await asyncio.sleep(0)
        assert len(self.times_ms) == runs


@in_loop
async def test_due_job_runs_when_scheduled_and_when_it_says_that_it_is_due():
    chore = Chore(2_000, None, None)
    chore.job.schedule()
    await chore.after(0, 1)
    await chore.after(1.9, 1)
    await chore.after(0.2, 2)
    await chore.after(60, 2)
    chore.job.schedule()
    await chore.after(0, 3)
    assert chore.times_ms[1] - chore.times_ms[0] >= 2_000


def test_due_job_that_lacks_resources_runs_again_a_second_later_and_logs_once(caplog):
    async def story():
        chore = Chore(OSError(errno.ENOSPC, "full"), OSError(errno.ENOSPC, "full"), None)
        chore.job.schedule()
        await chore.after(0, 1)
        await chore.after(0.9, 1)
        await chore.after(0.2, 2)
        await chore.after(1.1, 3)
        await chore.after(60, 3)

    run(story())
    begun, ended = (record.getMessage() for record in caplog.records)
    assert begun.startswith("chores are not done, retrying: the disk is full")
    assert ended == "resolved: chores are not done"


def test_due_job_with_a_bug_is_logged_with_its_traceback_and_runs_again(caplog):
    async def story():
        chore = Chore(ZeroDivisionError("a bug"), None)
        chore.job.schedule()
        await chore.after(0, 1)
        await chore.after(1.1, 2)

    run(story())
    (record,) = caplog.records
    assert record.getMessage() == "chores are not done, retrying"
    assert isinstance(record.exc_info[1], ZeroDivisionError)


@in_loop
async def test_cancelled_due_job_does_not_run():
    chore = Chore(5, None)
    chore.job.schedule()
    await chore.after(0, 1)
    chore.job.cancel()
    await chore.after(60, 1)
