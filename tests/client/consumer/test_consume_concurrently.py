"""Concurrent listeners: commits, send-back, local retries and the consume timeout."""

import pytest
from support.clients.manual_scheduler import MovedTasks
from support.messages.received_messages import QUEUE, several

from rmq_spark.client.consumer.dispatch.consume_services import (
    LOCAL_RETRY_MS,
    ConsumeMessageConcurrentlyService,
)
from rmq_spark.client.consumer.dispatch.listeners import ConsumeConcurrentlyStatus
from rmq_spark.client.consumer.pull.pull_task import PullRequest
from rmq_spark.client.consumer.queues.process_queue import ProcessQueue


class Retries:
    """Brokers that accept messages sent back, or refuse them."""

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
    """Return a listener that fails for these messages."""

    def listen(messages, _):
        if seen is not None:
            seen.append([each.queue_offset for each in messages])
        if any(each.queue_offset in offsets for each in messages):
            raise RuntimeError("no")

    return listen


def test_concurrent_listener_gets_messages_in_batches():
    seen = []
    Bench(fails(seen=seen), batch_size=3).submit(*range(7))
    assert seen == [[0, 1, 2], [3, 4, 5], [6]]


def test_consume_success_commits_offset():
    bench = Bench(lambda *_: ConsumeConcurrentlyStatus.CONSUME_SUCCESS)
    bench.submit(0, 1)
    assert bench.committed == [1, 2]
    assert bench.retries.given == []


@pytest.mark.parametrize(
    "listener", [fails(0), lambda *_: ConsumeConcurrentlyStatus.RECONSUME_LATER]
)
def test_consume_failure_sends_message_back_and_commits_offset(listener):
    bench = Bench(listener)
    bench.submit(0)
    assert bench.retries.given == [(0, 0)]
    assert bench.committed == [1]


def test_failed_message_that_no_broker_takes_back_is_retried_locally():
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


def test_ack_index_sends_back_the_rest_with_the_chosen_delay_level():
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
def test_ack_index_out_of_range_is_clamped(ack_index, succeed):
    def listen(_, context):
        context.ack_index = ack_index

    bench = Bench(listen, batch_size=4)
    bench.submit(0, 1, 2, 3)
    assert [offset for offset, _ in bench.retries.given] == list(range(succeed, 4))


@pytest.mark.parametrize(
    ("level", "asked"), [("3", 0), (None, 0), (-7, -1), (1 << 40, (1 << 31) - 1)]
)
def test_invalid_delay_level_still_sends_the_message_back(level, asked):
    def listen(_, context):
        context.delay_level_when_next_consume = level
        raise RuntimeError

    bench = Bench(listen)
    bench.submit(0)
    assert bench.retries.given == [(0, asked)]
    assert bench.committed == [1]


def test_broadcasting_consumer_logs_and_skips_a_failed_message(caplog):
    bench = Bench(fails(0), retries=False)
    bench.submit(0)
    assert bench.committed == [1]
    assert "is not redelivered" in caplog.text


def test_dropped_process_queue_is_not_consumed():
    seen = []
    bench = Bench(fails(seen=seen))
    bench.request.process_queue.put_messages(several(0))
    bench.service.submit(bench.request, several(0))
    bench.request.process_queue.drop()
    bench.tasks.move(0)
    assert seen == []


def test_queue_dropped_during_consume_commits_no_offset_and_sends_nothing_back():
    bench = Bench(lambda *_: bench.request.process_queue.drop())
    bench.submit(0)
    assert (bench.committed, bench.retries.given) == ([], [])


@pytest.mark.parametrize("takes", [True, False])
def test_properties_written_by_a_failing_listener_are_not_sent_back(takes):
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


def test_consume_timeout_sends_message_back_once():
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


def test_consume_timeout_without_retries_keeps_offset_until_listener_ends(caplog):
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
    assert caplog.text.count("for more than 100 ms; in BROADCASTING, the offset is stored") == 2


def test_consume_timeout_is_retried_if_send_back_fails():
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


def test_local_retry_increases_reconsume_times():
    times = []

    def listen(messages, _):
        times.append([message.reconsume_times for message in messages])
        raise RuntimeError

    bench = Bench(listen)
    bench.retries.accepts = False
    bench.submit(0)
    bench.tasks.move(10_000)
    assert times == [[0], [1], [2]]


def test_local_retry_skips_message_that_was_sent_back_meanwhile():
    """A message may wait so long for its local retry that it is sent back after all."""
    seen = []
    bench = Bench(fails(0, 1, seen=seen), batch_size=2)
    bench.retries.accepts = False
    bench.submit(0, 1)
    bench.retries.accepts = True
    waiting = [bench.request.process_queue._waiting[0]]
    bench.request.process_queue.acknowledge(waiting, bench.committed.append)
    bench.tasks.move(5_000)
    assert seen == [[0, 1], [1]]


def test_message_waiting_for_local_retry_has_no_consume_timeout():
    bench = Bench(fails(0))
    bench.retries.accepts = False
    bench.submit(0)
    given = list(bench.retries.given)
    bench.tasks.now_ms += 1_000
    bench.service.clean_expired([bench.request], 100)
    bench.tasks.move(0)
    assert bench.retries.given == given
