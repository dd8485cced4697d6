"""Subscriptions to topics: tags, or a condition in SQL92, as sent to brokers.

Tags are trimmed as in Java: of U+0020 and the controls below it, and of no other white space.
Brokers compare tags by their hashes, which different tags can share, so the consumer compares the
texts again.

A tag may contain commas, blanks and operators, as Java's clients send any text. A subscription
whose tag looks like a list of tags or a condition is accepted, and logged once.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Final, NamedTuple

from rmq_spark.client.arguments import check_kind, check_text, check_topic, check_utf8
from rmq_spark.client.errors import MessageRejected
from rmq_spark.client.message import MessageExt
from rmq_spark.errors import excerpt
from rmq_spark.wire.bodies.clients import SQL92_EXPRESSION, TAG_EXPRESSION, SubscriptionData
from rmq_spark.wire.message.properties import BLANKS, TAG_SEPARATOR, tags_code

_log = logging.getLogger(__name__)

ALL = "*"
_SUSPECT_CHARACTERS: Final = re.compile(r"[\s,;|<>=]")
"""Characters that few tags have, and lists of tags and conditions in SQL92 do."""


class MessageSelector(NamedTuple):
    """A choice of messages of a topic; usually made with `by_tag` or `by_sql`.

    Attributes:
        expression: Tags, as ``"red || blue"``, or a condition in SQL92.
        expression_type: Kind of the expression: TAG or SQL92.
    """

    expression: str = ALL
    expression_type: str = TAG_EXPRESSION


def by_tag(expression: str = ALL) -> MessageSelector:
    """Return a selector of messages with one of several tags (``"red || blue"``; ``"*"`` for all).

    Only ``||`` separates tags: ``"red, blue"`` is one tag, and causes a warning in the log.

    Example:
        consumer.subscribe("orders", by_tag("paid || refunded"))

    Raises:
        TypeError: The expression is not a str.
    """
    expression = check_text("expression", expression, "paid || refunded")
    return MessageSelector(expression, TAG_EXPRESSION)


def by_sql(condition: str) -> MessageSelector:
    """Return a selector of messages whose properties fulfil a condition in SQL92.

    RocketMQ's brokers must have ``enablePropertyFilter=true``, or they refuse the subscription.

    Example:
        consumer.subscribe("orders", by_sql("size > 3 AND colour = 'red'"))

    Raises:
        TypeError: The condition is not a str.
    """
    condition = check_text("condition", condition, "size > 3")
    return MessageSelector(condition, SQL92_EXPRESSION)


def check_selector(selector: MessageSelector) -> None:
    """Raise TypeError for anything that is not a selector of messages."""
    needed, example = "tags (str) or a selector", "'red || blue', or by_sql('size > 3')"
    check_kind("selector", selector, MessageSelector, needed, example)
    check_text("expression of selector", selector.expression, "red || blue")
    check_text("expression_type of selector", selector.expression_type, TAG_EXPRESSION)


def subscription_data(topic: str, selector: MessageSelector, sub_version: int) -> SubscriptionData:
    """Return a subscription in the form that brokers receive."""
    topic = check_topic(topic)
    expression = selector.expression.strip(BLANKS)
    check_utf8("subscription", expression)
    if selector.expression_type != TAG_EXPRESSION:
        if not expression:
            raise MessageRejected(
                "subscription", f"a condition in {selector.expression_type}", "none"
            )
        return SubscriptionData(
            topic=topic,
            sub_string=expression,
            sub_version=sub_version,
            expression_type=selector.expression_type,
        )
    if expression in {"", ALL}:
        return SubscriptionData(topic=topic, sub_string=ALL, sub_version=sub_version)
    tags = frozenset(tag for part in expression.split(TAG_SEPARATOR) if (tag := part.strip(BLANKS)))
    if not tags:
        raise MessageRejected("subscription", "tags, for example red || blue", selector.expression)
    for tag in tags:
        if _SUSPECT_CHARACTERS.search(tag):
            _warn_once(tag)
    return SubscriptionData(
        topic=topic,
        sub_string=expression,
        tags_set=tags,
        code_set=frozenset(map(tags_code, tags)),
        sub_version=sub_version,
    )


@lru_cache(maxsize=1024)  # warns once for each tag
def _warn_once(tag: str) -> None:
    _log.warning(
        'the subscription has one tag %s. Separate several by ||, as in "paid || refunded"; '
        'for a condition, use by_sql("size > 3")',
        excerpt(tag),
    )


def filter_by_tags(
    messages: Iterable[MessageExt], subscription: SubscriptionData
) -> list[MessageExt]:
    """Return the messages with matching tags; drop those that match only by the tags' hash."""
    tags = subscription.tags_set
    if not tags:
        return list(messages)
    return [message for message in messages if message.tags in tags]
