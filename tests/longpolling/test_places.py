"""Who has how many places: against a plain list."""

from __future__ import annotations

from collections import Counter

from held_pulls import Client, a_pull
from hypothesis import given
from hypothesis import strategies as st

from rocketpoll.broker.longpolling.places import Places


def test_the_greediest_gives_the_place_that_it_has_had_for_longest():
    places = Places()
    modest, greedy = Client(), Client()
    pulls = [a_pull(client) for client in (modest, greedy, greedy, modest, greedy)]
    for pull in pulls:
        places.take(pull)
    assert (len(places), places.most) == (5, 3)
    assert places.oldest_of_greediest() is pulls[1]
    places.free(pulls[1])
    assert (places.most, places.oldest_of_greediest()) == (
        2,
        pulls[0],
    )  # had two before the other was left with two
    assert places.oldest_of(greedy) is pulls[2]


def test_nobody_has_places_that_were_not_taken():
    places = Places()
    client = Client()
    assert (len(places), places.most, places.count_of(client), list(places)) == (0, 0, 0, [])
    assert places.oldest_of(client) is None
    assert a_pull(client) not in places


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=200))
def test_whoever_comes_and_goes_the_counts_are_those_of_a_plain_list(moves):
    places, taken = Places(), []
    clients = [Client() for _ in range(5)]
    for number, comes in moves:
        own = [pull for pull in taken if pull.connection is clients[number]]
        if comes:
            taken.append(a_pull(clients[number]))
            places.take(taken[-1])
        elif own:
            taken.remove(own[len(own) // 2])
            places.free(own[len(own) // 2])
        counts = Counter(pull.connection for pull in taken)
        assert len(places) == len(taken)
        assert places.most == max(counts.values(), default=0)
        assert {id(pull) for pull in places} == {id(pull) for pull in taken}
        for client in clients:
            own = [pull for pull in taken if pull.connection is client]
            assert (places.count_of(client), places.oldest_of(client)) == (
                len(own),
                own[0] if own else None,
            )
        if taken:
            greediest = places.oldest_of_greediest()
            assert counts[greediest.connection] == places.most
            assert greediest is places.oldest_of(greediest.connection)
