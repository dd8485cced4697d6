"""Config checks: settings of topics and groups, checked before they are sent to a broker.

The kinds of values are those that the fields are annotated with. Which numbers make sense is left
to the brokers, whose refusals say it. This module connects to nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from types import NoneType
from typing import Final

from rmq_spark.client.arguments import INT32_MAX, INT64_MAX, check_flag, check_kind, check_range
from rmq_spark.wire.bodies.configs import SubscriptionGroupConfig, TopicConfig, TopicFilterType

_NONE: Final = "None"
_FLAG: Final = "bool"
_NUMBER: Final = "int"
_OF_64_BITS: Final = frozenset({"broker_id", "which_broker_when_consume_slowly"})


def check_topic_config(config: TopicConfig | None) -> None:
    """Raise an error if settings of a topic hold what they cannot.

    Raises:
        MessageRejected: A number is too large for its field.
        TypeError: A setting has the wrong type; the error names it.
    """
    if config is None:
        return
    check_kind(
        "config", config, TopicConfig, "a TopicConfig", 'TopicConfig(topic_name="orders", perm=6)'
    )
    _check_settings(config)
    kind, example = config.topic_filter_type, "TopicFilterType.SINGLE_TAG"
    check_kind("topic_filter_type of config", kind, TopicFilterType, "a TopicFilterType", example)
    _check_attributes(config.attributes)


def check_group_config(config: SubscriptionGroupConfig | None) -> None:
    """Raise an error if settings of a group hold what they cannot.

    Raises:
        MessageRejected: A number is too large for its field.
        TypeError: A setting has the wrong type; the error names it.
    """
    if config is None:
        return
    example = 'SubscriptionGroupConfig(group_name="billing", retry_max_times=3)'
    check_kind("config", config, SubscriptionGroupConfig, "a SubscriptionGroupConfig", example)
    _check_settings(config)
    policy, needed, example = (
        config.group_retry_policy,
        "a mapping, as in RocketMQ's JSON",
        '{"type": "CUSTOMIZED"}',
    )
    check_kind("group_retry_policy of config", policy, (Mapping, NoneType), needed, example)
    data, needed, example = (
        config.subscription_data_set,
        "a list of mappings",
        '[{"topic": "orders"}]',
    )
    check_kind("subscription_data_set of config", data, (list, tuple, NoneType), needed, example)
    for each in data or ():
        check_kind("one of subscription_data_set of config", each, Mapping, needed, example)
    _check_attributes(config.attributes)


def _check_settings(config: TopicConfig | SubscriptionGroupConfig) -> None:
    """Raise an error if a setting has not its kind: a number, or true or false."""
    for each in fields(config):
        name, value = f"{each.name} of config", getattr(config, each.name)
        kinds = str(each.type).split(" | ")
        if value is None and _NONE in kinds:
            continue
        if _FLAG in kinds:
            check_flag(name, value)
        elif _NUMBER in kinds:
            most = INT64_MAX if each.name in _OF_64_BITS else INT32_MAX
            check_range(name, value, -most - 1, most)


def _check_attributes(attributes: Mapping[str, str] | None) -> None:
    needed, example = "a mapping of texts", '{"message.type": "NORMAL"}'
    check_kind("attributes of config", attributes, (Mapping, NoneType), needed, example)
    for each in (*(attributes or {}), *(attributes or {}).values()):
        check_kind("one of attributes of config", each, str, needed, example)
