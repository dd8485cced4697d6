"""Committed offsets of many queues are prefetched in few requests; each is used once."""

import threading

import pytest
from support.clients.manual_scheduler import MovedTasks

from rmq_spark.client.consumer.offsets.offset_manager import (
    OFFSET_THREADS_MAX,
    PREFETCH_MS_MAX,
    OffsetPrefetcher,
)
from rmq_spark.client.errors import ConnectionClosed, SystemBusy
from rmq_spark.wire.codes import ResponseCode
from rmq_spark.wire.message_queue import MessageQueue

DOWN = ConnectionClosed("b:1", "gone")
PATIENCE_S = 60


def queues(count, broker="broker-a"):
    return [MessageQueue("T", broker, number) for number in range(count)]


class FarBroker:
    """A broker that answers only when the maximum number of requests is pending, as a
    distant one."""

    def __init__(self, requests):
        self._left, self._inside = requests, 0
        self._state = threading.Condition()
        self.round_trips, self.most = 0, 0

    def ask(self, queue):
        with self._state:
            self._inside += 1
            self.most = max(self.most, self._inside)
            mine = self.round_trips
            if self._inside == min(OFFSET_THREADS_MAX, self._left):
                self._left -= self._inside
                self._inside = 0
                self.round_trips += 1
                self._state.notify_all()
            assert self._state.wait_for(lambda: self.round_trips > mine, PATIENCE_S)
        return queue.queue_id * 10


class Bench:
    def __init__(self, ask=None):
        self.asked, self.clock, self.faults = [], MovedTasks(), {}
        self._mutex = threading.Lock()
        self.ahead = OffsetPrefetcher(ask or self.answer, self.clock)

    def answer(self, queue):
        with self._mutex:
            self.asked.append(queue)
        if queue in self.faults:
            raise self.faults[queue]
        return queue.queue_id * 10


@pytest.fixture
def bench():
    return Bench()


def test_prefetch_of_256_queues_takes_sixteen_round_trips():
    broker, wanted = FarBroker(256), queues(256)
    bench = Bench(broker.ask)
    bench.ahead.schedule(wanted)
    assert [bench.ahead.get(queue) for queue in wanted] == [10 * each for each in range(256)]
    assert (broker.round_trips, broker.most) == (256 // OFFSET_THREADS_MAX, OFFSET_THREADS_MAX)


def test_prefetch_asks_only_the_broker_of_the_queue(bench):
    here, there = queues(3), queues(3, "broker-b")
    bench.ahead.schedule([*here, *there])
    bench.ahead.get(here[1])
    assert sorted(bench.asked) == here


def test_offset_of_an_unscheduled_queue_is_queried_alone(bench):
    bench.ahead.schedule([])
    assert bench.ahead.get(queues(2)[1]) == 10
    assert bench.asked == queues(2)[1:]


def test_prefetched_offset_is_used_once_and_expires(bench):
    one, other, third = queues(3)
    bench.ahead.schedule([one, other, third])
    bench.ahead.get(one)
    bench.clock.move(PREFETCH_MS_MAX)
    bench.ahead.get(other)
    assert len(bench.asked) == 3
    bench.ahead.get(other)  # starts another prefetch
    bench.clock.move(1)
    bench.ahead.get(third)
    assert bench.asked[3:] == [other, third]


@pytest.mark.parametrize("again", [True, False])
def test_prefetch_queries_a_discarded_queue_again(bench, again):
    one, other = queues(2)
    bench.ahead.schedule([one, other])
    bench.ahead.get(one)
    bench.ahead.schedule([other]) if again else bench.ahead.discard(other)
    bench.ahead.get(other)
    assert bench.asked.count(other) == 2


def test_queue_discarded_during_its_prefetch_is_asked_for_again():
    one, other = queues(2)

    def answer(queue):
        asked.append(queue)
        bench.ahead.discard(other)
        return 0

    asked, bench = [], Bench(answer)
    bench.ahead.schedule([one, other])
    bench.ahead.get(one)
    bench.ahead.get(other)
    assert asked.count(other) == 2


def test_prefetched_offsets_of_a_slow_broker_are_equally_fresh():
    def answer(queue):
        asked.append(queue)
        if len(asked) % OFFSET_THREADS_MAX == 0:
            bench.clock.move(PREFETCH_MS_MAX)  # one round trip for all sixteen
        return queue.queue_id

    asked, wanted = [], queues(256)
    bench = Bench(answer)
    bench.ahead.schedule(wanted)
    assert [bench.ahead.get(queue) for queue in wanted] == [each.queue_id for each in wanted]
    assert len(asked) == 256


def test_failed_prefetch_is_repeated_and_others_keep_their_offsets(bench):
    one, other, third = queues(3)
    busy = SystemBusy(ResponseCode.SYSTEM_BUSY, "busy", "b:1", 14)
    bench.faults = {one: busy, third: busy}
    bench.ahead.schedule([one, other, third])
    with pytest.raises(SystemBusy):
        bench.ahead.get(one)
    assert bench.ahead.get(other) == 10
    bench.faults = {}
    with pytest.raises(SystemBusy):  # the recent result
        bench.ahead.get(third)
    assert len(bench.asked) == 3
    assert (bench.ahead.get(third), bench.ahead.get(one)) == (20, 0)
    assert sorted(bench.asked[3:]) == [one, third]


def test_prefetched_offsets_ask_an_unreachable_broker_once_not_per_queue(bench):
    wanted = queues(256)
    bench.faults = dict.fromkeys(wanted, DOWN)
    bench.ahead.schedule(wanted)
    for queue in wanted:
        with pytest.raises(ConnectionClosed):
            bench.ahead.get(queue)
    assert len(bench.asked) <= OFFSET_THREADS_MAX
    bench.faults, bench.asked[:] = {}, []
    assert [bench.ahead.get(queue) for queue in wanted] == [10 * each for each in range(256)]
    assert len(bench.asked) == 256


def test_queue_discarded_during_a_failed_prefetch_is_not_repeated():
    one, other = queues(2)

    def answer(queue):
        asked.append(queue)
        if len(asked) == 1:
            bench.ahead.discard(queue)
            raise DOWN
        return 0

    asked, bench = [], Bench(answer)
    with pytest.raises(ConnectionClosed):
        bench.ahead.get(one)
    bench.ahead.get(other)
    assert asked == [one, other]
