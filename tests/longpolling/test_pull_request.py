"""Properties of a held pull request."""

from support.brokers.hold_service import Codes, a_pull


def test_queue_offset_and_deadline_are_those_of_the_request():
    pull = a_pull(queue_id=3, queue_offset=17, now_ms=1_000)
    assert pull.queue == ("T", 3)
    assert pull.pull_from_this_offset == 17
    assert pull.deadline_ms == 16_000


def test_held_pull_without_filter_matches_any_code():
    assert a_pull().may_match([1])
    assert a_pull().may_match(None)


def test_held_pull_with_filter_matches_one_of_many_codes():
    pull = a_pull(wants=Codes(7))
    assert pull.may_match([1, 7])
    assert not pull.may_match([1, 2])
    assert pull.may_match(None)


def test_equal_pull_requests_are_distinct():
    assert a_pull() != a_pull()
