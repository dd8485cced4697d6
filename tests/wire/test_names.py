"""Names of topics and groups."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_spark.wire.names import (
    DLQ_PREFIX,
    GROUP_CHARACTERS_MAX,
    NOT_ALLOWED_SEND_TOPICS,
    RETRY_PREFIX,
    SYSTEM_TOPICS,
    dlq_topic,
    group_fault,
    is_system_group,
    is_system_topic,
    retry_topic,
    topic_fault,
    without_namespace,
    wrap_namespace,
)


@pytest.mark.parametrize("name", ["T", "%RETRY%g", "a|b_c-D9", "T" * 127, "%RETRY%" + "g" * 248])
def test_valid_rocketmq_topic_name_is_accepted(name):
    assert topic_fault(name) is None


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "blank"),
        ("  ", "blank"),
        ("../../topic", "other characters"),  # CVE-2019-17572
        ("a/b", "other characters"),
        ("a.b", "other characters"),
        ("a@b", "other characters"),
        ("gr\u00fcn", "other characters"),
        ("T\n", "other characters"),
        ("T" * 128, "128 characters, over 127"),
        ("%RETRY%" + "g" * 249, "over 255"),
    ],
)
def test_topic_fault_says_why_a_name_is_invalid(name, why):
    assert why in topic_fault(name)


def test_topic_fault_of_a_long_name_is_short():
    assert len(topic_fault("/" * 1_000_000)) < 200
    assert len(topic_fault("x" * 1_000_000)) < 200


@given(st.text("%|aZ9_-", min_size=1, max_size=300))
def test_every_valid_group_has_valid_retry_and_dead_letter_topics(group):
    if group_fault(group) is None:
        assert topic_fault(retry_topic(group)) is None
        assert topic_fault(dlq_topic(group)) is None
        assert len(retry_topic(group)) <= 255
    else:
        assert len(group) > GROUP_CHARACTERS_MAX


def test_system_topics_and_groups_are_rocketmqs():
    assert NOT_ALLOWED_SEND_TOPICS < SYSTEM_TOPICS
    assert all(map(is_system_topic, [*SYSTEM_TOPICS, "rmq_sys_wheel_timer"]))
    assert is_system_topic("RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC")
    assert not any(
        map(is_system_topic, ["T", RETRY_PREFIX + "g", DLQ_PREFIX + "g", "DefaultCluster"])
    )
    assert is_system_group("TOOLS_CONSUMER")
    assert is_system_group("CID_RMQ_SYS_TRANS")
    assert not is_system_group("g")


@pytest.mark.parametrize(
    ("name", "whole"),
    [
        ("orders", "eu%orders"),
        ("eu%orders", "eu%orders"),
        ("us%orders", "eu%us%orders"),
        ("%RETRY%billing", "%RETRY%eu%billing"),
        ("%DLQ%eu%billing", "%DLQ%eu%billing"),
        *((name, name) for name in ("TBW102", "rmq_sys_x", "TOOLS_CONSUMER", "CID_RMQ_SYS_y")),
    ],
)
def test_topic_name_is_wrapped_in_and_stripped_of_its_namespace(name, whole):
    assert wrap_namespace("eu", name) == whole
    assert wrap_namespace("eu", whole) == whole
    assert wrap_namespace(None, name) == name
    assert without_namespace("eu", whole) == name.replace("eu%", "")
    assert without_namespace(None, whole) == whole


@given(
    st.from_regex(r"[|a-z_-]{1,9}", fullmatch=True),
    st.from_regex(r"[|a-z0-9_-]{1,20}", fullmatch=True),
)
def test_namespace_wrapping_round_trips(namespace, name):
    for each in (name, retry_topic(name), dlq_topic(name)):
        assert without_namespace(namespace, wrap_namespace(namespace, each)) == each


def test_dead_letter_topic_may_be_as_long_as_its_group():
    longest = "g" * GROUP_CHARACTERS_MAX
    for topic in (retry_topic(longest), dlq_topic(longest)):
        assert topic_fault(topic) is None
    assert "over 127" in topic_fault(longest)
