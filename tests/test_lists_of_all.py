"""Lists of all topics and groups work at the default limits, with each at its largest size."""

from rmq_spark.wire.bodies import encode_body
from rmq_spark.wire.bodies.configs import (
    SubscriptionGroupConfig,
    SubscriptionGroupWrapper,
    TopicConfig,
    TopicConfigSerializeWrapper,
    TopicFilterType,
)
from rmq_spark.wire.names import GROUP_CHARACTERS_MAX, LONG_TOPIC_CHARACTERS_MAX
from rocketpoll.broker.processor.topics.topic_admin import SUPPORTED
from rocketpoll.broker.server.limits import SendBufferLimits
from rocketpoll.broker.settings.settings import config_of
from rocketpoll.broker.state.tables.subscription_group import (
    GROUP_BYTES_MAX,
    SubscriptionGroupManager,
)
from rocketpoll.broker.state.tables.topic_config import DLQ_PREFIX, RETRY_PREFIX, topic_fault


def answer_bytes_max(config):
    return SendBufferLimits(config.server.unread_bytes_max).response_bytes_max


class NoTable:
    def load(self, default):
        return default


def largest_group(number):
    name = str(number).rjust(GROUP_CHARACTERS_MAX, "g")
    config = SubscriptionGroupConfig(group_name=name, attributes={"k": ""})
    room = GROUP_BYTES_MAX - len(encode_body(config))
    return SubscriptionGroupConfig(group_name=name, attributes={"k": "v" * room})


def test_all_groups_fit_one_response():
    config = config_of({})
    groups = SubscriptionGroupManager(
        NoTable(), auto_create=True, max_groups=config.max_groups, now_ms=lambda: 1 << 41
    )
    while len(groups.groups) < config.max_groups:
        groups.put(largest_group(len(groups.groups)))
    size = len(encode_body(groups.wrapper()))
    assert isinstance(groups.wrapper(), SubscriptionGroupWrapper)
    assert answer_bytes_max(config) * 3 // 4 < size <= answer_bytes_max(config)


def test_all_topics_fit_one_response():
    config = config_of({})
    attributes = {name: max(values, key=len) for name, values in SUPPORTED.items()}
    names = [
        RETRY_PREFIX + str(number).rjust(LONG_TOPIC_CHARACTERS_MAX - len(RETRY_PREFIX), "t")
        for number in range(config.max_topics)
    ]
    assert topic_fault(names[0]) is None
    assert topic_fault(names[0] + "t") is not None
    own = [
        prefix + str(number).rjust(GROUP_CHARACTERS_MAX, "g")
        for prefix in (RETRY_PREFIX, DLQ_PREFIX)
        for number in range(config.max_groups)
    ]

    def largest(name, attributes):
        return TopicConfig(
            topic_name=name,
            read_queue_nums=4_096,
            write_queue_nums=4_096,
            topic_filter_type=TopicFilterType.SINGLE_TAG,
            topic_sys_flag=-(1 << 31),
            attributes=attributes,
        )

    table = {name: largest(name, attributes) for name in names} | {
        name: largest(name, None) for name in own
    }
    size = len(encode_body(TopicConfigSerializeWrapper(topic_config_table=table)))
    assert size <= answer_bytes_max(config)
