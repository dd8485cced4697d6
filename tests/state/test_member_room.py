"""Limits on the data that clients register, for each client and for all."""

import tracemalloc

import pytest
from support.brokers.connections import FakeConnection
from support.brokers.state_tables import room

from rmq_spark.wire.bodies import decode_body, encode_body
from rmq_spark.wire.bodies.clients import ConsumerData, SubscriptionData
from rocketpoll.broker.state.members.client_channel_info import ClientChannelInfo
from rocketpoll.broker.state.members.consumers import ConsumerManager
from rocketpoll.broker.state.tables.table import TooMany

ONE, TWO = FakeConnection("one"), FakeConnection("two")
_FRAMES_TO_THIS_FILE = 40


def test_refused_reservation_counts_nothing():
    members = room(members_max=2, subscription_bytes_max=1_600)
    members.reserve(ONE, members=1, client_bytes=100, group_bytes=100)
    for more in (
        {"members": 2},
        {"members": 1, "client_bytes": 1},
        {"members": 1, "group_bytes": 1_501},
    ):
        with pytest.raises(TooMany):
            members.reserve(ONE, **more)
    members.reserve(ONE, members=1, group_bytes=1_500)
    with pytest.raises(
        TooMany, match=r"take 1601 bytes; those of all clients may take 1600 \(maxSubscr"
    ):
        members.reserve(TWO, client_bytes=1, group_bytes=1)
    members.reserve(ONE, members=-2, client_bytes=-100, group_bytes=-1_600)
    assert vars(members) == vars(room(2, 1_600))


def test_release_is_never_refused_over_the_limit():
    members = room(subscription_bytes_max=1_600)
    members.reserve(ONE, members=1, client_bytes=100, group_bytes=1_600)
    members._bytes_max = members._members_max = 0
    members.reserve(ONE, client_bytes=-10, group_bytes=-10)
    members.reserve(ONE, members=-1, client_bytes=-90, group_bytes=-1_590)
    assert vars(members) == vars(room(0, 0))


def test_subscription_bytes_are_not_underestimated():
    """Measured while they are kept, in a group from a received heartbeat."""
    texts = tuple(
        SubscriptionData(
            topic=f"topic-{number}",
            sub_string=" || ".join(f"tag-{number}-{tag}" for tag in range(5)),
            tags_set=frozenset(f"tag-{number}-{tag}" for tag in range(5)),
            code_set=frozenset(number * 1_000 + tag for tag in range(5)),
        )
        for number in range(500)
    )
    plain = tuple(SubscriptionData(topic=f"topic-{number}") for number in range(500))
    for subscriptions in (texts, plain):
        body = encode_body(ConsumerData(group_name="g", subscription_data_set=subscriptions))
        consumers = ConsumerManager(lambda _: None, room())
        tracemalloc.start(_FRAMES_TO_THIS_FILE)
        try:
            consumers.register(
                ClientChannelInfo(ONE, "one", "JAVA", 409, 0), decode_body(ConsumerData, body)
            )
            kept = tracemalloc.take_snapshot()
        finally:
            tracemalloc.stop()
        # Other threads of this process allocate as well, but are not called from here.
        ours = kept.filter_traces([tracemalloc.Filter(True, __file__, all_frames=True)])
        taken = sum(trace.size for trace in ours.traces)
        assert 20_000 < taken <= consumers.group("g").subscription_bytes
