"""Unreadable messages become dead letters once, and are retried until a broker takes them."""

from dataclasses import replace

import pytest
from support.clients.manual_scheduler import MovedTasks
from support.messages.received_messages import received
from support.suite.log_records import lines_of

from rmq_spark.client.consumer.dispatch.redelivery import DLQ_RETRY_MS, SENT_MAX, DeadLetterQueue
from rmq_spark.client.errors import BrokerRefused, ConnectionClosed

GONE = ConnectionClosed("b:1", "gone")


class Brokers:
    """Brokers that accept dead letters after a number of failures."""

    def __init__(self, failures=0, refuses=False, why=GONE):
        self.taken, self.sent, self.failures, self.refuses = [], [], failures, refuses
        self._describe_error = why

    def send_back(self, message, delay_level, max_reconsume_times):
        if self.failures:
            self.failures -= 1
            raise self._describe_error
        if self.refuses:
            raise BrokerRefused(1, "look message by offset failed, 7", "b:1", 36)
        self.taken.append((message.queue_offset, delay_level, max_reconsume_times))

    def send_dead_letter(self, message):
        self.sent.append(message.queue_offset)


@pytest.fixture
def tasks():
    return MovedTasks()


def buried(tasks, brokers, *, is_clustering=True, is_wanted=lambda: True):
    done = []
    letters = DeadLetterQueue("G", brokers, tasks, is_clustering=is_clustering)
    letters.send(received(7), is_wanted, lambda: done.append(tasks.now_ms))
    return done


def test_unreadable_message_becomes_a_dead_letter_and_is_logged_once(tasks, caplog):
    brokers = Brokers()
    done = buried(tasks, brokers)
    assert done == []  # by another thread than the reader
    tasks.move(0)
    assert (brokers.taken, done) == ([(7, -1, 0)], [0])
    [line] = lines_of(caplog, "rmq_spark.client.consumer")
    assert "offset 7" in line
    assert "it is sent to %DLQ%G" in line


@pytest.mark.parametrize("why", [GONE, RuntimeError("can't start new thread"), OSError(24, "full")])
def test_dead_letter_is_retried_until_a_broker_takes_it(tasks, why):
    brokers = Brokers(failures=3, why=why)
    done = buried(tasks, brokers)
    tasks.move(3 * DLQ_RETRY_MS - 1)
    assert done == []
    tasks.move(1)
    assert done == [3 * DLQ_RETRY_MS]
    tasks.move(10 * DLQ_RETRY_MS)
    assert len(brokers.taken) == 1


def test_unwanted_dead_letter_is_left_to_the_next_owner(tasks):
    wanted = [True]
    brokers = Brokers(failures=1)
    done = buried(tasks, brokers, is_wanted=lambda: wanted[0])
    tasks.move(0)
    wanted[0] = False
    tasks.move(10 * DLQ_RETRY_MS)
    assert (brokers.taken, done, tasks.pending) == ([], [], 0)


def test_broadcasting_consumer_skips_unreadable_message(tasks, caplog):
    brokers = Brokers()
    done = buried(tasks, brokers, is_clustering=False)
    tasks.move(0)
    assert (brokers.taken, done) == ([], [0])
    assert "it is skipped" in caplog.text


def test_unreadable_message_refused_by_its_broker_is_sent_to_the_dlq(tasks):
    brokers = Brokers(failures=1, refuses=True)
    done = buried(tasks, brokers)
    tasks.move(0)
    assert (brokers.sent, done) == ([], [])  # an unreachable broker may deliver the message later
    tasks.move(DLQ_RETRY_MS)
    assert (brokers.taken, brokers.sent, done) == ([], [7], [DLQ_RETRY_MS])


@pytest.mark.parametrize("group", ["TOOLS_CONSUMER", "CID_RMQ_SYS_TRACE"])
def test_tool_groups_skip_unreadable_messages_without_dead_letters(tasks, caplog, group):
    brokers, done = Brokers(), []
    letters = DeadLetterQueue(group, brokers, tasks, is_clustering=True)
    letters.send(received(7), lambda: True, lambda: done.append(tasks.now_ms))
    tasks.move(0)
    assert (brokers.taken, brokers.sent, done) == ([], [], [0])
    assert "it is skipped" in caplog.text


def test_unreadable_message_met_repeatedly_becomes_one_dead_letter(tasks, caplog):
    brokers, done = Brokers(), []
    letters = DeadLetterQueue("G", brokers, tasks, is_clustering=True)
    of_a_topic_made_again = replace(received(7), offset_message_id="another")
    for message in (received(7), received(7), received(8), received(7), of_a_topic_made_again):
        letters.send(message, lambda: True, lambda: done.append(tasks.now_ms))
        tasks.move(0)
    assert [offset for offset, *_ in brokers.taken] == [7, 8, 7]
    assert len(done) == 5
    assert len(lines_of(caplog, "rmq_spark.client.consumer")) == 3


def test_dead_letter_queue_remembers_a_bounded_number_of_messages(tasks):
    brokers = Brokers()
    letters = DeadLetterQueue("G", brokers, tasks, is_clustering=True)
    for offset in (*range(SENT_MAX + 1), 0, SENT_MAX):
        letters.send(received(offset), lambda: True, lambda: None)
        tasks.move(0)
    assert [offset for offset, *_ in brokers.taken] == [*range(SENT_MAX + 1), 0]


def test_dead_letter_log_line_has_the_reason(tasks, caplog):
    letters = DeadLetterQueue("G", Brokers(), tasks, is_clustering=True)
    message = replace(received(7), fault="needed at most 10 bytes inflated, found more")
    letters.send(message, lambda: True, lambda: None)
    assert (
        "cannot be read, and it is sent to %DLQ%G: needed at most 10 bytes inflated" in caplog.text
    )
