"""Topics are selected by name, pattern and namespace."""

import pytest

from rmq_spark.spark.options.options import Selection, is_broker_topic, selects


def test_topics_that_are_named_are_just_these():
    named = Selection(topics=("orders", "eu%paid"), namespace="eu")
    assert selects(named, "orders")
    assert selects(named, "eu%paid")
    assert not selects(named, "paid")


@pytest.mark.parametrize(
    ("pattern", "namespace", "topic", "is_selected"),
    [
        ("orders.*", None, "orders-1", True),
        ("orders", None, "orders-1", False),
        (".*", None, "%RETRY%group", False),
        (".*", None, "SCHEDULE_TOPIC_XXXX", False),
        ("orders.*", "eu", "eu%orders-1", True),
        ("orders.*", "eu", "orders-1", False),
        ("orders.*", "eu", "us%orders-1", False),
        ("orders.*", None, "eu%orders-1", False),
    ],
)
def test_pattern_selects_by_the_name_within_the_namespace(pattern, namespace, topic, is_selected):
    assert selects(Selection(pattern=pattern, namespace=namespace), topic) is is_selected


@pytest.mark.parametrize("topic", ["TBW102", "RMQ_SYS_TRACE_TOPIC", "%DLQ%group", "DefaultCluster"])
def test_brokers_and_groups_have_topics_of_their_own(topic):
    assert is_broker_topic(topic)
    assert not is_broker_topic("orders")
