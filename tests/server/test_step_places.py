from hypothesis import given
from hypothesis import strategies as st

from rocketpoll.broker.server.limits import SMALL_BODY_BYTES, ConcurrencyLimit

SMALL = 64 << 10
LARGE = SMALL_BODY_BYTES + 1


def test_concurrency_limit_admits_a_body_larger_than_itself():
    places = ConcurrencyLimit(6 * SMALL)
    small = [places.acquire(0) for _ in range(5)]
    assert [each.granted.done() for each in small] == [True, True, True, False, False]
    for each in small:
        each.release()
    long, behind = places.acquire(100 * SMALL), places.acquire(LARGE)
    assert (long.granted.done(), behind.granted.done()) == (True, False)
    long.release()
    assert behind.granted.done()


def test_places_of_large_bodies_are_given_in_the_order_in_which_they_were_asked_for():
    places = ConcurrencyLimit(10 * SMALL)
    first = places.acquire(LARGE)
    long, large = places.acquire(4 * SMALL), places.acquire(LARGE)
    assert not large.granted.done(), "else the long one would never have its turn"
    first.release()
    assert long.granted.done()
    assert not large.granted.done()


def test_concurrency_limit_separates_small_and_large_bodies():
    for many, one in (
        (LARGE, SMALL_BODY_BYTES),
        (64 * SMALL, 0),
        (0, LARGE),
        (SMALL_BODY_BYTES, LARGE),
    ):
        places = ConcurrencyLimit()
        while places.acquire(many).granted.done():
            pass
        assert places.acquire(one).granted.done(), (many, one)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 10 * SMALL))))
def test_concurrency_limit_grants_every_permit_in_any_order(story):
    places = ConcurrencyLimit(8 * SMALL)
    held = []
    for which, size in story:
        if which < len(held):
            held.pop(which).release()
        else:
            held.append(places.acquire(size))
        for line in (places._small, places._large):
            of_line = [each for each in held if each._queue is line]
            granted = [each for each in of_line if each.granted.done()]
            assert len(granted) <= 1 or sum(each.size for each in granted) <= 4 * SMALL
            assert granted or not of_line
            assert granted == of_line[: len(granted)]
    while held:
        assert held[0].granted.done()
        held.pop(0).release()
    for line in (places._small, places._large):
        assert (line._used_bytes, line._waiting) == (0, {})
