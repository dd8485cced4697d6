"""What a waiting pull says of itself."""

from support.brokers.hold_service import Codes, a_pull


def test_queue_offset_and_deadline_are_those_of_the_request():
    pull = a_pull(queue_id=3, queue_offset=17, now_ms=1_000)
    assert pull.queue == ("T", 3)
    assert pull.pull_from_this_offset == 17
    assert pull.deadline_ms == 16_000


def test_without_a_filter_everything_is_wanted():
    assert a_pull().may_match([1])
    assert a_pull().may_match(None)


def test_with_a_filter_one_code_of_many_is_enough_and_unknown_ones_may_match():
    pull = a_pull(wants=Codes(7))
    assert pull.may_match([1, 7])
    assert not pull.may_match([1, 2])
    assert pull.may_match(None)


def test_two_pulls_alike_are_not_the_same():
    assert a_pull() != a_pull()
