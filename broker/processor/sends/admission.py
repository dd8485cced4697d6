"""TopicAdmission: decides whether a message may go to a topic's queue; creates topics if allowed.

A topic that is not on the disk yet accepts no message: a crash could lose the topic and keep the
message.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import randrange
from typing import Final

from rmq_spark.wire.bodies.configs import SubscriptionGroupConfig, TopicConfig
from rmq_spark.wire.codes import ResponseCode, TopicPermission
from rmq_spark.wire.message.properties import change_properties
from rmq_spark.wire.message.record import StoredMessage, magic_of
from rmq_spark.wire.names import light_queue_fault

from ...schedule.delayed_message import WITHOUT_DELAY
from ...settings.config import BrokerConfig
from ...state.tables.subscription_group import SubscriptionGroupManager
from ...state.tables.topic_config import (
    NOT_ALLOWED_SEND_TOPICS,
    RETRY_PREFIX,
    TopicConfigManager,
    dlq_topic,
    is_system_topic,
    topic_fault,
)
from ..queues import topic_not_exist
from ..request import RequestRejected, TopicNotSaved, no_permission, system_error

_WRITE = TopicPermission.WRITE.value


class TopicAdmission:
    """Checks for each message whether its topic accepts it."""

    def __init__(
        self,
        config: BrokerConfig,
        topics: TopicConfigManager,
        must_wait: Callable[[TopicConfig], bool],
        has_suspended: Callable[[str], bool],
    ) -> None:
        """Store the topics, and two functions about sends that wait until a topic is saved.

        ``must_wait`` returns whether a message to a topic has to wait until the topic is saved.
        ``has_suspended`` returns whether sends wait for it; the current one may be one of them,
        dispatched again.
        """
        self._may_write = bool(config.broker_permission & _WRITE)
        self._topics = topics
        self._must_wait = must_wait
        self._has_suspended = has_suspended
        self.config_of: Callable[[str], TopicConfig | None] = topics.topics.get
        """Returns the configuration that `admit` uses: while it is the same object, a cached result
        is valid.
        """
        self.deleting = topics.deleting
        """Topics whose results must not be cached: sends wait until their deletion has ended."""

    def is_cacheable(self, topic: str) -> bool:
        """Return whether a result of `admit` is also valid for the topic's next message.

        It is not while sends wait for the topic to be saved.
        """
        return not self._has_suspended(topic)

    def admit(
        self, topic: str, queue_id: int, default_topic: str | None, default_queue_nums: int
    ) -> int:
        """Return the queue for a message: the requested one, or any writable one if negative.

        Raises:
            RequestRejected: With RocketMQ's code for the reason.
            TopicNotSaved: The message is accepted once the topic is saved.
        """
        if not self._may_write:
            raise no_permission("the broker sending message is forbidden")
        self._check_not_deleting(topic)
        config = self._topics.get(topic)
        if config is None or topic in NOT_ALLOWED_SEND_TOPICS:
            config = self._create(topic, default_topic, default_queue_nums)
        if not config.perm & _WRITE:
            raise no_permission(f"the topic[{topic}] may not be written")
        feature = self._topics.unserved_feature(config)
        if feature is not None:
            raise no_permission(
                f"topic[{topic}] has RocketMQ 5's feature {feature}, which this broker does not "
                "serve: its messages can only be read. Send to another topic, or use RocketMQ"
            )
        queues = max(config.read_queue_nums, config.write_queue_nums)
        if queue_id >= queues:
            raise system_error(
                f"request queueId[{queue_id}] is illegal, topic[{topic}] has {queues} queues"
            )
        self._check_saved(config)
        if queue_id < 0:
            return randrange(config.write_queue_nums)  # noqa: S311  # any queue will do
        return queue_id

    def admit_send_back(self, topic: str, queue_nums: int) -> TopicConfig:
        """Return the topic for retries or dead letters; create it if it is missing."""
        self._check_not_deleting(topic)
        config = self._topics.create_in_send_back(topic, queue_nums)
        self._check_saved(config)
        return config

    def _check_not_deleting(self, topic: str) -> None:
        if topic in self.deleting:
            raise TopicNotSaved(topic)

    def _check_saved(self, config: TopicConfig) -> None:
        if self._must_wait(config):
            raise TopicNotSaved(config.topic_name)

    def _create(
        self, topic: str, default_topic: str | None, default_queue_nums: int
    ) -> TopicConfig:
        fault = topic_fault(topic) or light_queue_fault(topic)
        if fault is not None:
            raise system_error(fault)
        if topic in NOT_ALLOWED_SEND_TOPICS:
            raise no_permission(f"Sending message to topic[{topic}] is forbidden.")
        if is_system_topic(topic):
            raise no_permission(
                f"topic[{topic}] does not exist, and a message does not create it: RocketMQ "
                "reserves its name. Send to another topic"
            )
        config = self._topics.create_in_send(topic, default_topic or "", default_queue_nums)
        if config is None:
            raise topic_not_exist(topic)
        return config


# ---- Retries.

CLIENT_LIMIT_VERSION_MIN: Final = 121
"""V3_4_9: older clients send a meaningless limit."""
DEAD_LETTER_QUEUE: Final = 0


class RetryRules:
    """The rules of retries and dead letters, for all groups.

    A message returns in two ways: its consumer asks the broker to store it again (`message_back`),
    or sends it to the group's retry topic itself (`send_message`). Both have the same limit of
    retries: the consumer's or, without one, the group's. Past it, the message becomes a dead
    letter.
    """

    def __init__(self, admission: TopicAdmission, groups: SubscriptionGroupManager) -> None:
        self._admission = admission
        self._groups = groups

    def group(self, name: str) -> SubscriptionGroupConfig:
        """Return the configuration of a group, created if allowed; refuse an unknown group."""
        config = self._groups.find_or_create(name)
        if config is None:
            raise RequestRejected(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group not exist, {name:.255}",
            )
        return config

    def is_exhausted(
        self,
        group: SubscriptionGroupConfig,
        reconsume_times: int,
        max_reconsume_times: int | None,
        client_version: int,
    ) -> bool:
        """Return whether a message that came back this often has reached its limit of retries."""
        limit = group.retry_max_times
        if max_reconsume_times is not None and client_version >= CLIENT_LIMIT_VERSION_MIN:
            limit = max_reconsume_times
        return reconsume_times >= limit

    def dead_letter_topic(self, group: str) -> TopicConfig:
        """Return the topic of a group's dead letters; create it if it is missing."""
        return self._admission.admit_send_back(dlq_topic(group), 1)

    def redirect(
        self, message: StoredMessage, max_reconsume_times: int | None, client_version: int
    ) -> StoredMessage:
        """Return a message as it is, or as a dead letter if it was retried too often.

        Raises:
            RequestRejected: The message goes to the retry topic of a group that does not exist.
            TopicNotSaved: The group's dead-letter topic was just created.
        """
        if not message.topic.startswith(RETRY_PREFIX):
            return message
        group = self.group(message.topic[len(RETRY_PREFIX) :])
        if not self.is_exhausted(
            group, message.reconsume_times, max_reconsume_times, client_version
        ):
            return message
        return redirect_to_dlq(message, self.dead_letter_topic(group.group_name))


def redirect_to_dlq(message: StoredMessage, dead_letters: TopicConfig) -> StoredMessage:
    """Return a message as a dead letter: without its delay, otherwise unchanged."""
    return replace(
        message,
        topic=dead_letters.topic_name,
        queue_id=DEAD_LETTER_QUEUE,
        properties_text=change_properties(message.properties_text, WITHOUT_DELAY),
        magic=magic_of(dead_letters.topic_name),
    )
