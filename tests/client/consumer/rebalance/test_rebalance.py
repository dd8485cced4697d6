"""Rebalance of one topic: which member gets which queues, and when assignments stay the same."""

import pytest

from rmq_spark.client.consumer.rebalance.rebalance_service import Rebalance, TopicAssignment
from rmq_spark.client.consumer.rebalance.strategies import AllocateMessageQueueAveragely
from rmq_spark.client.errors import RouteNotFound
from rmq_spark.wire.bodies.clients import MessageModel
from rmq_spark.wire.message_queue import MessageQueue

QUEUES = [MessageQueue("T", broker, number) for broker in ("a", "b") for number in range(2)]


class View:
    client_id = ""

    def __init__(self, *members, queues=QUEUES):
        self.members, self.known = members, tuple(queues)

    def queues(self, topic):
        if not self.known:
            raise RouteNotFound(topic)
        return self.known

    def consumer_ids(self, _):
        return self.members


class Strategy:
    """A user-defined strategy."""

    def __init__(self, allocate):
        self.name, self.allocate = "MINE", allocate


def share(me, view, model=MessageModel.CLUSTERING, strategy=None):
    view.client_id = me
    return Rebalance(model, strategy or AllocateMessageQueueAveragely()).allocate("T", view)


def test_rebalance_does_not_depend_on_the_order_of_members_and_queues():
    view = View("2", "1", queues=[QUEUES[3], QUEUES[0], QUEUES[2], QUEUES[1]])
    assert share("1", view) == TopicAssignment(tuple(QUEUES), tuple(QUEUES[:2]))
    assert share("2", view).own == tuple(QUEUES[2:])


def test_broadcasting_rebalance_assigns_all_queues_without_asking_members():
    view = View()
    assert share("1", view, MessageModel.BROADCASTING) == TopicAssignment(
        tuple(QUEUES), tuple(QUEUES)
    )


def test_rebalance_assigns_nothing_to_an_unregistered_member():
    assert share("3", View("1", "2")) == TopicAssignment(tuple(QUEUES), (), is_registered=False)


def test_rebalance_waits_if_brokers_know_no_member():
    assert share("1", View()) is None


def test_rebalance_of_a_topic_without_queues_raises_route_not_found():
    with pytest.raises(RouteNotFound):
        share("1", View("1", queues=()))


@pytest.mark.parametrize(
    "said",
    [
        "a-0",
        ["a-0"],
        [None],
        [("T", "a", 0)],
        [MessageQueue("Other", "a", 0)],
        [*QUEUES, MessageQueue("T", "a", 9)],
    ],
)
def test_rebalance_strategy_result_with_foreign_queues_is_refused(said):
    with pytest.raises(TypeError, match="needed some of the queues that it was given, found"):
        share("1", View("1"), strategy=Strategy(lambda *_: said))


def test_rebalance_strategy_may_modify_its_arguments():
    def allocate(_, queues, members):
        members.clear()
        return [queues.pop() for _ in range(2)]

    assert share("1", View("1"), strategy=Strategy(allocate)) == TopicAssignment(
        tuple(QUEUES), (QUEUES[3], QUEUES[2])
    )
