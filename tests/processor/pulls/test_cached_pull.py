"""Cached pull plans: found by header shape, limited in number, dropped with their client."""

import pytest
from support.brokers.connections import FakeConnection
from support.clients.remoting_clients import pull_request

from rmq_spark.wire.bodies.configs import SubscriptionGroupConfig, TopicConfig
from rmq_spark.wire.remoting.framing import FrameReader
from rocketpoll.broker.processor.pulls import fast_pull
from rocketpoll.broker.processor.pulls.fast_pull import (
    CachedPull,
    ClientPullCache,
    PullCache,
    build_template,
)
from rocketpoll.broker.processor.request import header_of

TOPIC = TopicConfig(topic_name="T", read_queue_nums=4, write_queue_nums=4)


def header(request):
    reader = FrameReader()
    reader.feed(request.encode())
    return bytes(reader.next_frame().header)


def plan_of(request, topic_config=TOPIC):
    shape = build_template(header(request), request)
    group = SubscriptionGroupConfig(group_name="G")
    return CachedPull(
        shape, header_of(request), request.without_content(), topic_config, group, None
    )


def put(table, client, request):
    table.put(client, plan_of(request), header(request))


def test_cached_pull_is_found_by_header_template():
    plans = ClientPullCache()
    assert plans.find(header(pull_request(3))) is None
    first, second = (plan_of(pull_request(3, topic)) for topic in ("T", "U"))
    plans.put(first, header(pull_request(3, "T")))
    plans.put(second, header(pull_request(3, "U")))
    later = pull_request(9, "U", commit_offset=None, opaque=77)
    found, numbers = plans.find(header(later))
    assert found is second
    assert numbers == (9, 0, 77)
    assert found.header_with(9, 5) == header_of(later)._replace(commit_offset=5)
    assert plans.find(header(pull_request(3, "V"))) is None


def test_cached_pulls_distinguish_topics_late_in_the_header():
    """Java's clients send the topic late in the header."""
    plans, requests = ClientPullCache(), []
    for topic in ("T", "U"):
        fields = dict(pull_request(3, topic).ext_fields)
        late = {"topic": fields.pop("topic")}
        requests.append(pull_request(3)._replace(ext_fields={**fields, **late}))
        plans.put(plan_of(requests[-1]), header(requests[-1]))
    assert [plans.find(header(each))[0].header.topic for each in requests] == ["T", "U"]
    assert len(plans) == 2


def test_cached_pull_replaces_one_of_equal_shape():
    plans = ClientPullCache()
    plans.put(plan_of(pull_request(3)), header(pull_request(3)))
    newer = plan_of(pull_request(4), TopicConfig(topic_name="T"))
    plans.put(newer, header(pull_request(4)))
    assert len(plans) == 1
    assert plans.find(header(pull_request(5)))[0] is newer


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(fast_pull, "CACHED_PULLS_MAX", 3)
    monkeypatch.setattr(fast_pull, "CACHED_PULLS_TOTAL_MAX", 5)


@pytest.mark.usefixtures("small")
def test_cached_pulls_are_limited_and_discarded_with_their_client():
    table = PullCache()
    clients = [FakeConnection() for _ in range(3)]
    for client in clients:
        for queue_id in range(3):
            assert table.may_learn(client)
            put(table, client, pull_request(0, queue_id=queue_id))
            assert len(table) <= 5
        assert not table.may_learn(client)  # their learning budget is used up
    known = [table.get(client) for client in clients]
    assert [each and len(each) for each in known] == [None, None, 3]
    known[2].learning_budget.repay(1_000)
    assert table.may_learn(clients[2])
    put(table, clients[2], pull_request(0, queue_id=3))
    assert len(table) == len(known[2]) == 1  # the table was cleared
    table.discard(clients[2])
    assert len(table) == 0


def test_cached_pulls_are_not_learned_for_a_closed_client():
    table, client = PullCache(), FakeConnection()
    client.is_closed = True
    assert not table.may_learn(client)
    assert table.get(client) is None


def test_cached_pulls_of_equal_prefix_keep_the_last_few():
    """In these headers the groups follow both offsets."""
    plans, requests = ClientPullCache(), []
    for number in range(20):
        fields = dict(pull_request(3, group=f"G{number}").ext_fields)
        late = {"consumerGroup": fields.pop("consumerGroup")}
        requests.append(pull_request(3)._replace(ext_fields={**fields, **late}))
        plans.put(plan_of(requests[-1]), header(requests[-1]))
    found = [plans.find(header(each)) is not None for each in requests]
    assert found == [False] * 12 + [True] * 8
    assert len(plans) == 8
