"""Names of topics and groups, checked before anything is sent by RocketMQ's rules (`wire.names`).

This module knows no message.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from rmq_spark.client.arguments import check_text
from rmq_spark.client.errors import MessageRejected
from rmq_spark.errors import legible
from rmq_spark.wire.names import (
    GROUP_CHARACTERS_MAX,
    NOT_TO_BE_SENT_TO,
    group_fault,
    topic_characters_max,
    topic_fault,
)

CLIENT_ID_BYTES_MAX: Final = 255
"""Most bytes of the name of a directory; brokers take longer ids."""

_SHOWN_MAX: Final = 60


def check_topic(topic: str, what: str = "topic") -> str:
    """Return the topic, if its name is valid; ``what`` is the argument that errors name.

    Raises:
        MessageRejected: The name is not valid.
        TypeError: The name is not a str.
    """
    topic = check_text(what, topic, "orders")
    if topic_fault(topic) is not None:
        raise _rejected(what, topic, topic_characters_max(topic))
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


def check_group(group: str, what: str = "group") -> str:
    """Return the group, if its name is valid; ``what`` is the argument that errors name.

    Raises:
        MessageRejected: The name is not valid.
        TypeError: The name is not a str.
    """
    group = check_text(what, group, "billing")
    if group_fault(group) is not None:
        raise _rejected(what, group, GROUP_CHARACTERS_MAX)
    return group


def check_client_id(client_id: str) -> str:
    """Return the id of a client, if brokers take it and a directory can have its name.

    Offsets in BROADCASTING are kept in a directory of that name.

    Raises:
        MessageRejected: It is empty or too long, or would lead elsewhere.
        TypeError: It is not a str.
    """
    client_id = check_text("client_id", client_id, "10.0.0.1@42")
    is_path = "/" in client_id or client_id in {".", ".."}
    if not client_id.strip() or is_path or not client_id.isprintable():
        needed = "a name without / and control characters that is neither . nor .."
        raise MessageRejected("client_id", needed, legible(client_id))
    size = len(client_id.encode())
    if size > CLIENT_ID_BYTES_MAX:
        raise MessageRejected(
            "client_id", f"at most {CLIENT_ID_BYTES_MAX} bytes in UTF-8", f"{size} bytes"
        )
    return client_id


def _rejected(kind: str, name: str, characters_max: int) -> MessageRejected:
    needed = f"letters, digits and % | _ -, 1 to {characters_max} of them"
    found = name if len(name) <= _SHOWN_MAX else f"{name[:_SHOWN_MAX]}..., {len(name)} characters"
    return MessageRejected(kind, needed, found)
