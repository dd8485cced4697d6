"""Hold quotas of clients, compared with a plain list."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from support.brokers.hold_service import Client, Codes, a_pull

from rocketpoll.broker.longpolling.pull_request import QUOTA_UNIT_BYTES
from rocketpoll.broker.longpolling.pull_request_hold_service import HoldQuota

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
