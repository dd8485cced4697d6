"""Hold quotas of clients, compared with a plain list."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from support.brokers.hold_service import Client, Codes, a_pull

from rocketpoll.broker.longpolling.pull_request import QUOTA_UNIT_BYTES
from rocketpoll.broker.longpolling.pull_request_hold_service import HoldQuota


def test_hold_quota_takes_the_oldest_pull_of_the_greediest_client():
    places = HoldQuota()
    modest, greedy = Client(), Client()
    pulls = [a_pull(client) for client in (modest, greedy, greedy, modest, greedy)]
    for pull in pulls:
        places.acquire(pull)
    assert (len(places), places.used_max) == (5, 3)
    assert places.oldest_of_largest() is pulls[1]
    places.release(pulls[1])
    assert (places.used_max, places.oldest_of_largest()) == (
        2,
        pulls[0],
    )  # had two before the other was left with two
    assert places.oldest_of(greedy) is pulls[2]


def test_empty_hold_quota_has_no_places():
    places = HoldQuota()
    client = Client()
    assert (len(places), places.used_max, places.used_by(client), list(places)) == (0, 0, 0, [])
    assert places.oldest_of(client) is None
    assert a_pull(client) not in places


def test_hold_quota_counts_long_subscriptions_by_bytes_and_filters_per_client():
    places, client, other = HoldQuota(), Client(), Client()
    places.acquire(a_pull(client, subscription="x" * 10 * QUOTA_UNIT_BYTES))
    assert (len(places), places.used) == (1, 11)
    large = Codes(size_bytes=5 * QUOTA_UNIT_BYTES)
    pulls = [a_pull(client, wants=large) for _ in range(3)]
    for pull in pulls:
        places.acquire(pull)
    assert (places.used_by(client), places.used) == (11 + 5 + 3, 19)
    places.acquire(a_pull(other, wants=large))
    assert (places.used_by(other), places.used) == (6, 25)
    for pull in pulls:
        places.release(pull)
    assert (len(places), places.used_max, places.used) == (2, 11, 17)


_FILTERS = (
    None,
    Codes(),
    Codes(size_bytes=QUOTA_UNIT_BYTES),
    Codes(size_bytes=7 * QUOTA_UNIT_BYTES),
)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 4),
            st.booleans(),
            st.sampled_from(_FILTERS),
            st.sampled_from((1, 5_000, 20_000)),
        ),
        max_size=200,
    )
)
def test_hold_quota_counts_equal_a_plain_list(moves):
    places, taken = HoldQuota(), []
    clients = [Client() for _ in range(5)]
    for number, comes, wants, length in moves:
        own = [pull for pull in taken if pull.connection is clients[number]]
        if comes:
            taken.append(a_pull(clients[number], wants=wants, subscription="x" * length))
            places.acquire(taken[-1])
        elif own:
            taken.remove(own[len(own) // 2])
            places.release(own[len(own) // 2])
        counts = Counter()
        for pull in taken:
            counts[pull.connection] += pull.quota_cost
        for client, wanted in {(pull.connection, pull.message_filter) for pull in taken}:
            counts[client] += wanted.size_bytes // QUOTA_UNIT_BYTES if wanted is not None else 0
        assert len(places) == len(taken)
        assert places.used_max == max(counts.values(), default=0)
        assert places.used == sum(counts.values())
        assert {id(pull) for pull in places} == {id(pull) for pull in taken}
        for client in clients:
            own = [pull for pull in taken if pull.connection is client]
            assert (places.used_by(client), places.oldest_of(client)) == (
                counts[client],
                own[0] if own else None,
            )
        if taken:
            greediest = places.oldest_of_largest()
            assert counts[greediest.connection] == places.used_max
            assert greediest is places.oldest_of(greediest.connection)
