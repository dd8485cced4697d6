"""TopicAdmission: decides whether a message may go to a topic's queue; creates topics if allowed.

A topic that is not on the disk yet accepts no message: a crash could lose the topic and keep the
message.
"""

from __future__ import annotations

from collections.abc import Callable
from random import randrange

from rmq_spark.wire.bodies.configs import TopicConfig
from rmq_spark.wire.codes import ResponseCode
from rmq_spark.wire.flags import TopicPermission
from rmq_spark.wire.names import light_queue_fault

from ...settings.config import BrokerConfig
from ...state.tables.topic_config import NOT_ALLOWED_SEND_TOPICS, TopicConfigManager, topic_fault
from ..queues import topic_not_exist
from ..request import RequestRejected, TopicNotSaved, system_error

_WRITE = TopicPermission.WRITE.value


class TopicAdmission:
    """The admission of messages to topics, which every request with messages has to pass."""

    def __init__(
        self,
        config: BrokerConfig,
        topics: TopicConfigManager,
        must_wait: Callable[[TopicConfig], bool],
        has_suspended: Callable[[str], bool],
    ) -> None:
        """Take the topics and two tests of what waits for them to be saved.

        ``must_wait`` says whether a message to a topic has to wait until that is saved.
        ``has_suspended`` says whether others wait for it, of which this may be one whose turn has
        come.
        """
        self._may_write = bool(config.broker_permission & _WRITE)
        self._topics = topics
        self._must_wait = must_wait
        self._has_suspended = has_suspended
        self.config_of: Callable[[str], TopicConfig | None] = topics.topics.get
        """The configuration that `admit` uses: its lasting answers hold for the same object."""
        self.deleting = topics.deleting
        """Topics whose answers do not last: sends to them wait until their deletion is over."""

    def is_cacheable(self, topic: str) -> bool:
        """Return whether an answer of `admit` also holds for the next message of the topic.

        It does not while others wait for the topic to be saved.
        """
        return not self._has_suspended(topic)

    def admit(
        self, topic: str, queue_id: int, default_topic: str | None, default_queue_nums: int
    ) -> int:
        """Return the queue for a message: the requested one, or any writable one if negative.

        Raises:
            RequestRejected: With RocketMQ's code for the reason.
            TopicNotSaved: The message may go there as soon as the topic is saved.
        """
        if not self._may_write:
            raise RequestRejected(
                ResponseCode.NO_PERMISSION, "the broker sending message is forbidden"
            )
        self._check_not_deleting(topic)
        config = self._topics.get(topic)
        if config is None or topic in NOT_ALLOWED_SEND_TOPICS:
            config = self._create(topic, default_topic, default_queue_nums)
        if not config.perm & _WRITE:
            raise RequestRejected(
                ResponseCode.NO_PERMISSION, f"the topic[{topic}] may not be written"
            )
        queues = max(config.read_queue_nums, config.write_queue_nums)
        if queue_id >= queues:
            raise system_error(
                f"request queueId[{queue_id}] is illegal, topic[{topic}] has {queues} queues"
            )
        self._check_saved(config)
        if queue_id < 0:
            return randrange(config.write_queue_nums)  # noqa: S311  # any will do
        return queue_id

    def admit_send_back(self, topic: str, queue_nums: int) -> TopicConfig:
        """Return the topic for retries or dead letters, and make it if it is missing.

        Raises:
            TopicNotSaved: Messages may go there as soon as the topic is saved.
        """
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
            raise RequestRejected(
                ResponseCode.NO_PERMISSION, f"Sending message to topic[{topic}] is forbidden."
            )
        config = self._topics.create_in_send(topic, default_topic or "", default_queue_nums)
        if config is None:
            raise topic_not_exist(topic)
        return config
