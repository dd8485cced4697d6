"""One rebalance round asks each broker for members once."""

import pytest

from rmq_spark.client.consumer.rebalance.rebalance_service import RebalanceRound
from rmq_spark.client.errors import ConnectionClosed

BROKERS = {"T": {"a", "b"}, "U": {"b", "a"}, "V": {"a"}}


class Group:
    client_id = "me"

    def __init__(self):
        self.asked, self.members = [], ("me",)

    def broker_names(self, topic):
        return frozenset(BROKERS[topic])

    def queues(self, topic):
        return (topic,)

    def consumer_ids(self, topic):
        self.asked.append(topic)
        if isinstance(self.members, Exception):
            raise self.members
        return self.members


def test_members_are_asked_for_once_for_all_topics_of_the_same_brokers():
    group = Group()
    seen = RebalanceRound(group)
    assert [seen.consumer_ids(topic) for topic in "TUVTUV"] == [("me",)] * 6
    assert group.asked == ["T", "V"]
    assert (seen.client_id, seen.queues("U")) == ("me", ("U",))


def test_member_list_is_asked_again_after_reset():
    group = Group()
    seen = RebalanceRound(group)
    seen.consumer_ids("T")
    group.members = ("me", "you")
    seen.reset()
    assert seen.consumer_ids("U") == ("me", "you")


def test_brokers_that_do_not_answer_are_waited_for_once():
    group = Group()
    group.members = ConnectionClosed("a:1", "gone")
    seen = RebalanceRound(group)
    for topic in "TU":
        with pytest.raises(ConnectionClosed):
            seen.consumer_ids(topic)
    assert group.asked == ["T"]
