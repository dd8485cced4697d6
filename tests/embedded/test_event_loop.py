"""The event loop with a movable clock: timers fire in order, intervals once, on both kinds of
loops."""

import asyncio

import pytest

from rocketpoll.broker.embedded.faults.clock import ClockOffset
from rocketpoll.broker.embedded.faults.embedded_loop import EmbeddedLoop, new_embedded_loop
from rocketpoll.broker.embedded.faults.network import EmbeddedNetwork
from rocketpoll.broker.server.event_loop import loop_class

HOUR = 3_600.0


@pytest.fixture(params=sorted({asyncio.SelectorEventLoop, loop_class()}, key=str), ids=str)
def loop(request):
    loop = type("EmbeddedLoop", (EmbeddedLoop, request.param), {})()
    loop.set_clock_offset(ClockOffset())
    loop.network = EmbeddedNetwork()
    yield loop
    loop.close()


async def turns(count=5):
    for _ in range(count):
        await asyncio.sleep(0)


def test_clock_advance_fires_timers_in_order(loop):
    rung = []

    async def story():
        now = loop.time()
        for name, after in [("third", 3 * HOUR), ("first", HOUR), ("second", 2 * HOUR)]:
            loop.call_at(now + after, rung.append, name)
        loop.call_later(4 * HOUR, rung.append, "fourth")
        loop.call_later(9 * HOUR, rung.append, "later")
        await turns()
        assert rung == []
        loop.advance(5 * HOUR)
        assert loop.has_due_timers()
        await turns()
        assert not loop.has_due_timers()

    loop.run_until_complete(story())
    assert rung == ["first", "second", "third", "fourth"]


def test_clock_advance_fires_a_repeating_timer_once(loop):
    rung = []

    def again():
        rung.append(loop.time())
        loop.call_later(10, again)

    async def story():
        loop.call_later(10, again)
        loop.advance(HOUR)
        await turns()
        assert len(rung) == 1
        loop.advance(10)
        await turns()

    loop.run_until_complete(story())
    assert len(rung) == 2


def test_next_deadline_skips_cancelled_timers_and_intervals(loop):
    async def story():
        assert loop.next_deadline() is None
        loop.call_later(1, pytest.fail)
        assert loop.next_deadline() is None
        now = loop.time()
        loop.call_at(now + 20, pytest.fail)
        first = loop.call_at(now + 10, pytest.fail)
        assert loop.next_deadline() == now + 10
        first.cancel()
        assert loop.next_deadline() == now + 20

    loop.run_until_complete(story())


def test_cancelled_timer_of_a_moved_loop_never_fires(loop):
    rung = []

    async def story():
        loop.call_later(1, pytest.fail).cancel()
        now = loop.time()
        second = loop.call_at(now + 2, pytest.fail)
        loop.call_at(now + 1, second.cancel)
        loop.call_at(now + 3, rung.append, "third")
        loop.advance(5)
        await turns()

    loop.run_until_complete(story())
    assert rung == ["third"]


def test_timers_that_are_cancelled_do_not_pile_up(loop):
    async def story():
        for _ in range(10_000):
            loop.call_later(HOUR, pytest.fail).cancel()
        assert len(loop._timer_heap) < 500

    loop.run_until_complete(story())


def test_failing_timer_is_logged_and_does_not_block_others(loop, caplog):
    rung = []

    async def story():
        loop.call_later(1, int, "no number")
        loop.call_later(2, rung.append, "next")
        loop.advance(5)
        await turns()

    loop.run_until_complete(story())
    assert rung == ["next"]
    assert "no number" in caplog.text


def test_moved_loop_time_advances_with_the_machine_and_wakes_sleeps(loop):
    async def story():
        before = loop.time()
        await asyncio.sleep(0.002)
        assert 0.001 <= loop.time() - before < HOUR
        sleeping = asyncio.ensure_future(asyncio.sleep(HOUR, "slept"))
        await turns()
        loop.advance(HOUR)
        return await sleeping

    assert loop.run_until_complete(story()) == "slept"


def test_new_embedded_loop_keeps_the_clock_offset():
    ahead = ClockOffset()
    first = new_embedded_loop(ahead, EmbeddedNetwork())
    first.advance(HOUR)
    second = new_embedded_loop(ahead, EmbeddedNetwork())
    assert second.time() == pytest.approx(first.time(), abs=60)
    first.close()
    second.close()
