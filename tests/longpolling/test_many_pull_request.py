"""The list of pulls held for one queue."""

from support.brokers.hold_service import Client, a_pull

from rocketpoll.broker.longpolling.pull_request import ManyPullRequest


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
