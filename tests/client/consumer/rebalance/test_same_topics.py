"""Only members of a group with different subscriptions are warned."""

import logging

import pytest

from rmq_spark.client.consumer.rebalance.rebalance_service import (
    CHECK_INTERVAL_MS,
    MEMBERS_MAX,
    SUSPICION_MS,
    SubscriptionCheck,
)
from rmq_spark.client.errors import RequestTimeout

MINE, OTHERS = frozenset({"o", "%RETRY%G"}), frozenset({"x", "%RETRY%G"})


class Group:
    """A group as a broker knows it, and a member that checks its subscriptions."""

    def __init__(self):
        self.now, self.found, self.asked = 0, OTHERS, []
        self.same_topics = SubscriptionCheck("G", self.topics_at_brokers, lambda: self.now)

    def topics_at_brokers(self, topic):
        self.asked.append(topic)
        if isinstance(self.found, Exception):
            raise self.found
        return self.found

    def look(self, found=OTHERS, *, mine=MINE, members=2, after_ms=CHECK_INTERVAL_MS):
        self.now += after_ms
        self.found = found
        self.same_topics.check("o", mine, members)


@pytest.fixture
def group(caplog):
    caplog.set_level(logging.WARNING)
    return Group()


def test_subscription_difference_seen_twice_is_logged_once(group, caplog):
    group.look()
    assert caplog.messages == []
    group.look()
    assert "one member subscribes to o, another to x: " in caplog.text
    group.look()
    assert len(caplog.messages) == 1


def test_topic_mismatch_is_logged_once_despite_the_members_own_heartbeats(group, caplog):
    for found in (OTHERS, MINE, OTHERS):
        group.look(found)
    assert len(caplog.messages) == 1


def test_changed_subscription_difference_is_logged_again(group, caplog):
    for found in (OTHERS, OTHERS, frozenset({"y"}), frozenset({"y"})):
        group.look(found)
    assert len(caplog.messages) == 2


def test_subscription_differences_of_several_members_are_logged_once_each(group, caplog):
    """Each check sees the subscription of the member that sent the last heartbeat."""
    for _ in range(3):
        for name in ("x", "y", "z"):
            group.look(frozenset({name}))
    assert len(caplog.messages) == 3


def test_subscription_difference_seen_rarely_is_not_logged(group, caplog):
    for _ in range(3):
        group.look(after_ms=SUSPICION_MS + 1)
    assert caplog.messages == []


def test_subscription_difference_that_returns_later_is_logged_again(group, caplog):
    for after_ms in (CHECK_INTERVAL_MS, CHECK_INTERVAL_MS, SUSPICION_MS + 1, CHECK_INTERVAL_MS):
        group.look(after_ms=after_ms)
    assert len(caplog.messages) == 2


def test_changed_subscription_of_a_member_repeats_the_topic_mismatch_check(group, caplog):
    group.look()
    group.look(mine=frozenset({"p"}))
    group.look(mine=frozenset({"p"}))
    assert len(caplog.messages) == 1
    assert "one member subscribes to p" in caplog.text


@pytest.mark.parametrize(
    "founds",
    [
        pytest.param([MINE] * 3, id="the same topics"),
        pytest.param([frozenset({"o"})] * 3, id="the same but for the retry topic"),
        pytest.param([OTHERS, frozenset({"o", "y"}), MINE], id="one that subscribes bit by bit"),
        pytest.param([frozenset()] * 3, id="a broker that knows of none"),
        pytest.param([RequestTimeout("b:1", 203, 3_000)] * 3, id="no answer"),
    ],
)
def test_equal_subscriptions_are_not_logged(group, caplog, founds):
    for found in founds:
        group.look(found)
    assert caplog.messages == []
    assert len(group.asked) == 3


@pytest.mark.parametrize("members", [0, 1, MEMBERS_MAX + 1])
def test_subscription_check_skips_groups_of_one_or_very_many(group, members):
    group.look(members=members)
    assert group.asked == []


def test_subscription_check_runs_once_per_interval(group):
    for _ in range(3):
        group.look(after_ms=CHECK_INTERVAL_MS // 4)
    assert len(group.asked) == 1
