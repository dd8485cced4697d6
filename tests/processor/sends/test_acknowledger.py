"""Sends that wait for a flush are answered together and in order, also when the flush is late or
fails."""

import asyncio
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.brokers.in_process import in_loop, run
from support.stores.small_store import small_config

from rocketpoll.broker.processor.sends.acknowledger import Acknowledger
from rocketpoll.broker.server.fair_scheduler import FairScheduler
from rocketpoll.broker.settings.config import BrokerConfig
from rocketpoll.broker.store.config import FlushDiskType
from rocketpoll.broker.store.errors import StoreFailed
from rocketpoll.broker.store.results import PutMessageResult, PutMessageStatus

OK, LATE, FAILED = (
    PutMessageStatus.PUT_OK,
    PutMessageStatus.FLUSH_DISK_TIMEOUT,
    PutMessageStatus.SERVICE_NOT_AVAILABLE,
)


class Disk:
    """A store whose flushes end when the test calls for it."""

    def __init__(self):
        self.asked = []
        self.flushes_asked = 0
        self.confirmed = 0

    def confirm_offset(self):
        return self.confirmed

    def flush_future(self, end_offset):
        self.flushes_asked += 1
        future = Future()
        if end_offset <= self.confirmed:
            future.set_result(None)
        else:
            self.asked.append((end_offset, future))
        return future

    def finish(self, confirmed):
        self.confirmed = confirmed
        self.asked.pop(0)[1].set_result(None)

    def fail(self, error):
        self.asked.pop(0)[1].set_exception(error)


class Waiting:
    """An acknowledger and its responses by client."""

    def __init__(self, *, is_sync=True, run_steps=None, **settings):
        self.disk = Disk()
        self.said = []
        self.took_ms = []
        self.loop = asyncio.get_running_loop()
        flushing = FlushDiskType.SYNC_FLUSH if is_sync else FlushDiskType.ASYNC_FLUSH
        usual = {
            "sync_flush_timeout_ms": 5_000,
            "send_queue_capacity": 3,
            "send_wait_max_ms": 1_000,
        }
        self.acknowledger = Acknowledger(
            SimpleNamespace(
                config=BrokerConfig(
                    store=small_config(Path(), flush_disk_type=flushing), **{**usual, **settings}
                ),
                store=self.disk,
                loop=self.loop,
                stats=SimpleNamespace(put_latency=SimpleNamespace(add=self._waited)),
                run_steps=run_steps or FairScheduler(self.loop).run_steps,
            )
        )

    def _waited(self, took_ms, sends):
        self.took_ms.extend([took_ms] * sends)

    def send(self, *ends):
        for end in ends:
            result = PutMessageResult(OK, end - 10, 0, end)
            self.acknowledger.when_stored(result, self.said.append)

    def outcomes(self):
        return [(result.end_offset, result.status) for result in self.said]


async def turn():
    """Run the callbacks that are due."""
    for _ in range(10):
        await asyncio.sleep(0)


@in_loop
async def test_sends_during_a_flush_wait_for_the_next_flush():
    waiting = Waiting()
    waiting.send(10)
    await turn()
    waiting.send(20)
    await turn()
    assert [end for end, _ in waiting.disk.asked] == [10]
    waiting.disk.finish(10)
    await turn()
    assert waiting.outcomes() == [(10, OK)]
    assert [end for end, _ in waiting.disk.asked] == [20]
    waiting.disk.finish(20)
    await turn()
    assert waiting.outcomes() == [(10, OK), (20, OK)]


@in_loop
async def test_send_covered_by_the_running_flush_is_acknowledged_with_it():
    waiting = Waiting()
    waiting.send(10)
    await turn()
    waiting.send(20)
    waiting.disk.finish(20)
    await turn()
    assert waiting.outcomes() == [(10, OK), (20, OK)]


@in_loop
async def test_timed_out_sends_are_flushed_when_the_disk_recovers():
    """Otherwise consumers would not see the message before the next send."""
    waiting = Waiting()
    waiting.send(10)
    await turn()
    waiting.send(20)
    await turn()
    waiting.loop.move(5)
    await turn()
    assert waiting.outcomes() == [(10, LATE), (20, LATE)]
    waiting.disk.finish(10)
    await turn()
    assert [end for end, _ in waiting.disk.asked] == [20]
    waiting.disk.finish(20)
    await turn()
    assert waiting.disk.asked == []
    assert waiting.acknowledger.queue() == (0, 0)


APPEND, TELL, FLUSH, TURN = "append", "tell", "flush", "turn"


class Log:
    """A log that gets sends of several kinds, whose flushes are reported in any order."""

    def __init__(self, waiting, dice):
        self.waiting = waiting
        self.dice = dice
        self.written = 0
        self.appended = []
        self.answered = []
        self.turns = 0
        self.has_told = False

    async def run(self, what):
        if what == APPEND:
            self.written += 10
            self.appended.append(self.written)
        elif what == TELL:
            self._tell()
        elif what == FLUSH:
            self._flush()
        else:
            self._tell()
            self.turns += self.has_told
            self.has_told = False
            await turn()

    def _tell(self):
        self.dice.shuffle(self.appended)
        for end in self.appended:
            self.has_told = True
            waits = self.dice.random() < 0.7
            result = PutMessageResult(OK, end - 10, 0, end)
            answer = self._answer_on_disk if waits else self.answered.append
            self.waiting.acknowledger.when_stored(result, answer, waits=waits)
            assert (result in self.answered) is not waits
        self.appended.clear()

    def _answer_on_disk(self, result):
        assert result.end_offset <= self.waiting.disk.confirmed
        self.answered.append(result)

    def _flush(self):
        disk = self.waiting.disk
        disk.confirmed = self.written
        asked, disk.asked = disk.asked, []
        for end, future in asked:
            if end <= disk.confirmed:
                future.set_result(None)
            else:
                disk.asked.append((end, future))


@given(st.lists(st.sampled_from([APPEND, APPEND, TELL, FLUSH, TURN]), max_size=60), st.randoms())
@in_loop
async def test_each_send_is_answered_once_and_never_before_its_flush(does, dice):
    waiting = Waiting(send_queue_capacity=1_000)
    log = Log(waiting, dice)
    for what in [*does, TURN, FLUSH, TURN, FLUSH, TURN]:
        await log.run(what)
    assert {each.status for each in log.answered} <= {OK}
    assert sorted(each.end_offset for each in log.answered) == list(range(10, log.written + 1, 10))
    assert waiting.acknowledger.queue() == (0, 0)
    assert waiting.disk.flushes_asked <= log.turns


@in_loop
async def test_acknowledger_measures_waiting_time_of_each_send():
    waiting = Waiting()
    waiting.send(10)
    await turn()
    waiting.loop.move(2)
    waiting.send(20)
    waiting.disk.finish(20)
    await turn()
    first, second = waiting.took_ms
    assert 2_000 <= first <= 4_000
    assert second < 2_000


@pytest.mark.parametrize(
    ("end", "status"),
    [
        (lambda waiting: waiting.disk.finish(30), OK),
        (lambda waiting: waiting.disk.fail(StoreFailed("gone")), FAILED),
        (lambda waiting: waiting.loop.move(5), LATE),
    ],
)
def test_failing_answer_does_not_block_other_acknowledgements(end, status, caplog):
    async def tell():
        waiting = Waiting()

        def broken(_):
            raise ZeroDivisionError

        waiting.send(10)
        waiting.acknowledger.when_stored(PutMessageResult(OK, 10, 0, 20), broken)
        waiting.send(30)
        await turn()
        end(waiting)
        await turn()
        assert waiting.outcomes() == [(10, status), (30, status)]
        assert waiting.acknowledger.queue().size == 0

    run(tell())
    assert "a send that ended at 20 could not be answered" in caplog.text


@in_loop
async def test_zero_flush_timeout_does_not_block_later_flushes():
    waiting = Waiting(sync_flush_timeout_ms=0)
    waiting.send(10)
    waiting.acknowledger._expire()  # as if it came before the end of the turn
    await turn()
    assert waiting.outcomes() == [(10, LATE)]
    assert [end for end, _ in waiting.disk.asked] == [10]  # visible only after this flush
    waiting.disk.finish(10)
    waiting.send(20)
    await turn()
    assert [end for end, _ in waiting.disk.asked] == [20]


@in_loop
async def test_slow_disk_makes_the_broker_busy():
    waiting = Waiting()
    assert waiting.acknowledger.busy_reason() is None
    waiting.send(10, 20)
    assert waiting.acknowledger.busy_reason() is None
    waiting.loop.move(1.5)
    assert "[PCBUSY_CLEAN_QUEUE]" in waiting.acknowledger.busy_reason()
    assert waiting.acknowledger.queue().size == 2
    assert waiting.acknowledger.queue().head_wait_ms >= 1_500
    waiting.send(30)
    assert "[REJECTREQUEST]system busy, 3 sends" in waiting.acknowledger.busy_reason()
    await turn()
    waiting.disk.finish(30)
    await turn()
    assert waiting.acknowledger.busy_reason() is None


@pytest.mark.parametrize(
    "end",
    [
        lambda waiting: waiting.disk.finish(10),
        lambda waiting: waiting.disk.fail(StoreFailed("gone")),
        lambda waiting: waiting.loop.move(5),
    ],
)
@in_loop
async def test_drain_waits_for_pending_acknowledgements(end):
    waiting = Waiting()
    await waiting.acknowledger.drain(60)
    waiting.send(10)
    await turn()
    settled = asyncio.ensure_future(waiting.acknowledger.drain(60))
    await turn()
    assert not settled.done()
    end(waiting)
    await turn()
    assert settled.done()


@in_loop
async def test_drain_times_out_and_answers_every_send():
    waiting = Waiting()
    waiting.send(10, 20)
    settled = asyncio.ensure_future(waiting.acknowledger.drain(4))
    await turn()
    waiting.loop.move(4)
    await turn()
    assert settled.done()
    assert waiting.outcomes() == [(10, LATE), (20, LATE)]


@in_loop
async def test_drain_delivers_flushed_acknowledgements_that_are_queued():
    steps = []
    waiting = Waiting(run_steps=steps.append)
    waiting.send(10, 20)
    await turn()
    waiting.disk.finish(20)
    await turn()
    assert (len(steps), waiting.said) == (1, [])  # other sends come first
    settled = asyncio.ensure_future(waiting.acknowledger.drain(4))
    await turn()
    waiting.loop.move(4)
    await turn()
    assert settled.done()
    assert waiting.outcomes() == [(10, OK), (20, OK)]
