"""The list of pulls held for one queue."""

from support.brokers.hold_service import Client, Codes, Hold, a_pull

from rocketpoll.broker.longpolling.pull_request import ManyPullRequest
from rocketpoll.broker.longpolling.pull_request_hold_service import (
    NotifyMessageArrivingListener,
)


def test_held_pulls_are_indexed_by_client_and_group():
    many = ManyPullRequest()
    client = Client()
    first, second, other_group = a_pull(client), a_pull(client), a_pull(client, group="H")
    for pull in (first, a_pull(), other_group, second):
        many.add(pull)
    assert len(many) == 4
    assert many.of_owner(a_pull(client)) == [first, second]
    assert many.of_owner(a_pull(client, group="H")) == [other_group]
    many.remove(first)
    assert first not in many
    many.remove(second)
    assert many.of_owner(first) == []
    assert len(list(many.by_turns())) == 2


def test_scanned_offset_of_a_held_pull_begins_at_its_queue_offset():
    many = ManyPullRequest()
    pull = a_pull(queue_offset=17)
    many.add(pull)
    assert many.scanned_to(pull) == 17
    many.set_scanned_to(pull, 20)
    assert many.scanned_to(pull) == 20


def test_held_pulls_are_yielded_by_turns_of_clients():
    many = ManyPullRequest()
    greedy, modest = Client(), Client()
    of_greedy = [a_pull(greedy, group=f"G{number}") for number in range(3)]
    of_modest = [a_pull(modest) for _ in range(2)]
    for pull in (*of_greedy, *of_modest):
        many.add(pull)
    pulls = many.by_turns()
    first = next(pulls)
    many.add(a_pull(modest))
    assert [first, *pulls] == [
        of_greedy[0], of_modest[0], of_greedy[1], of_modest[1], of_greedy[2]
    ]  # fmt: skip


# ---- properties of a held pull request


def test_held_pull_has_the_queue_offset_and_deadline_of_its_request():
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


# ---- the listener through which the store wakes held pulls


def test_arrival_wakes_held_pulls_and_calls_the_callback():
    hold, told = Hold(), []
    pull = a_pull()
    hold.service.suspend_pull_request(pull)
    listener = NotifyMessageArrivingListener(hold.service, lambda *arrival: told.append(arrival))
    listener.arriving("T", 0, 1, [0])
    assert hold.woken == [pull]
    assert told == [("T", 0, [0])]
