"""RetryRules: how often a group tries a message, and where it goes after too many attempts.

A message returns in two ways: its consumer asks the broker to store it again (`message_back`), or
sends it to the group's retry topic itself (`send_message`). Both use the same limit: the
consumer's, or else the group's. After that it is a dead letter.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from rmq_spark.wire.bodies.configs import SubscriptionGroupConfig, TopicConfig
from rmq_spark.wire.codes import ResponseCode
from rmq_spark.wire.properties import change_properties
from rmq_spark.wire.record import StoredMessage, magic_of

from ...schedule.delayed_message import WITHOUT_DELAY
from ...state.tables.subscription_group import SubscriptionGroupManager
from ...state.tables.topic_config import RETRY_PREFIX, dlq_topic
from ..request import RequestRejected
from .admission import TopicAdmission

CLIENT_LIMIT_VERSION_MIN: Final = 121
"""V3_4_9: older clients send a limit that means nothing."""
DEAD_LETTER_QUEUE: Final = 0


class RetryRules:
    """The rules of retries and dead letters, for all groups."""

    def __init__(self, admission: TopicAdmission, groups: SubscriptionGroupManager) -> None:
        self._admission = admission
        self._groups = groups

    def group(self, name: str) -> SubscriptionGroupConfig:
        """Return the configuration of a group that may retry.

        Raises:
            RequestRejected: There is no such group, and none is made.
        """
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
        """Return whether a message that came back this often has been tried enough."""
        limit = group.retry_max_times
        if max_reconsume_times is not None and client_version >= CLIENT_LIMIT_VERSION_MIN:
            limit = max_reconsume_times
        return reconsume_times >= limit

    def dead_letter_topic(self, group: str) -> TopicConfig:
        """Return the topic of a group's dead letters, and make it if it is missing.

        Raises:
            TopicNotSaved: Dead letters may go there as soon as the topic is saved.
        """
        return self._admission.admit_send_back(dlq_topic(group), 1)

    def redirect(
        self, message: StoredMessage, max_reconsume_times: int | None, client_version: int
    ) -> StoredMessage:
        """Return a message as it is, or as a dead letter if it was retried too often.

        Raises:
            RequestRejected: The message goes to the retry topic of a group that does not exist.
            TopicNotSaved: The message is the first dead letter of its group.
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
    """Return a message as a dead letter: not delayed any more, otherwise unchanged."""
    return replace(
        message,
        topic=dead_letters.topic_name,
        queue_id=DEAD_LETTER_QUEUE,
        properties_text=change_properties(message.properties_text, WITHOUT_DELAY),
        magic=magic_of(dead_letters.topic_name),
    )
