"""Names of topics and groups."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_spark.wire.bodies.clients import ConsumeType, client_labels, consume_mode, version_desc
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
        *((name, name) for name in ("TBW102", "rmq_sys_x", "CID_RMQ_SYS_y")),
    ],
)
def test_topic_name_is_wrapped_in_and_stripped_of_its_namespace(name, whole):
    assert wrap_namespace("eu", name) == whole
    assert wrap_namespace("eu", whole) == whole
    assert wrap_namespace(None, name) == name
    assert without_namespace("eu", whole) == name.replace("eu%", "")
    assert without_namespace(None, whole) == whole


NAMES_OF_JAVA = (
    ("orders", "a%orders", "orders"),
    ("a%orders", "a%orders", "orders"),
    ("b%orders", "a%b%orders", "b%orders"),
    ("a%", "a%", ""),
    ("%orders", "a%%orders", "%orders"),
    ("%RETRY%g", "%RETRY%a%g", "%RETRY%g"),
    ("%RETRY%a%g", "%RETRY%a%g", "%RETRY%g"),
    ("%DLQ%g", "%DLQ%a%g", "%DLQ%g"),
    ("%DLQ%a%g", "%DLQ%a%g", "%DLQ%g"),
    ("%RETRY%%DLQ%g", "%RETRY%a%%DLQ%g", "%RETRY%%DLQ%g"),
    ("%DLQ%%RETRY%g", "%DLQ%a%%RETRY%g", "%DLQ%%RETRY%g"),
    ("%RETRY%TOOLS_CONSUMER", "%RETRY%a%TOOLS_CONSUMER", "%RETRY%TOOLS_CONSUMER"),
    ("%DLQ%CID_RMQ_SYS_X", "%DLQ%a%CID_RMQ_SYS_X", "%DLQ%CID_RMQ_SYS_X"),
    ("TOOLS_CONSUMER", "a%TOOLS_CONSUMER", "TOOLS_CONSUMER"),
    ("CID_RMQ_SYS_X", "CID_RMQ_SYS_X", "CID_RMQ_SYS_X"),
    ("CID_ONSAPI_PULL", "a%CID_ONSAPI_PULL", "CID_ONSAPI_PULL"),
    ("TBW102", "TBW102", "TBW102"),
    ("BenchmarkTest", "BenchmarkTest", "BenchmarkTest"),
    ("RMQ_SYS_TRACE_TOPIC", "RMQ_SYS_TRACE_TOPIC", "RMQ_SYS_TRACE_TOPIC"),
    ("rmq_sys_x", "rmq_sys_x", "rmq_sys_x"),
    ("SCHEDULE_TOPIC_XXXX", "SCHEDULE_TOPIC_XXXX", "SCHEDULE_TOPIC_XXXX"),
    ("SELF_TEST_TOPIC", "SELF_TEST_TOPIC", "SELF_TEST_TOPIC"),
    ("OFFSET_MOVED_EVENT", "OFFSET_MOVED_EVENT", "OFFSET_MOVED_EVENT"),
    ("DefaultCluster_REPLY_TOPIC", "a%DefaultCluster_REPLY_TOPIC", "DefaultCluster_REPLY_TOPIC"),
    ("%RETRY%", "%RETRY%a%", "%RETRY%"),
    ("a%a%orders", "a%a%orders", "a%orders"),
    ("%RETRY%a%a%g", "%RETRY%a%a%g", "%RETRY%a%g"),
    ("%RETRY%TBW102", "%RETRY%a%TBW102", "%RETRY%TBW102"),
    ("a%TBW102", "a%TBW102", "TBW102"),
    ("a%%RETRY%g", "a%%RETRY%g", "%RETRY%g"),
    ("%RETRY%a", "%RETRY%a%a", "%RETRY%a"),
    ("%SYS%x", "a%%SYS%x", "%SYS%x"),
    ("CLIENT_INNER_PRODUCER", "a%CLIENT_INNER_PRODUCER", "CLIENT_INNER_PRODUCER"),
    ("SELF_TEST_P_GROUP", "a%SELF_TEST_P_GROUP", "SELF_TEST_P_GROUP"),
    ("DEFAULT_PRODUCER", "a%DEFAULT_PRODUCER", "DEFAULT_PRODUCER"),
    ("DEFAULT_CONSUMER", "a%DEFAULT_CONSUMER", "DEFAULT_CONSUMER"),
    ("FILTERSRV_CONSUMER", "a%FILTERSRV_CONSUMER", "FILTERSRV_CONSUMER"),
    ("__MONITOR_CONSUMER", "a%__MONITOR_CONSUMER", "__MONITOR_CONSUMER"),
    ("CID_SYS_RMQ_TRANS", "a%CID_SYS_RMQ_TRANS", "CID_SYS_RMQ_TRANS"),
    ("TRANS_CHECK_MAX_TIME_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC"),
    (
        "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC",
        "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC",
        "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC",
    ),
    ("%LMQ%x", "a%%LMQ%x", "%LMQ%x"),
)
"""A name, and the results of NamespaceUtil of 5.5.0: within the namespace a, and without it."""


@pytest.mark.parametrize(("name", "wrapped", "stripped"), NAMES_OF_JAVA)
def test_namespaced_names_equal_javas(name, wrapped, stripped):
    assert wrap_namespace("a", name) == wrapped
    assert without_namespace("a", name) == stripped


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


# ---- client labels in metrics, as in RocketMQ 5


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (0, "V3"), (211, "V3"), (212, "V4_0_0_SNAPSHOT"), (213, "V4_0_0"), (214, "V4_0_1_SNAPSHOT"),
        (233, "V4_1_0"), (399, "V4_9_3"), (407, "V4_9_7"), (409, "V4_9_8"),
        (412, "V5_0_0_SNAPSHOT"), (413, "V5_0_0"), (513, "V5_5_0"), (600, "V5_9_4_SNAPSHOT"),
    ],
)  # fmt: skip
def test_version_names_equal_rocketmqs(number, name):
    assert version_desc(number) == name


def test_client_metrics_labels_are_lower_case():
    assert client_labels("PYTHON", 409) == ("python", "v4_9_8", "remoting")
    assert [consume_mode(each) for each in (*ConsumeType, None)] == ["pull", "push", "pop", ""]
