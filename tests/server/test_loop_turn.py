"""Time slices of the loop: how long it works before other clients get their turn; the work itself
moves the clock."""

import asyncio
from concurrent.futures import Future
from functools import partial

from hypothesis import given
from hypothesis import strategies as st
from support.brokers.in_process import run
from support.suite.coroutine_tests import run_by

from rocketpoll.broker.server.fair_scheduler import (
    DEFERRED_WRITES_MAX,
    NEW_WORK_SECONDS,
    QUEUED_WORK_SECONDS,
    SLICE_SECONDS,
    TURN_SECONDS,
    FairScheduler,
)


class Work:
    """Steps of a given duration each; records the turn of the loop in which each runs."""

    def __init__(self, name, steps, seconds, diary):
        self.name, self.left, self.seconds, self.diary = name, steps, seconds, diary

    def __iter__(self):
        loop = asyncio.get_running_loop()
        while self.left:
            self.left -= 1
            loop.move(self.seconds)
            self.diary.append(self.name)
            yield


def tell_of(story):
    """Run a scenario on a loop whose clock only work moves."""

    async def whole():
        loop = asyncio.get_running_loop()
        loop.stand_still()
        await story(FairScheduler(loop))

    run(whole())


on_scheduler = run_by(tell_of)


async def gaps_until(condition):
    """Return the seconds between turns until a condition holds: how long other clients wait."""
    loop, gaps = asyncio.get_running_loop(), []
    for _ in range(10_000):
        if condition():
            return gaps
        before = loop.time()
        await asyncio.sleep(0)
        gaps.append(loop.time() - before)
    raise AssertionError("it has not come to that")


@on_scheduler
async def test_steps_that_fit_in_a_slice_run_at_once(turn):
    diary = []
    turn.run_steps(iter(Work("a", 3, SLICE_SECONDS / 4, diary)))
    assert diary == ["a"] * 3


@on_scheduler
async def test_steps_yield_to_short_requests_after_each_slice(turn):
    """However many items are queued, and while more are added."""
    diary, waited = [], []
    step = SLICE_SECONDS / 4
    turn.run_steps(iter(Work("first", 100, step, diary)))
    assert len(diary) == 4
    for number in range(100):
        turn.run_steps(iter(Work(number, 20, step, diary)))
    await asyncio.sleep(0)
    while not turn.is_idle:
        before = len(diary)
        await asyncio.sleep(0)
        assert turn.run(lambda _: True)
        waited.append(len(diary) - before)
    assert max(waited) <= 4 + 1
    assert len(diary) == 100 + 100 * 20


@on_scheduler
async def test_queue_gets_as_much_as_short_requests_up_to_its_part(turn):
    """Requests that wait for a turn do not wait for all that arrived later."""
    loop, diary = asyncio.get_running_loop(), []
    for number in range(10):
        turn.run_steps(iter(Work(number, 100, 0.001, diary)))
    for seconds, share in ((0, 2), (0.001, 2), (0.004, 4), (0.009, 7)):
        await asyncio.sleep(0)
        turn.run(lambda _, seconds=seconds: loop.move(seconds) is None)
        before = len(diary)
        await asyncio.sleep(0)
        assert share <= len(diary) - before <= share + 1


@on_scheduler
async def test_queued_work_runs_round_robin(turn):
    diary = []
    works = [Work(name, 40, 1.5 * SLICE_SECONDS, diary) for name in "abc"]
    for work in works:
        turn.run_steps(iter(work))
    del diary[:]
    await gaps_until(lambda: not any(work.left for work in works))
    assert diary[:9] == list("abcabcabc")


@on_scheduler
async def test_new_work_runs_at_once_beside_queued_work(turn):
    diary = []
    heavy = Work("heavy", 1_000, 0.001, diary)
    turn.run_steps(iter(heavy))
    for _ in range(20):
        await asyncio.sleep(0)
        assert turn.run(lambda _: True)
    assert heavy.left


@on_scheduler
async def test_loop_turn_with_many_queued_works_yields_in_time(turn):
    diary = []
    works = [Work(number, 1, 0.006, diary) for number in range(40)]
    for work in works:
        turn.run_steps(iter(work))
    assert len(diary) == 2
    gaps = await gaps_until(lambda: len(diary) == 40)
    assert max(gaps) <= QUEUED_WORK_SECONDS + 0.006
    assert diary == sorted(diary)


@on_scheduler
async def test_work_that_waits_for_something_takes_no_turn_until_that_is_done(turn):
    awaited, diary = Future(), []

    def steps():
        diary.append("asks")
        yield awaited
        diary.append("goes on")

    turn.run_steps(steps())
    for _ in range(5):
        await asyncio.sleep(0)
    assert (diary, len(turn._queue)) == (["asks"], 0)
    awaited.set_exception(OSError())  # the waiting steps get the error
    await gaps_until(lambda: len(diary) == 2)


def test_completion_after_loop_close_is_ignored():
    async def story():
        turn, awaited = FairScheduler(asyncio.get_running_loop()), Future()
        turn.when_done(awaited, lambda: None)
        return awaited

    asyncio.run(story()).set_result(None)


def long_steps(name, count, diary):
    """Return steps that each take a whole turn, and ask for one before."""
    loop = asyncio.get_running_loop()
    asked = Future()
    asked.set_result(None)
    for _ in range(count):
        yield asked
        loop.move(0.019)
        diary.append(name)
        yield None


@on_scheduler
async def test_long_step_gets_a_turn_of_its_own(turn):
    loop, diary, gaps = asyncio.get_running_loop(), [], []
    turn.run_steps(iter(Work("before", 5, 0.001, diary)))
    turn.run_steps(long_steps("long", 2, diary))
    behind = loop.time()
    for _ in range(12):
        before = loop.time()
        turn.run_steps(iter(Work("new", 1, 0.001, diary)))
        turn.run_steps(iter(Work("new", 4, 0.003, diary)))
        gaps.append(loop.time() - behind)  # after the steps already in the line
        behind = loop.time()
        await asyncio.sleep(0)
        gaps.append(loop.time() - before)  # new steps come before it
    gaps += await gaps_until(lambda: turn.is_idle)
    assert max(gaps) <= TURN_SECONDS
    assert diary.count("long") == 2
    assert diary.count("new") == 12 * 5


@on_scheduler
async def test_works_of_a_whole_turn_do_not_starve_queued_or_new_ones(turn):
    diary = []
    for number in range(20):
        turn.run_steps(long_steps(number, 1, diary))
    turn.run_steps(iter(Work("heavy", 60, 0.001, diary)))
    began = len(diary)
    for _ in range(6):
        await asyncio.sleep(0)
        turn.run_steps(iter(Work("new", 1, 0.001, diary)))
    assert diary[began:].count("heavy") >= 4
    assert diary.count("new") >= 3
    await gaps_until(lambda: turn.is_idle)
    assert [each for each in diary if each not in {"heavy", "new"}] == list(range(20))


@on_scheduler
async def test_work_within_work_shares_its_time(turn):
    inner = Work("inner", 20, 0.005, [])

    def outer():
        asyncio.get_running_loop().move(0.008)
        turn.run_steps(iter(inner))
        yield

    turn.run_steps(outer())
    assert 20 - inner.left == 1
    await gaps_until(lambda: not inner.left)


@on_scheduler
async def test_failing_queued_work_does_not_block_other_work(turn):
    diary = []

    def failing():
        asyncio.get_running_loop().move(TURN_SECONDS)
        yield
        raise OSError("bad sector")

    turn.run_steps(failing())
    turn.run_steps(iter(Work("other", 1, 0, diary)))
    await gaps_until(lambda: diary)
    assert diary == ["other"]


@on_scheduler
async def test_deferred_writes_keep_order_and_are_limited_per_turn(turn):
    written, by_turn = [], []
    for number in range(2 * DEFERRED_WRITES_MAX + 50):
        turn.defer_write(partial(written.append, number))
    assert (written, turn.is_idle) == ([], False)
    while not turn.is_idle:
        before = len(written)
        await asyncio.sleep(0)
        by_turn.append(len(written) - before)
    assert by_turn == [DEFERRED_WRITES_MAX, DEFERRED_WRITES_MAX, 50]
    assert written == sorted(written)


@on_scheduler
async def test_failing_deferred_write_does_not_block_other_writes(turn):
    written = []
    turn.defer_write(lambda: written.append(1 / 0))
    turn.defer_write(lambda: written.append("other"))
    await asyncio.sleep(0)
    assert written == ["other"]


@on_scheduler
async def test_unused_turn_schedules_no_callback(turn):
    planned = []
    turn._call_soon = planned.append
    for _ in range(10):
        turn.run(lambda _: True)
    assert planned == []


@given(
    works=st.lists(
        st.tuples(st.integers(1, 30), st.sampled_from([0.0001, 0.001, 0.004])), max_size=20
    ),
    between=st.lists(st.integers(0, 3), max_size=20),
)
def test_scheduler_finishes_all_work_within_turn_limits(works, between):
    async def tell(turn):
        loop, diary, gaps = asyncio.get_running_loop(), [], []
        left = [
            Work(number, steps, seconds, diary) for number, (steps, seconds) in enumerate(works)
        ]
        for work, turns in zip(left, between + [0] * len(left), strict=False):
            before = loop.time()
            turn.run_steps(iter(work))
            gaps.append(loop.time() - before)
            for _ in range(turns):
                before = loop.time()
                await asyncio.sleep(0)
                gaps.append(loop.time() - before)
        gaps += await gaps_until(lambda: not any(work.left for work in left))
        assert max(gaps, default=0) <= NEW_WORK_SECONDS + QUEUED_WORK_SECONDS + 2 * 0.004 + 1e-9
        for number, (steps, _) in enumerate(works):
            assert diary.count(number) == steps

    tell_of(tell)
