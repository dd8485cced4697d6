"""Allocation strategies share queues as RocketMQ's do."""

from collections import Counter
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_spark.client.consumer.rebalance.rebalance_service import RebalanceRound
from rmq_spark.client.consumer.rebalance.strategies import (
    AllocateMachineRoomNearby,
    AllocateMessageQueueAveragely,
    AllocateMessageQueueAveragelyByCircle,
    AllocateMessageQueueByConfig,
    AllocateMessageQueueByMachineRoom,
    AllocateMessageQueueConsistentHash,
    in_java_order,
    in_queue_order,
)
from rmq_spark.client.errors import ConnectionClosed
from rmq_spark.wire.message_queue import MessageQueue

AVERAGELY = AllocateMessageQueueAveragely()
BY_CIRCLE = AllocateMessageQueueAveragelyByCircle()
CONSISTENT_HASH = AllocateMessageQueueConsistentHash()
NEARBY = AllocateMachineRoomNearby(
    AVERAGELY,
    lambda queue: queue.broker_name.partition("@")[0],
    lambda client_id: client_id.partition("@")[0],
)
SHARING_ALL = (AVERAGELY, BY_CIRCLE, CONSISTENT_HASH, NEARBY)

THREE = ["10.0.0.1@1#a", "10.0.0.1@2#b", "10.0.0.2@3#c"]
EIGHT = [MessageQueue("T", "broker-a", number) for number in range(8)]

rooms = st.sampled_from(["north", "south", "east"])
client_ids = st.lists(
    st.builds("{}@{}".format, rooms, st.text(min_size=1, max_size=6)),
    min_size=1,
    max_size=9,
    unique=True,
).map(in_java_order)
queues = st.lists(
    st.builds(
        MessageQueue,
        st.just("T"),
        st.builds("{}@{}".format, rooms, st.sampled_from("ab")),
        st.integers(0, 30),
    ),
    unique=True,
    max_size=40,
).map(in_queue_order)


def numbers(strategy, ids=THREE, of=EIGHT):
    return [[queue.queue_id for queue in strategy.allocate(each, of, ids)] for each in ids]


def test_averagely_strategy_gives_contiguous_queues_and_one_more_to_first_members():
    assert numbers(AVERAGELY) == [[0, 1, 2], [3, 4, 5], [6, 7]]


def test_circle_strategy_deals_queues_in_turn():
    assert numbers(BY_CIRCLE) == [[0, 3, 6], [1, 4, 7], [2, 5]]


def test_consistent_hash_gives_the_shares_that_java_gives():
    assert numbers(CONSISTENT_HASH) == [[0, 2, 3, 5, 7], [1, 4, 6], []]


def test_strategy_gives_no_queue_to_members_beyond_the_number_of_queues():
    assert numbers(AVERAGELY, of=EIGHT[:2]) == [[0], [1], []]
    assert numbers(BY_CIRCLE, of=EIGHT[:2]) == [[0], [1], []]


def test_by_config_strategy_assigns_configured_queues_to_anyone():
    strategy = AllocateMessageQueueByConfig((EIGHT[5], EIGHT[1]))
    assert strategy.allocate("nobody", EIGHT, THREE) == [EIGHT[5], EIGHT[1]]


def test_machine_room_strategy_uses_only_brokers_of_its_rooms():
    named = ["north@a", "south@b", "north@", "north", "north@a@b", "north@c@"]
    strategy = AllocateMessageQueueByMachineRoom(frozenset({"north"}))
    near = strategy.allocate("me", [MessageQueue("T", name, 0) for name in named], ["me"])
    assert [queue.broker_name for queue in near] == ["north@a", "north@c@"]


def test_machine_room_strategy_deals_leftover_queues_from_the_end():
    of = [MessageQueue("T", "north@a", number) for number in range(8)]
    assert numbers(AllocateMessageQueueByMachineRoom(frozenset({"north"})), of=of) == [
        [0, 1, 6],
        [2, 3, 7],
        [4, 5],
    ]


def test_nearby_queues_stay_in_their_room_and_those_of_empty_rooms_go_to_all():
    of = [
        MessageQueue("T", f"{room}@a", number)
        for room in ("east", "north", "south")
        for number in range(2)
    ]
    ids = ["north@1", "south@1", "south@2"]
    shares = [NEARBY.allocate(each, of, ids) for each in ids]
    assert [[(queue.broker_name, queue.queue_id) for queue in share] for share in shares] == [
        [("north@a", 0), ("north@a", 1), ("east@a", 0)],
        [("south@a", 0), ("east@a", 1)],
        [("south@a", 1)],
    ]


def test_nearby_refuses_a_broker_without_a_room():
    with pytest.raises(ValueError, match=r"no machine room for .*broker-a"):
        AllocateMachineRoomNearby(AVERAGELY, lambda _: "", lambda _: "north").allocate(
            "me", EIGHT, ["me"]
        )


@pytest.mark.parametrize(
    "strategy", [*SHARING_ALL, AllocateMessageQueueByMachineRoom(frozenset({"north"}))]
)
def test_strategies_assign_nothing_to_a_non_member(strategy):
    assert strategy.allocate("somebody else", EIGHT, THREE) == []


def test_consistent_hash_without_virtual_nodes_allocates_nothing():
    assert AllocateMessageQueueConsistentHash(0).allocate(THREE[0], EIGHT, THREE) == []


@pytest.mark.parametrize("strategy", SHARING_ALL, ids=lambda each: each.name)
@given(of=queues, ids=client_ids)
def test_strategy_allocates_every_queue_to_exactly_one_member(strategy, of, ids):
    shares = [strategy.allocate(each, of, ids) for each in ids]
    assert Counter(chain(*shares)) == Counter(of)


@pytest.mark.parametrize("strategy", [AVERAGELY, BY_CIRCLE], ids=lambda each: each.name)
@given(of=queues, ids=client_ids)
def test_strategy_shares_differ_by_one_at_most(strategy, of, ids):
    sizes = [len(strategy.allocate(each, of, ids)) for each in ids]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


@given(of=queues, ids=client_ids, data=st.data())
def test_consistent_hash_moves_only_the_queues_of_the_leaving_member(of, ids, data):
    leaves = data.draw(st.sampled_from(ids))
    for each in set(ids) - {leaves}:
        before = set(CONSISTENT_HASH.allocate(each, of, ids))
        after = set(CONSISTENT_HASH.allocate(each, of, [other for other in ids if other != leaves]))
        assert before <= after


@given(of=queues, ids=client_ids, own=st.frozensets(rooms))
def test_machine_room_strategy_allocates_all_queues_of_its_rooms(of, ids, own):
    strategy = AllocateMessageQueueByMachineRoom(own)
    shares = chain(*(strategy.allocate(each, of, ids) for each in ids))
    assert Counter(shares) == Counter(
        queue for queue in of if queue.broker_name.partition("@")[0] in own
    )


def test_strategies_sort_names_by_utf_16_like_java():
    assert in_java_order(["\uffee", "😀", "b", "a"]) == ["a", "b", "😀", "\uffee"]
    of = [
        MessageQueue(topic, broker, number)
        for topic in ("\uffee", "😀")
        for broker in "ba"
        for number in (1, 0)
    ]
    assert in_queue_order(of) == list(reversed(of[4:])) + list(reversed(of[:4]))


# ---- a rebalance round asks each broker for members once


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


def test_member_list_is_queried_once_for_topics_of_the_same_brokers():
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


def test_member_query_waits_once_for_silent_brokers():
    group = Group()
    group.members = ConnectionClosed("a:1", "gone")
    seen = RebalanceRound(group)
    for topic in "TU":
        with pytest.raises(ConnectionClosed):
            seen.consumer_ids(topic)
    assert group.asked == ["T"]
