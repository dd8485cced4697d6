"""The pulls that wait for one queue."""

from held_pulls import a_pull

from broker.longpolling.many_pull_request import ManyPullRequest


def test_pulls_are_counted_for_each_client_and_forgotten_with_the_last():
    many = ManyPullRequest()
    pulls = [a_pull(), a_pull()]
    client = pulls[0].connection
    for pull in pulls:
        many.add(pull)
    assert len(many) == 2
    assert many.count_of(client) == 1
    many.remove(pulls[0])
    assert pulls[0] not in many
    assert many.count_of(client) == 0
    assert many.requests() == [pulls[1]]


def test_how_far_messages_were_looked_at_begins_where_it_has_found_nothing():
    many = ManyPullRequest()
    pull = a_pull(queue_offset=17)
    many.add(pull)
    assert many.looked_at(pull) == 17
    many.note(pull, 20)
    assert many.looked_at(pull) == 20
