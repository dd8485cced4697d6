"""Names of topics and groups, as brokers accept them: checked before anything is sent.

RocketMQ's own rules, with RocketMQ's own prefixes. It knows no message.
"""

from __future__ import annotations

import re
from typing import Final

from rmq_spark.client.errors import MessageRejected

RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"
TOPIC_CHARACTERS_MAX: Final = 127
LONG_TOPIC_CHARACTERS_MAX: Final = 255
"""Of retry topics and dead-letter queues, which carry a group's name."""

GROUP_CHARACTERS_MAX: Final = LONG_TOPIC_CHARACTERS_MAX - len(RETRY_PREFIX)

NOT_TO_BE_SENT_TO: Final = frozenset(
    [
        "SCHEDULE_TOPIC_XXXX",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
    ]
)
"""Topics that only the broker itself writes to."""

_CHARACTERS = re.compile(r"[%|a-zA-Z0-9_-]+")
_NEEDED = "letters, digits and % | _ - only"


def check_topic(topic: str) -> str:
    """The topic, if it can be one.

    Raises:
        MessageRejected: It cannot.
    """
    is_long = topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
    return _checked("topic", topic, LONG_TOPIC_CHARACTERS_MAX if is_long else TOPIC_CHARACTERS_MAX)


def check_topic_to_send_to(topic: str) -> str:
    """The topic, if clients may send to it.

    Raises:
        MessageRejected: They may not.
    """
    if topic in NOT_TO_BE_SENT_TO:
        raise MessageRejected("topic", "one that is not the broker's own", topic)
    return check_topic(topic)


def check_group(group: str) -> str:
    """The group, if it can be one.

    Raises:
        MessageRejected: It cannot.
    """
    return _checked("group", group, GROUP_CHARACTERS_MAX)


def retry_topic(group: str) -> str:
    """Where a group's messages wait that are to be consumed again."""
    return RETRY_PREFIX + group


def dlq_topic(group: str) -> str:
    """Where a group's messages end that were tried too often."""
    return DLQ_PREFIX + group


def _checked(kind: str, name: str, characters_max: int) -> str:
    if not _CHARACTERS.fullmatch(name):
        raise MessageRejected(kind, _NEEDED, name)
    if len(name) > characters_max:
        raise MessageRejected(kind, f"at most {characters_max} characters", f"{len(name)} characters")
    return name
