"""Dead letters: reads them, and resends them to their original topics.

A dead letter is in a topic of its group. A resent one is a new message in the original topic, with
its body, tag, keys and properties: all groups of that topic receive it. The dead letter stays,
because RocketMQ's logs are append-only. ``rocketpoll dlq`` and the console share this module.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from rmq_spark.cli.groups.group_state import check_group_exists
from rmq_spark.cli.messages.message_text import user_properties
from rmq_spark.cli.shell.failures import Failure, describe_error
from rmq_spark.cli.shell.parameter_types import (
    PositionKind,
    TopicPosition,
    resolve_ranges,
    store_order_key,
)
from rmq_spark.client.errors import (
    BrokerRefused,
    ClientError,
    MessageRejected,
    RouteNotFound,
    TopicNotUsable,
)
from rmq_spark.client.message import Message, MessageExt
from rmq_spark.wire.compression import PLAIN_BYTES_MAX
from rmq_spark.wire.names import DLQ_PREFIX, RETRY_PREFIX, dlq_topic

if TYPE_CHECKING:
    from rmq_spark.client.admin.admin import Admin
    from rmq_spark.client.results import SendResult

_GROUP: Final = "rocketpoll-dlq"
_SHARDING_KEY: Final = "__SHARDINGKEY"
_SINGLE_MESSAGE_ERRORS: Final = (BrokerRefused, MessageRejected, RouteNotFound, TopicNotUsable)
"""Errors that say nothing about other letters."""
_ORIGIN_ID_PROPERTIES: Final = ("ORIGIN_MESSAGE_ID", "DLQ_ORIGIN_MESSAGE_ID")


class DeadLetterCount(NamedTuple):
    """The dead letters of a group: how many there are, and when the last was stored (ms), or 0."""

    group: str
    messages: int
    last_stored_ms: int


def groups_with_dead_letters(admin: Admin) -> list[DeadLetterCount]:
    """Return the groups that have dead letters, by name."""
    found = []
    for topic in sorted(each for each in admin.topics() if each.startswith(DLQ_PREFIX)):
        offsets = admin.topic_offsets(topic).values()
        count = sum(each.max_offset - each.min_offset for each in offsets)
        last = max((each.last_update_timestamp for each in offsets), default=0)
        if count:
            found.append(DeadLetterCount(topic.removeprefix(DLQ_PREFIX), count, last))
    if not found:
        admin.masters()
    return found


class ResendResult(NamedTuple):
    """A dead letter, and where its original is stored now, or why it was not sent."""

    letter: MessageExt
    result: SendResult | None
    fault: str | None = None


def resend_dead_letters(
    admin: Admin, group: str, chosen: Iterable[MessageExt]
) -> Iterator[ResendResult]:
    """Send the originals of dead letters, and yield the result for each.

    One that cannot be sent does not hold up the others, unless no broker can be reached: then the
    rest is not tried.
    """
    from rmq_spark.client.producer.prepared_message import SendRules  # noqa: PLC0415  # not to look
    from rmq_spark.client.producer.producer import Producer  # noqa: PLC0415  # --help needs no client

    rules = SendRules(_GROUP, max_message_bytes=PLAIN_BYTES_MAX)  # brokers have taken it before
    with Producer(_GROUP, instance=admin.instance, rules=rules) as producer:
        for letter in chosen:
            try:
                result = producer.send(original_message(letter, group))
            except Failure as error:  # noqa: PERF203  # each has an outcome of its own
                yield ResendResult(letter, None, error.message)
            except ClientError as error:
                yield ResendResult(letter, None, describe_error(error))
                if not isinstance(error, _SINGLE_MESSAGE_ERRORS):
                    return
            else:
                yield ResendResult(letter, result)


def read_dead_letters(admin: Admin, group: str) -> Iterator[MessageExt]:
    """Yield all dead letters of a group, the oldest first; one that cannot be read has a fault."""
    from rmq_spark.client.reading.stored_messages import stored_messages  # noqa: PLC0415  # not for help

    try:
        spans = resolve_ranges(
            admin.instance, dlq_topic(group), TopicPosition(PositionKind.START), None
        )
    except RouteNotFound:
        admin.masters()
        check_group_exists(admin, group)
        raise Failure(
            f"{group} has no dead letters",
            "Run rocketpoll dlq list to see the groups that have dead letters",
        ) from None

    queues = [stored_messages(admin.instance.api, span) for span in spans]
    return heapq.merge(*queues, key=store_order_key)


def select_by_id(letters: Iterable[MessageExt], ids: Iterable[str], group: str) -> list[MessageExt]:
    """Return the dead letters with these ids, their own or those of their originals."""
    letters = list(letters)
    found = []
    for wanted in ids:
        same = [
            letter
            for letter in letters
            if wanted in (letter.message_id, letter.offset_message_id)
            or wanted in map(letter.properties.get, _ORIGIN_ID_PROPERTIES)
        ]
        if not same:
            raise Failure(
                f"{group} has no dead letter {wanted}",
                f"List their ids with rocketpoll dlq show {group} -f '%i\\n'",
            )
        found += same
    return found


def original_message(letter: MessageExt, group: str) -> Message:
    """Return the original message of a dead letter, to be sent again."""
    if letter.fault is not None:
        queue = letter.queue
        raise Failure(
            f"the dead letter {letter.message_id} of {group} at {queue.broker_name}:"
            f"{queue.queue_id}@{letter.queue_offset} cannot be read: {letter.fault}",
            "Print its stored bytes with rocketpoll dlq show -o json, and send them with "
            "rocketpoll produce",
        )
    properties = letter.properties
    topic = properties.get("DLQ_ORIGIN_TOPIC") or letter.real_topic
    if topic.startswith((DLQ_PREFIX, RETRY_PREFIX)):
        raise Failure(
            f"the dead letter {letter.message_id} of {group} does not name its original topic",
            "Print it with rocketpoll dlq show -o json, and send it with rocketpoll produce",
        )
    return Message(
        topic,
        letter.body,
        tags=letter.tags,
        keys=list(letter.keys) or None,
        properties=user_properties(letter),
        flag=letter.flag,
        sharding_key=properties.get(_SHARDING_KEY),
    )
