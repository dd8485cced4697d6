"""Threads pass actions and results to an event loop, with few wakeups."""

import asyncio
import logging
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.clients.asyncio_tests import steps, told_in_a_loop, until

from rmq_spark.client.aio.loop_bridge import DEFER_SECONDS_MAX, LoopBridge, LoopPromise, WakeEvent
from rmq_spark.client.concurrency import deferred_wakeups


class CountingLoop:
    """A loop that counts wakeups by other threads."""

    def __init__(self, loop):
        self._loop, self.woken = loop, 0

    def call_soon_threadsafe(self, call):
        self.woken += 1
        return self._loop.call_soon_threadsafe(call)


class LargeAction:
    """A callable with weak references, to see when it is freed."""

    def __call__(self):
        pytest.fail("nobody runs it")


@told_in_a_loop
async def test_actions_posted_by_threads_run_in_the_loop_in_order():
    bridge, seen = LoopBridge(asyncio.get_running_loop()), []
    here = threading.get_ident()

    def post():
        for number in range(500):
            bridge.post(lambda number=number: seen.append((number, threading.get_ident())))

    await asyncio.to_thread(post)
    await until("all", lambda: len(seen) == 500)
    assert seen == [(number, here) for number in range(500)]


@told_in_a_loop
async def test_actions_posted_to_a_busy_loop_wake_it_once():
    loop = CountingLoop(asyncio.get_running_loop())
    bridge, seen = LoopBridge(loop), []
    with ThreadPoolExecutor(1) as threads:
        for number in range(100):
            threads.submit(bridge.post, lambda number=number: seen.append(number)).result()
    assert (loop.woken, seen) == (1, [])
    await steps(2)
    assert seen == list(range(100))
    bridge.post(lambda: seen.append("late"))
    await steps(2)
    assert (loop.woken, seen[-1]) == (2, "late")


@told_in_a_loop
async def test_deferred_posts_wake_the_loop_after_the_last_one():
    loop = CountingLoop(asyncio.get_running_loop())
    bridge, seen, woken = LoopBridge(loop, lambda: 0.0), [], []

    def hand_over():
        deferred_wakeups.begin()
        for number in range(100):
            bridge.post_deferred(lambda number=number: seen.append(number))
        woken.append(loop.woken)
        deferred_wakeups.end()
        woken.append(loop.woken)

    with ThreadPoolExecutor(1) as threads:
        threads.submit(hand_over).result()
        threads.submit(bridge.post, lambda: seen.append("other")).result()
    await steps(2)
    assert (woken, loop.woken) == ([0, 1], 1)
    assert seen == [*range(100), "other"]


@told_in_a_loop
async def test_long_deferred_wakeup_wakes_the_loop_early():
    loop, now = CountingLoop(asyncio.get_running_loop()), 0.0
    bridge, seen = LoopBridge(loop, lambda: now), []
    deferred_wakeups.begin()
    bridge.post_deferred(lambda: seen.append("first"))
    assert loop.woken == 0
    now = DEFER_SECONDS_MAX
    bridge.post_deferred(lambda: seen.append("second"))
    assert loop.woken == 1
    deferred_wakeups.end()
    assert loop.woken == 1
    await steps(2)
    assert seen == ["first", "second"]


@told_in_a_loop
async def test_deferred_post_followed_by_a_plain_one_wakes_the_loop_at_once():
    loop = CountingLoop(asyncio.get_running_loop())
    bridge, seen = LoopBridge(loop, lambda: 0.0), []
    deferred_wakeups.begin()
    bridge.post_deferred(lambda: seen.append("first"))
    bridge.post(lambda: seen.append("second"))
    assert loop.woken == 1
    deferred_wakeups.end()
    await steps(2)
    assert (loop.woken, seen) == (1, ["first", "second"])


@told_in_a_loop
async def test_failing_action_is_logged_and_later_ones_run(caplog):
    bridge, seen = LoopBridge(asyncio.get_running_loop()), []
    bridge.post(lambda: 1 / 0)
    bridge.post(lambda: seen.append("next"))
    await steps(2)
    assert seen == ["next"]
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


def test_action_posted_to_a_closed_loop_is_dropped():
    loop = asyncio.new_event_loop()
    bridge = LoopBridge(loop)
    assert not bridge.is_closed
    loop.close()
    kept = [LargeAction(), LargeAction()]
    gone = [weakref.ref(action) for action in kept]
    while kept:
        bridge.post(kept.pop())
    assert bridge.is_closed
    assert [each() for each in gone] == [None, None]  # none is kept


@told_in_a_loop
async def test_loop_promise_resolves_or_fails_in_the_loop():
    bridge, told = LoopBridge(asyncio.get_running_loop()), []
    kept, broken = (LoopPromise(bridge, lambda: told.append(1)) for _ in range(2))
    await asyncio.to_thread(kept.set_result, 42)
    await asyncio.to_thread(broken.set_exception, KeyError("no"))
    assert await kept.future == 42
    with pytest.raises(KeyError):
        await broken.future
    assert told == [1, 1]


@told_in_a_loop
async def test_cancelled_promise_drops_its_result_and_calls_back():
    bridge, told = LoopBridge(asyncio.get_running_loop()), []
    promise, failing = (LoopPromise(bridge, lambda: told.append(1)) for _ in range(2))
    promise.future.cancel()
    failing.future.cancel()
    assert promise.cancelled()
    assert promise.set_running_or_notify_cancel()
    promise.set_result(42)
    failing.set_exception(KeyError("no"))
    await steps(2)
    assert told == [1, 1]


@told_in_a_loop
async def test_wake_event_wakes_all_waiters_or_times_out():
    wakes, woken = WakeEvent(asyncio.get_running_loop()), []

    async def wait(name, seconds=None):
        await wakes.wait(seconds)
        woken.append(name)

    tasks = [asyncio.create_task(wait(name)) for name in "abc"]
    await steps(1)
    tasks.pop().cancel()
    await steps(1)
    wakes.wake_all()
    await asyncio.gather(*tasks)
    assert woken == ["a", "b"]
    await wait("by the clock", 0.001)
    wakes.wake_all()  # without waiters


class TimedLoop:
    """The running loop with a movable clock, and the timers that code has set on it."""

    def __init__(self):
        self._loop, self.now, self.timers = asyncio.get_running_loop(), 0.0, []
        self.create_future = self._loop.create_future

    def time(self):
        return self.now

    def call_at(self, when, call):
        timer = Timer(when, call)
        self.timers.append(timer)
        return timer

    def go_on_to(self, now):
        """Move the clock, and run the timers that are due."""
        self.now = now
        while due := [each for each in self.timers if each.when <= now and not each.is_over]:
            due[0].is_over = True
            due[0].call()


class Timer:
    def __init__(self, when, call):
        self.when, self.call, self.is_over = when, call, False

    def cancel(self):
        self.is_over = True


@told_in_a_loop
async def test_wake_event_waits_that_are_woken_early_share_a_timer():
    loop = TimedLoop()
    wakes = WakeEvent(loop)
    for number in range(100):
        loop.now = number / 1000
        waiting = asyncio.create_task(wakes.wait(1.0))
        await steps(1)
        wakes.wake_all()
        await waiting
    assert [timer.when for timer in loop.timers] == [1.0]
    waiting = asyncio.create_task(wakes.wait(1.0))  # until 1.099
    await steps(1)
    loop.go_on_to(1.0)
    await steps(2)
    assert not waiting.done()
    assert len(loop.timers) == 2
    loop.go_on_to(1.099)
    await waiting
    assert all(timer.is_over for timer in loop.timers)


@told_in_a_loop
async def test_wake_event_waiters_have_their_own_timeouts():
    loop, woken = TimedLoop(), []
    wakes = WakeEvent(loop)

    async def wait(seconds):
        await wakes.wait(seconds)
        woken.append(seconds)

    tasks = {seconds: asyncio.create_task(wait(seconds)) for seconds in (5, None, 3, 1, 9, 7)}
    await steps(1)
    tasks[3].cancel()
    await steps(1)
    for now, expected in ((0.9, []), (1, [1]), (4, [1]), (6, [1, 5]), (20, [1, 5, 9, 7])):
        loop.go_on_to(now)
        await steps(2)
        assert woken == expected
    assert not tasks[None].done()
    wakes.close()
    await tasks[None]


@told_in_a_loop
async def test_closed_wake_event_has_no_timer():
    loop = TimedLoop()
    wakes = WakeEvent(loop)
    waiting = asyncio.create_task(wakes.wait(60))
    await steps(1)
    wakes.close()
    await waiting
    assert [timer.is_over for timer in loop.timers] == [True]
