"""The permits of multi-step requests: which request gets one, and when."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_spark.wire.codes import RequestCode
from rocketpoll.broker.server.limits import (
    OPERATOR_REQUESTS_MAX,
    SMALL_BODY_BYTES,
    ConcurrencyLimit,
)

SMALL = 64 << 10
LARGE = SMALL_BODY_BYTES + 1
BATCH, HEARTBEAT = RequestCode.SEND_BATCH_MESSAGE, RequestCode.HEART_BEAT
STATS = RequestCode.GET_CONSUME_STATS
HERE, THERE = bytes([10, 0, 0, 1]), bytes([10, 0, 0, 2])


def batches(places, size, *networks):
    return [places.acquire(BATCH, size, network) for network in networks]


def are_granted(permits):
    return [each.granted.done() for each in permits]


def test_concurrency_limit_admits_a_body_larger_than_itself():
    places = ConcurrencyLimit(12 * SMALL)
    small = batches(places, 0, b"1", b"2", b"3", b"4", b"5")
    assert are_granted(small) == [True, True, True, False, False]
    for each in small:
        each.release()
    long, behind = batches(places, 100 * SMALL, HERE) + batches(places, LARGE, THERE)
    assert are_granted([long, behind]) == [True, False]
    long.release()
    assert behind.granted.done()


def test_places_of_large_bodies_are_given_in_the_order_in_which_they_were_asked_for():
    places = ConcurrencyLimit(10 * SMALL)
    (first,) = batches(places, LARGE, b"1")
    long, large = batches(places, 4 * SMALL, b"2") + batches(places, LARGE, b"3")
    assert not large.granted.done(), "else the long one would never have its turn"
    first.release()
    assert are_granted([long, large]) == [True, False]


@pytest.mark.parametrize(
    ("many", "one"),
    [
        ((BATCH, LARGE), (BATCH, SMALL_BODY_BYTES)),
        ((BATCH, 64 * SMALL), (BATCH, 0)),
        ((BATCH, 0), (BATCH, LARGE)),
        ((BATCH, SMALL_BODY_BYTES), (HEARTBEAT, LARGE)),
        ((BATCH, 0), (HEARTBEAT, 0)),
        ((STATS, 0), (HEARTBEAT, 0)),
        ((STATS, 0), (RequestCode.GET_CONSUMER_LIST_BY_GROUP, 0)),
        ((STATS, 0), (RequestCode.LOCK_BATCH_MQ, 0)),
        ((STATS, LARGE), (BATCH, LARGE)),
        ((RequestCode.GET_TOPIC_STATS_INFO, 0), (BATCH, 0)),
        ((HEARTBEAT, 0), (BATCH, 0)),
    ],
)
def test_concurrency_limits_of_request_kinds_are_independent(many, one):
    places = ConcurrencyLimit()
    while places.acquire(*many, HERE).granted.done():
        pass
    assert places.acquire(*one, HERE).granted.done()


def test_operators_requests_are_limited_in_number_and_by_address():
    places = ConcurrencyLimit()
    of_one = [places.acquire(STATS, 100, HERE) for _ in range(100)]
    assert sum(are_granted(of_one)) == OPERATOR_REQUESTS_MAX // 2
    of_others = [places.acquire(STATS, 100, bytes([number])) for number in range(100)]
    assert sum(are_granted(of_others)) == OPERATOR_REQUESTS_MAX // 2


@pytest.mark.parametrize("code", [BATCH, HEARTBEAT, STATS])
@pytest.mark.parametrize("size", [0, SMALL_BODY_BYTES, LARGE])
def test_address_with_thousands_of_requests_leaves_another_its_turn_at_once(code, size):
    places = ConcurrencyLimit()
    greedy = [places.acquire(code, size, HERE) for _ in range(2_000)]
    assert not greedy[-1].granted.done()
    assert places.acquire(code, size, THERE).granted.done()


def test_addresses_take_turns_when_there_is_no_room():
    places = ConcurrencyLimit(4)
    (under_way,) = batches(places, 0, HERE)
    greedy = batches(places, 0, *[HERE] * 50)
    modest = batches(places, 0, *[THERE] * 2)
    order = []
    for _ in range(4):
        under_way.release()
        (under_way,) = [
            each for each in (*greedy, *modest) if each.granted.done() and each not in order
        ]
        order.append(under_way)
    assert [each.network for each in order] == [HERE, THERE, HERE, THERE]
    assert order[0::2] == greedy[:2]


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.integers(0, 10 * SMALL), st.sampled_from([b"1", b"2"]))
    )
)
def test_concurrency_limit_grants_every_permit_in_any_order(story):
    places = ConcurrencyLimit(8 * SMALL)
    held = []
    for which, size, network in story:
        if which < len(held):
            held.pop(which).release()
        else:
            held.append(places.acquire(BATCH, size, network))
        for line in places.queues:
            of_line = [each for each in held if each._queue is line]
            granted = [each for each in of_line if each.granted.done()]
            assert len(granted) <= 1 or sum(each.size for each in granted) <= line._room
            assert granted or not of_line
            for address in (b"1", b"2"):
                of_address = [each for each in of_line if each.network == address]
                theirs = [each for each in granted if each.network == address]
                assert theirs == of_address[: len(theirs)]
                assert len(theirs) <= 1 or sum(each.size for each in theirs) <= line._room // 2
    while held:
        pick = next(each for each in held if each.granted.done())
        held.remove(pick)
        pick.release()
    assert all(line.is_idle for line in places.queues)
