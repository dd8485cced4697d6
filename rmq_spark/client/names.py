"""Names of topics and groups, checked before anything is sent by RocketMQ's rules (`wire.names`).

This module knows no message.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from rmq_spark.client.arguments import check_text
from rmq_spark.client.errors import MessageRejected
from rmq_spark.wire.names import (
    GROUP_CHARACTERS_MAX,
    NOT_TO_BE_SENT_TO,
    group_fault,
    topic_characters_max,
    topic_fault,
)

_SHOWN_MAX: Final = 60


def check_topic(topic: str) -> str:
    """Return the topic, if its name is valid.

    Raises:
        MessageRejected: The name is not valid.
        TypeError: The name is not a str.
    """
    check_text("topic", topic, "orders")
    if topic_fault(topic) is not None:
        raise _rejected("topic", topic, topic_characters_max(topic))
    return topic


@lru_cache(maxsize=256)  # successive messages mostly have the same topic
def check_topic_to_send_to(topic: str) -> str:
    """Return the topic, if clients may send to it.

    Raises:
        MessageRejected: The name is not valid, or the topic is the broker's own.
    """
    if topic in NOT_TO_BE_SENT_TO:
        raise MessageRejected("topic", "one that is not the broker's own", topic)
    return check_topic(topic)


def check_group(group: str) -> str:
    """Return the group, if its name is valid.

    Raises:
        MessageRejected: The name is not valid.
        TypeError: The name is not a str.
    """
    check_text("group", group, "billing")
    if group_fault(group) is not None:
        raise _rejected("group", group, GROUP_CHARACTERS_MAX)
    return group


def _rejected(kind: str, name: str, characters_max: int) -> MessageRejected:
    needed = f"letters, digits and % | _ -, 1 to {characters_max} of them"
    found = name if len(name) <= _SHOWN_MAX else f"{name[:_SHOWN_MAX]}..., {len(name)} characters"
    return MessageRejected(kind, needed, found)
