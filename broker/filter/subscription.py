"""Subscriptions: parses a client's subscription to a `SubscriptionData`, and builds its filter.

Parsing follows RocketMQ's ``FilterAPI``, and the filters follow RocketMQ's broker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rmq_spark.wire.bodies.clients import SQL92_EXPRESSION, TAG_EXPRESSION, SubscriptionData
from rmq_spark.wire.message.properties import BLANKS, TAG_SEPARATOR, tags_code

from .errors import FilterError
from .filter_limits import DEFAULT_LIMITS, FilterLimits
from .tags_filter import TagsFilter

if TYPE_CHECKING:
    from .sql_filter import SqlFilter

SUB_ALL = "*"
RETRY_TOPIC_PREFIX = "%RETRY%"
TAGS_CHARACTERS_MAX = 65_536
"""The maximum length of the text of a TAG subscription, because parsing steps through it."""
TAGS_MAX = 4_096
"""The maximum number of tags of a TAG subscription; that many take 8 ms. RocketMQ has no limit."""


def build_subscription_data(
    topic: str, sub_string: str | None, expression_type: str | None = TAG_EXPRESSION
) -> SubscriptionData:
    """Build the subscription of a topic from its text.

    An SQL92 text is not compiled here, but by `message_filter`.

    Raises:
        FilterError: An SQL92 text is empty, or the text names no tag.
    """
    if not _is_tag_type(expression_type):
        if not sub_string:
            raise FilterError(
                f"{expression_type} subscription of {topic}",
                needed="an expression",
                found=sub_string,
            )
        return SubscriptionData(
            topic=topic,
            sub_string=sub_string,
            expression_type=expression_type or TAG_EXPRESSION,
        )
    if not sub_string or sub_string == SUB_ALL:
        return SubscriptionData(topic=topic, sub_string=SUB_ALL)
    tags = _tags(topic, sub_string)
    return SubscriptionData(
        topic=topic,
        sub_string=sub_string,
        tags_set=tags,
        code_set=frozenset(map(tags_code, tags)),
    )


def message_filter(
    subscription: SubscriptionData, limits: FilterLimits = DEFAULT_LIMITS, *, by_text: bool = False
) -> SqlFilter | TagsFilter | None:
    """Return the filter of a subscription, or None if all messages match.

    With ``by_text``, the filter compares tags as well as their codes, for clients that do not
    compare tags themselves.
    """
    if subscription.topic.startswith(RETRY_TOPIC_PREFIX) or subscription.class_filter_mode:
        return None
    if subscription.expression_type == SQL92_EXPRESSION:
        from .sql_filter import SqlFilter  # noqa: PLC0415  # most brokers never need it
        from .sql_parser import compile_sql  # noqa: PLC0415  # most brokers never need it

        return SqlFilter(compile_sql(subscription.sub_string, limits), len(subscription.sub_string))
    if not _is_tag_type(subscription.expression_type):
        raise FilterError(
            f"subscription of {subscription.topic}",
            needed=f"{TAG_EXPRESSION} or {SQL92_EXPRESSION} as its type",
            found=subscription.expression_type,
        )
    if subscription.sub_string in ("", SUB_ALL):
        return None
    if not subscription.code_set or (by_text and not subscription.tags_set):
        # The client left out the tags and codes; they follow from the text.
        subscription = build_subscription_data(subscription.topic, subscription.sub_string)
    return TagsFilter(subscription.code_set, subscription.tags_set if by_text else None)


def tag_count(sub_string: str) -> int:
    """Return an upper bound of the number of tags in a TAG subscription, without parsing it."""
    return sub_string.count(TAG_SEPARATOR) + 1


def _is_tag_type(expression_type: str | None) -> bool:
    return not expression_type or expression_type == TAG_EXPRESSION


def _tags(topic: str, sub_string: str) -> frozenset[str]:
    """Return the tags between ||, possibly none; raise FilterError if all are empty texts."""
    subject = f"{TAG_EXPRESSION} subscription of {topic}"
    if len(sub_string) > TAGS_CHARACTERS_MAX:
        needed = f"at most {TAGS_CHARACTERS_MAX} characters"
        raise FilterError(subject, needed=needed, found=sub_string)
    count = tag_count(sub_string)
    if count > TAGS_MAX:
        raise FilterError(
            subject, needed=f"at most {TAGS_MAX} tags, or several groups", found=count
        )
    pieces = sub_string.split(TAG_SEPARATOR)
    if not any(pieces):
        raise FilterError(subject, needed="a tag next to ||", found=sub_string)
    return frozenset(tag for piece in pieces if (tag := piece.strip(BLANKS)))
