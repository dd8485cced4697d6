"""Two looks at a message are the same message despite a single damaged mark."""

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


def test_last_message_equals_itself_with_offset_and_time():
    last = LastMessage.from_message(MESSAGE)
    assert not last.differs_from(MESSAGE)
    assert (last.queue_offset, last.store_timestamp) == (5, MESSAGE.store_timestamp)


@pytest.mark.parametrize("mark", BY_MARK)
def test_single_differing_mark_does_not_make_a_different_message(mark):
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
def test_two_differing_marks_make_a_different_message(marks):
    other = replace(MESSAGE, **{mark: BY_MARK[mark] for mark in marks})
    assert LastMessage.from_message(MESSAGE).differs_from(other)


def test_differing_content_counts_as_one_mark():
    other = replace(MESSAGE, message_id="new", born_timestamp=9, body=b"new")
    assert not LastMessage.from_message(MESSAGE).differs_from(other)
