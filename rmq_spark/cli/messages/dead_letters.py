"""Dead letters: reads them, and resends them to their original topics.

A dead letter is in a topic of its group, or in the topic to which a Spark query sends unreadable
messages (option deadLetterTopic; `client.forwarding` has the properties). A resent one is a new
message in the original topic, with body, tag, keys and properties of the dead letter: all groups of
that topic receive it. The dead letter stays, because RocketMQ's logs are append-only. ``rocketpoll
dlq`` and the console share this module.
"""

from __future__ import annotations

import heapq
import secrets
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from rmq_spark.cli.groups.group_state import check_group_exists
from rmq_spark.cli.shell.failures import Failure, describe_error
from rmq_spark.cli.shell.parameter_types import (
    PositionKind,
    TopicPosition,
    rate_limited,
    resolve_ranges,
    store_order_key,
)
from rmq_spark.client.errors import (
    BrokerRefused,
    ClientError,
    MessageRejected,
    NotResendable,
    RouteNotFound,
    TopicNotUsable,
)
from rmq_spark.client.forwarding import DEAD_LETTER_BODY, message_of_dead_letter
from rmq_spark.client.subscriptions import MessageSelector, filter_by_tags, subscription_data
from rmq_spark.wire.compression import PLAIN_BYTES_MAX
from rmq_spark.wire.names import DLQ_PREFIX, dlq_topic

if TYPE_CHECKING:
    from rmq_spark.client.admin.admin import Admin
    from rmq_spark.client.message import Message, MessageExt
    from rmq_spark.client.results import SendResult

_START: Final = TopicPosition(PositionKind.START)
_GROUP: Final = "rocketpoll-dlq"
_HOW_TO_SEND: Final = (
    "Print its stored bytes with rocketpoll dlq show -o json, and send them with rocketpoll produce"
)
_SINGLE_MESSAGE_ERRORS: Final = (BrokerRefused, MessageRejected, RouteNotFound, TopicNotUsable)
"""Errors that concern only one dead letter: the next one is sent all the same."""
_ORIGIN_ID_PROPERTIES: Final = ("ORIGIN_MESSAGE_ID", "DLQ_ORIGIN_MESSAGE_ID")


class DeadLetterSource(NamedTuple):
    """A topic of dead letters: that of a group, or one that Spark sends to."""

    topic: str
    group: str | None = None

    @property
    def name(self) -> str:
        """The group or the topic, for messages."""
        return self.group or self.topic

    @property
    def arguments(self) -> str:
        """The arguments that name this source on a command line."""
        return self.group or f"--topic {self.topic}"


def group_source(group: str) -> DeadLetterSource:
    """Return the source of a group's dead letters."""
    return DeadLetterSource(dlq_topic(group), group)


class DeadLetterCount(NamedTuple):
    """The number of dead letters, and when the last was stored (ms), or 0."""

    source: DeadLetterSource
    messages: int
    last_stored_ms: int


def groups_with_dead_letters(admin: Admin) -> list[DeadLetterCount]:
    """Return the groups that have dead letters, by name."""
    topics = sorted(each for each in admin.topics() if each.startswith(DLQ_PREFIX))
    sources = [DeadLetterSource(topic, topic.removeprefix(DLQ_PREFIX)) for topic in topics]
    found = [each for each in count_dead_letters(admin, sources) if each.messages]
    if not found:
        admin.masters()
    return found


def count_dead_letters(admin: Admin, sources: Iterable[DeadLetterSource]) -> list[DeadLetterCount]:
    """Return the number of dead letters of each source."""
    found = []
    for source in sources:
        offsets = admin.topic_offsets(source.topic).values()
        count = sum(each.max_offset - each.min_offset for each in offsets)
        last = max((each.last_update_timestamp for each in offsets), default=0)
        found.append(DeadLetterCount(source, count, last))
    return found


class ResendResult(NamedTuple):
    """A dead letter, and where its original is stored now, or why it was not sent."""

    letter: MessageExt
    result: SendResult | None
    fault: str | None = None


def resend_dead_letters(
    admin: Admin,
    chosen: Iterable[MessageExt],
    to: str | None = None,
    rate: float | None = None,
) -> Iterator[ResendResult]:
    """Send the originals of dead letters, and yield the result for each.

    Messages go to topic ``to``, by default to the original topic of each, ``rate`` a second at
    most. If one cannot be sent, the others are sent all the same, unless no broker can be reached.
    """
    from rmq_spark.client.producer.prepared_message import SendRules  # noqa: PLC0415  # only to resend
    from rmq_spark.client.producer.producer import Producer  # noqa: PLC0415  # --help needs no client

    rules = SendRules(_GROUP, max_message_bytes=PLAIN_BYTES_MAX)  # brokers accepted the size before
    group = f"{_GROUP}-{secrets.token_hex(4)}"  # the console may resend for several at a time
    with Producer(group, instance=admin.instance, rules=rules) as producer:
        for letter in rate_limited(chosen, rate):
            try:
                result = producer.send(original_message(letter, to))
            except Failure as error:  # noqa: PERF203  # each has its own result
                yield ResendResult(letter, None, error.message)
            except ClientError as error:
                yield ResendResult(letter, None, describe_error(error))
                if not isinstance(error, _SINGLE_MESSAGE_ERRORS):
                    return
            else:
                yield ResendResult(letter, result)


def read_dead_letters(
    admin: Admin,
    source: DeadLetterSource,
    position: TopicPosition = _START,
    end: TopicPosition | None = None,
    selector: MessageSelector | None = None,
) -> Iterator[MessageExt]:
    """Yield dead letters between two positions, the oldest first.

    A dead letter that cannot be read has a fault, and no tag that a ``selector`` could match.
    """
    from rmq_spark.client.reading.bulk_pull import stored_messages  # noqa: PLC0415  # --help does not need it

    try:
        ranges = resolve_ranges(admin.instance, source.topic, position, None, end)
    except RouteNotFound:
        if source.group is None:
            raise
        admin.masters()
        check_group_exists(admin, source.group)
        raise Failure(
            f"{source.group} has no dead letters",
            "Run rocketpoll dlq list to see the groups that have dead letters",
        ) from None

    queues = [stored_messages(admin.instance.api, bounds) for bounds in ranges]
    strip = admin.instance.namespace.strip_message
    found = map(strip, heapq.merge(*queues, key=store_order_key))
    if selector is None:
        return found
    subscription = subscription_data(source.topic, selector, 0)
    return (letter for letter in found if filter_by_tags([letter], subscription))


def without_repeats(letters: Iterable[MessageExt]) -> list[MessageExt]:
    """Return dead letters without those that a Spark query has sent again, with the same id."""
    seen: set[str] = set()
    found = []
    for letter in letters:
        if DEAD_LETTER_BODY in letter.properties:
            if letter.message_id in seen:
                continue
            seen.add(letter.message_id)
        found.append(letter)
    return found


def select_by_id(
    letters: Iterable[MessageExt], ids: Iterable[str], source: DeadLetterSource
) -> list[MessageExt]:
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
                f"{source.name} has no dead letter {wanted}",
                f"List their ids with rocketpoll dlq show {source.arguments} -f '%i\\n'",
            )
        found += same
    return found


def original_message(letter: MessageExt, to: str | None = None) -> Message:
    """Return the original message of a dead letter, to be sent to its topic or another."""
    try:
        return message_of_dead_letter(letter, to)
    except NotResendable as error:
        fix = "Name a topic with --to" if error.lacks_topic else _HOW_TO_SEND
        raise Failure(f"{error}", fix) from None
