from __future__ import annotations

import pytest
from support.clients.manual_scheduler import MovedTasks
from support.messages.received_messages import QUEUE, several

from rmq_spark.client.consumer.dispatch.consume_services import (
    LOCAL_RETRY_MS,
    ConsumeMessageConcurrentlyService,
)
from rmq_spark.client.consumer.dispatch.listeners import ConsumeConcurrentlyStatus
from rmq_spark.client.consumer.pull.pull_request import PullRequest
from rmq_spark.client.consumer.queues.process_queue import ProcessQueue


class Retries:
    """Brokers that take messages back, or do not."""

    def __init__(self):
        self.given, self.accepts = [], True

    def send_back(self, message, delay_level):
        assert message.properties == {}
        self.given.append((message.queue_offset, delay_level))
        return self.accepts


class Bench:
    def __init__(self, listener, batch_size=1, retries=True):
        self.tasks, self.retries, self.committed = MovedTasks(), Retries(), []
        self.request = PullRequest(QUEUE, ProcessQueue(self.tasks), 0)
        self.service = ConsumeMessageConcurrentlyService(
            listener,
            self.tasks,
            self.tasks,
            self.retries if retries else None,
            self.acknowledge,
            batch_size,
        )

    def acknowledge(self, request, messages):
        return request.process_queue.acknowledge(messages, self.committed.append)

    def submit(self, *offsets):
        messages = several(*offsets)
        self.request.process_queue.put_messages(messages)
        self.service.submit(self.request, messages)
        self.tasks.move(0)


def fails(*offsets, seen=None):
    """A listener that fails on these."""

    def listen(messages, _):
        if seen is not None:
            seen.append([each.queue_offset for each in messages])
        if any(each.queue_offset in offsets for each in messages):
            raise RuntimeError("no")

    return listen


def test_messages_come_in_batches():
    seen = []
    Bench(fails(seen=seen), batch_size=3).submit(*range(7))
    assert seen == [[0, 1, 2], [3, 4, 5], [6]]


def test_what_succeeds_is_done_with():
    bench = Bench(lambda *_: ConsumeConcurrentlyStatus.CONSUME_SUCCESS)
    bench.submit(0, 1)
    assert bench.committed == [1, 2]
    assert bench.retries.given == []


@pytest.mark.parametrize(
    "listener", [fails(0), lambda *_: ConsumeConcurrentlyStatus.RECONSUME_LATER]
)
def test_what_fails_is_given_back_and_then_done_with(listener):
    bench = Bench(listener)
    bench.submit(0)
    assert bench.retries.given == [(0, 0)]
    assert bench.committed == [1]


def test_what_no_broker_takes_stays_and_is_tried_again_here():
    seen = []
    bench = Bench(fails(0, seen=seen))
    bench.retries.accepts = False
    bench.submit(0, 1)
    assert bench.committed[-1] == 0
    bench.tasks.move(4_999)
    assert seen == [[0], [1]]
    bench.retries.accepts = True
    bench.tasks.move(1)
    assert seen == [[0], [1], [0]]
    assert bench.committed[-1] == 2


def test_a_part_of_a_batch_may_succeed_and_the_rest_come_when_it_is_wanted():
    def listen(_, context):
        context.ack_index = 1
        context.delay_level_when_next_consume = 5

    bench = Bench(listen, batch_size=4)
    bench.submit(0, 1, 2, 3)
    assert bench.retries.given == [(2, 5), (3, 5)]
    assert bench.committed == [2, 4]


@pytest.mark.parametrize(
    ("ack_index", "succeed"),
    [(None, 4), (3, 4), (99, 4), (0, 1), (-1, 0), (-2, 0), ("1", 0), (1.0, 0)],
)
def test_no_more_succeed_than_the_listener_has_said(ack_index, succeed):
    def listen(_, context):
        context.ack_index = ack_index

    bench = Bench(listen, batch_size=4)
    bench.submit(0, 1, 2, 3)
    assert [offset for offset, _ in bench.retries.given] == list(range(succeed, 4))


@pytest.mark.parametrize(
    ("level", "asked"), [("3", 0), (None, 0), (-7, -1), (1 << 40, (1 << 31) - 1)]
)
def test_a_delay_that_makes_no_sense_does_not_keep_a_message_here(level, asked):
    def listen(_, context):
        context.delay_level_when_next_consume = level
        raise RuntimeError

    bench = Bench(listen)
    bench.submit(0)
    assert bench.retries.given == [(0, asked)]
    assert bench.committed == [1]


def test_in_broadcasting_what_fails_is_logged_and_passed_over(caplog):
    bench = Bench(fails(0), retries=False)
    bench.submit(0)
    assert bench.committed == [1]
    assert "is not redelivered" in caplog.text


def test_what_was_dropped_before_is_not_consumed():
    seen = []
    bench = Bench(fails(seen=seen))
    bench.request.process_queue.put_messages(several(0))
    bench.service.submit(bench.request, several(0))
    bench.request.process_queue.drop()
    bench.tasks.move(0)
    assert seen == []


def test_what_was_dropped_while_it_was_consumed_moves_no_offset_and_is_not_given_back():
    bench = Bench(lambda *_: bench.request.process_queue.drop())
    bench.submit(0)
    assert (bench.committed, bench.retries.given) == ([], [])


@pytest.mark.parametrize("takes", [True, False])
def test_what_a_listener_writes_into_a_message_that_fails_is_not_given_back(takes):
    seen = []

    def listen(messages, _):
        seen.append(dict(messages[0].properties))
        messages[0].properties["attempt"] = 3
        raise RuntimeError

    bench = Bench(listen)
    bench.retries.accepts = takes
    bench.submit(0)
    bench.tasks.move(LOCAL_RETRY_MS)
    assert bench.retries.given == ([(0, 0)] if takes else [(0, 0), (0, 0)])
    assert seen == ([{}] if takes else [{}, {}])


def test_what_takes_too_long_is_given_back_once():
    def listen(*_):
        bench.tasks.now_ms += 101
        bench.service.clean_expired([bench.request], 100)
        bench.service.clean_expired([bench.request], 100)
        return ConsumeConcurrentlyStatus.RECONSUME_LATER

    bench = Bench(listen)
    bench.submit(0)
    bench.tasks.move(101)
    assert bench.retries.given == [(0, 3)]
    assert bench.committed == [1, 1]


def test_where_nobody_gives_it_again_what_takes_too_long_is_waited_for(caplog):
    def listen(*_):
        for _ in range(2):
            bench.tasks.now_ms += 101
            bench.service.clean_expired([bench.request], 100)
            bench.tasks.move(0)
            committed.append(list(bench.committed))

    bench, committed = Bench(listen, retries=False), []
    bench.submit(0)
    assert committed == [[], []]
    assert bench.committed == [1]
    assert caplog.text.count("takes longer than 100 ms, and its offset waits") == 2


def test_what_takes_too_long_and_is_not_taken_back_stays_and_is_given_back_later():
    bench, messages = Bench(lambda *_: None), several(0)
    bench.request.process_queue.put_messages(messages)
    bench.request.process_queue.start_consuming(messages)
    for takes in (False, False, True, True):
        assert bench.committed == []
        bench.retries.accepts = takes
        bench.tasks.move(101)
        bench.service.clean_expired([bench.request], 100)
        bench.tasks.move(0)
        if takes:
            break
    assert bench.retries.given == [(0, 3)] * 3
    assert bench.committed == [1]


def test_what_is_tried_again_here_has_been_tried_once_more():
    times = []

    def listen(messages, _):
        times.append([message.reconsume_times for message in messages])
        raise RuntimeError

    bench = Bench(listen)
    bench.retries.accepts = False
    bench.submit(0)
    bench.tasks.move(10_000)
    assert times == [[0], [1], [2]]


def test_what_was_given_back_meanwhile_is_not_tried_again_here():
    """What waits here for its next try may take so long that it is given back after all."""
    seen = []
    bench = Bench(fails(0, 1, seen=seen), batch_size=2)
    bench.retries.accepts = False
    bench.submit(0, 1)
    bench.retries.accepts = True
    waiting = [bench.request.process_queue._waiting[0]]
    bench.request.process_queue.acknowledge(waiting, bench.committed.append)
    bench.tasks.move(5_000)
    assert seen == [[0, 1], [1]]


def test_what_waits_for_its_next_try_here_is_no_listeners_and_cannot_take_too_long():
    bench = Bench(fails(0))
    bench.retries.accepts = False
    bench.submit(0)
    given = list(bench.retries.given)
    bench.tasks.now_ms += 1_000
    bench.service.clean_expired([bench.request], 100)
    bench.tasks.move(0)
    assert bench.retries.given == given
