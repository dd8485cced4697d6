"""Settings of topics and groups are checked before they are sent."""

import pytest

from rmq_spark.client.admin.admin import check_group_config, check_topic_config
from rmq_spark.client.errors import MessageRejected
from rmq_spark.wire.bodies.configs import SubscriptionGroupConfig, TopicConfig, TopicFilterType

NAN = float("nan")


def topic(**settings):
    check_topic_config(TopicConfig(topic_name="T", **settings))


def group(**settings):
    check_group_config(SubscriptionGroupConfig(group_name="G", **settings))


def test_default_topic_and_group_configs_pass_the_check():
    topic()
    group()
    check_topic_config(None)
    check_group_config(None)


def test_valid_rocketmq_configs_are_accepted():
    topic(
        order=True,
        attributes={"message.type": "NORMAL"},
        topic_filter_type=TopicFilterType.MULTI_TAG,
    )
    group(
        consume_message_orderly=True,
        group_sys_flag=3,
        group_retry_policy={"type": "CUSTOMIZED"},
        subscription_data_set=[{"topic": "orders"}],
        consume_timeout_minute=15,
        broker_id=2**62,
        attributes={},
    )


@pytest.mark.parametrize("given", [{"perm": 6}, "T", TopicConfig])
def test_config_of_wrong_type_is_refused(given):
    with pytest.raises(TypeError, match="config: needed a TopicConfig"):
        check_topic_config(given)
    with pytest.raises(TypeError, match="config: needed a SubscriptionGroupConfig"):
        check_group_config(given)


@pytest.mark.parametrize(
    ("check", "setting", "found"),
    [
        (topic, "read_queue_nums", "3"),
        (topic, "perm", True),
        (topic, "order", "false"),
        (topic, "order", None),
        (topic, "topic_filter_type", "SINGLE_TAG"),
        (topic, "attributes", "message.type=NORMAL"),
        (group, "consume_enable", 0),
        (group, "consume_message_orderly", "false"),
        (group, "consume_message_orderly", NAN),
        (group, "group_sys_flag", "3"),
        (group, "group_sys_flag", NAN),
        (group, "consume_timeout_minute", "3"),
        (group, "consume_timeout_minute", 1.5),
        (group, "consume_timeout_minute", True),
        (group, "group_retry_policy", "CUSTOMIZED"),
        (group, "subscription_data_set", {"topic": "orders"}),
        (group, "subscription_data_set", ["orders"]),
        (group, "attributes", {"message.type": 1}),
    ],
)
def test_config_value_of_a_wrong_type_is_refused_by_name(check, setting, found):
    with pytest.raises(TypeError, match=f"{setting} of config: needed .*, found .*; for example: "):
        check(**{setting: found})


@pytest.mark.parametrize(
    ("check", "setting", "found"),
    [
        (topic, "read_queue_nums", 2**31),
        (topic, "topic_sys_flag", -(2**31) - 1),
        (group, "consume_timeout_minute", 2**31),
        (group, "group_sys_flag", 2**70),
        (group, "broker_id", 2**63),
    ],
)
def test_config_number_out_of_range_is_refused_by_name(check, setting, found):
    with pytest.raises(
        MessageRejected, match=f"{setting} of config: needed -?[0-9]+ to [0-9]+, found"
    ):
        check(**{setting: found})
