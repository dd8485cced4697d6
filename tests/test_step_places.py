from hypothesis import given
from hypothesis import strategies as st

from broker.step_places import StepPlaces

SMALL = 64 << 10


def test_there_is_room_for_some_and_for_one_however_long_it_is():
    places = StepPlaces(3 * SMALL)
    small = [places.place(0) for _ in range(5)]
    assert [each.granted.done() for each in small] == [True, True, True, False, False]
    for each in small:
        each.release()
    long, behind = places.place(100 * SMALL), places.place(0)
    assert (long.granted.done(), behind.granted.done()) == (True, False)
    long.release()
    assert behind.granted.done()


def test_places_are_given_in_the_order_in_which_they_were_asked_for():
    places = StepPlaces(2 * SMALL)
    first = places.place(0)
    long, small = places.place(2 * SMALL), places.place(0)
    assert not small.granted.done(), "else the long one would never have its turn"
    first.release()
    assert long.granted.done()
    assert not small.granted.done()


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 10 * SMALL))))
def test_whoever_releases_whenever_all_get_their_turn_and_nothing_is_left(story):
    places = StepPlaces(4 * SMALL)
    held = []
    for which, size in story:
        if which < len(held):
            held.pop(which).release()
        else:
            held.append(places.place(size))
        granted = [each for each in held if each.granted.done()]
        assert len(granted) <= 1 or sum(each.size for each in granted) <= 4 * SMALL
        assert granted or not held
    while held:
        assert held[0].granted.done()
        held.pop(0).release()
    assert (places._taken, places._waiting) == (0, {})
