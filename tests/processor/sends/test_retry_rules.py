"""Which sends to retry topics become dead letters."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.brokers.processors import nobody_waits, saved_at_once
from support.stores.small_store import message, small_config

from rmq_spark.wire.bodies.configs import SubscriptionGroupConfig, TopicConfig
from rmq_spark.wire.codes import ResponseCode
from rmq_spark.wire.message import record_layout as layout
from rocketpoll.broker.processor.request import RequestRejected
from rocketpoll.broker.processor.sends.admission import RetryRules, TopicAdmission, redirect_to_dlq
from rocketpoll.broker.settings.config import BrokerConfig


@pytest.fixture
def rules(parts):
    config = BrokerConfig(store=small_config(parts.root))
    return RetryRules(
        TopicAdmission(config, parts.topics, saved_at_once, nobody_waits), parts.groups
    )


def retried(times, **more):
    return replace(message("x", topic="%RETRY%g", queue_id=2, **more), reconsume_times=times)


def test_message_to_an_ordinary_topic_is_not_redirected(rules, parts):
    sent = replace(message("x"), reconsume_times=99)
    assert rules.redirect(sent, 1, 409) is sent
    assert parts.groups.get("g") is None


def test_retry_below_the_groups_limit_is_not_redirected(rules):
    sent = retried(15)
    assert rules.redirect(sent, None, 409) is sent


def test_retry_at_the_limit_becomes_a_dead_letter(rules, parts):
    dead = rules.redirect(retried(16, tags="a", DELAY="18", RETRY_TOPIC="T"), None, 409)
    assert (dead.topic, dead.queue_id) == ("%DLQ%g", 0)
    assert dead.properties == {"TAGS": "a", "RETRY_TOPIC": "T"}
    assert dead.reconsume_times == 16
    assert parts.topics.get("%DLQ%g") == TopicConfig(
        topic_name="%DLQ%g", read_queue_nums=1, write_queue_nums=1, perm=6
    )


@given(
    times=st.integers(0, 40),
    asked=st.none() | st.integers(-1, 40),
    version=st.sampled_from([120, 121, 409]),
)
def test_retry_limit_is_the_consumers_if_its_version_has_one(times, asked, version):
    rules = RetryRules(None, None)
    group = SubscriptionGroupConfig(group_name="g", retry_max_times=5)
    limit = asked if asked is not None and version >= 121 else 5
    assert rules.is_exhausted(group, times, asked, version) == (times >= limit)


def test_retry_topic_of_an_invalid_group_is_refused(rules):
    with pytest.raises(RequestRejected, match="subscription group not exist") as refusal:
        rules.redirect(message("x", topic="%RETRY%"), None, 409)
    assert refusal.value.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


def test_dead_letter_of_a_long_group_name_uses_the_v2_record(rules):
    dead = redirect_to_dlq(message("x"), rules.dead_letter_topic("g" * 200))
    assert dead.topic == "%DLQ%" + "g" * 200
    assert dead.magic == layout.MAGIC_V2
