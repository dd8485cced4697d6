from dataclasses import replace

import pytest
from support.messages.received_messages import received

from rmq_spark.client.consumer.queues.queue_identity import LastMessage

MESSAGE = received(5)
BY_MARK = {
    "store_timestamp": 9,
    "commit_log_offset": 900,
    "message_id": "new",
    "born_timestamp": 9,
    "body": b"new",
}


def test_a_message_is_itself_and_says_where_and_when_it_was():
    last = LastMessage.from_message(MESSAGE)
    assert not last.differs_from(MESSAGE)
    assert (last.queue_offset, last.store_timestamp) == (5, MESSAGE.store_timestamp)


@pytest.mark.parametrize("mark", BY_MARK)
def test_one_mark_that_differs_may_be_damaged_on_its_way(mark):
    assert not LastMessage.from_message(MESSAGE).differs_from(
        replace(MESSAGE, **{mark: BY_MARK[mark]})
    )


@pytest.mark.parametrize(
    "marks",
    [
        ("store_timestamp", "commit_log_offset"),
        ("commit_log_offset", "message_id"),
        ("store_timestamp", "body"),
        ("commit_log_offset", "born_timestamp"),
    ],
    ids=" and ".join,
)
def test_two_make_it_another(marks):
    other = replace(MESSAGE, **{mark: BY_MARK[mark] for mark in marks})
    assert LastMessage.from_message(MESSAGE).differs_from(other)


def test_what_it_is_counts_as_one_mark_whatever_of_it_differs():
    other = replace(MESSAGE, message_id="new", born_timestamp=9, body=b"new")
    assert not LastMessage.from_message(MESSAGE).differs_from(other)
