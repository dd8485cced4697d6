"""Attributes of topics are set, changed and dropped."""

import pytest

from rocketpoll.broker.processor.request import RequestRejected
from rocketpoll.broker.processor.topics.topic_admin import changed_attributes


def test_attributes_are_set_changed_and_dropped():
    known = changed_attributes(None, "+message.type=FIFO,+cleanup.policy=DELETE")
    assert known == {"message.type": "FIFO", "cleanup.policy": "DELETE"}
    assert changed_attributes(known, "+message.type=NORMAL,-cleanup.policy") == {
        "message.type": "NORMAL"
    }
    assert known["message.type"] == "FIFO"


@pytest.mark.parametrize("changes", ["", " ", ",", "-message.type"])
def test_topic_without_attributes_keeps_none_after_a_removal(changes):
    assert changed_attributes(None, changes) is None


def test_empty_attribute_change_keeps_the_attributes():
    assert changed_attributes({"message.type": "FIFO"}, "") == {"message.type": "FIFO"}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ("+cleanup.policy=COMPACTION", "can be DELETE, not 'COMPACTION'"),
        ("+queue.type=BatchCQ", "can be SimpleCQ"),
        ("+reserve.time=5", "'reserve.time' is not supported"),
        ("message.type=FIFO", "by \\+name=value or -name"),
        ("+message.type", "by \\+name=value or -name"),
        ("-message.type=FIFO", "by \\+name=value or -name"),
        ("+", "by \\+name=value or -name"),
    ],
)
def test_topic_attribute_without_support_is_refused(changes, why):
    with pytest.raises(RequestRejected, match=why):
        changed_attributes(None, changes)
