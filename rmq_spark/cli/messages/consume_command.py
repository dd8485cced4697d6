"""``rocketpoll consume`` and ``rocketpoll tail``: print messages of topics as text.

No offsets of users' groups change: messages are read between offsets (`BulkPull`), in the order in
which they were stored, or followed by a consumer of RocketMQ's own group for tools.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from rmq_spark.cli.messages.message_text import BODY_FORMATS, TEXT, renderer, show_messages
from rmq_spark.cli.shell.command_tree import CommandWithExample
from rmq_spark.cli.shell.connection import ClusterAccess, connection_options
from rmq_spark.cli.shell.failures import show_client_warnings
from rmq_spark.cli.shell.parameter_types import (
    PositionKind,
    QueueName,
    TopicPosition,
    parse_position,
    parse_queue,
    resolve_ranges,
    store_order_key,
)
from rmq_spark.client.message import MessageExt
from rmq_spark.client.subscriptions import (
    MessageSelector,
    by_sql,
    by_tag,
    filter_by_tags,
    subscription_data,
)

if TYPE_CHECKING:
    from rmq_spark.client.admin.admin import Admin
    from rmq_spark.client.consumer.lite_pull_consumer import Consumer
    from rmq_spark.client.reading.read_bounds import ReadRange
    from rmq_spark.wire.message_queue import MessageQueue

_POLL_MS: Final = 500
_KEY_QUERY_MESSAGES: Final = 64
_CHUNK_BYTES: Final = 1 << 20


class ConsumeQuery(NamedTuple):
    """The messages that a user selects."""

    topics: tuple[str, ...]
    position: TopicPosition
    end: TopicPosition
    selector: MessageSelector
    key: str | None
    queue: QueueName | None
    limit: int | None


_OPTIONS: Final = (
    click.option("-n", "--count", type=click.IntRange(1), metavar="N",
                 help="Stop after N messages."),
    click.option("--tags", metavar="TAGS", help="Only messages with one of these tags, for example "
                 "'paid || refunded'."),
    click.option("--sql", metavar="CONDITION",
                 help="Only messages whose properties match an SQL92 condition, for example "
                 "'total > 5'."),
    click.option("-q", "--queue", type=parse_queue, metavar="N|BROKER:N",
                 help="Limit to this queue. [default: all]"),
    click.option("-f", "--format", "text_format", metavar="FORMAT",
                 help="Line format as in kcat: %t topic, %b broker, %p queue, %o offset, %T store "
                 "time (ms), %k keys, %g tags, %i id, %s body, %S body size, %h properties, "
                 "%r failed deliveries; "
                 "\\n \\t \\xHH."),
    click.option("-o", "--output", type=click.Choice(BODY_FORMATS), default=TEXT,
                 show_default=True,
                 help="One line per message, JSON lines, or bodies only, as bytes or in hex."),
)  # fmt: skip


def _consume_options(function: Any) -> Any:
    """Add the options that select messages and their format."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


@click.command(
    cls=CommandWithExample,
    example="rocketpoll consume orders --offset -10\n"
    "rocketpoll consume orders --from 2026-11-23T09:00Z --until 2026-11-23T09:05Z\n"
    "rocketpoll consume orders --offset -1h --tags paid -f '%o %k %s\\n'\n"
    "rocketpoll consume orders -n 1 -o json",
)
@click.argument("topic")
@click.option("--offset", "--from", "place", type=parse_position, default="start",
              show_default=True, metavar="POSITION",
              help="Where to start in each queue: start, end, -10 (ten before the end), +5 (five "
              "after the start), 42, or a time: -1h, 09:00, 2026-11-23T09:00Z.")  # fmt: skip
@click.option("--until", "end", type=parse_position, default="end", show_default=True,
              metavar="POSITION",
              help="Where to stop in each queue, before this position.")  # fmt: skip
@click.option("--key", metavar="KEY", help="Only messages with this key, found in the index.")
@click.option("--follow", is_flag=True, help="At the end, wait for new messages until Ctrl-C.")
@_consume_options
@connection_options
def consume(
    topic: str,
    place: TopicPosition,
    end: TopicPosition,
    key: str | None,
    count: int | None,
    tags: str | None,
    sql: str | None,
    queue: QueueName | None,
    text_format: str | None,
    output: str,
    *,
    follow: bool,
    access: ClusterAccess,
) -> None:
    """Print messages of a topic in the order in which they were stored. Moves no offsets.

    Stops at the last message that was there at the start, unless --follow is given.
    """
    if follow and end.kind is not PositionKind.END:
        raise click.UsageError("--follow and --until exclude each other. Give one")
    wish = ConsumeQuery((topic,), place, end, _selector(tags, sql), key, queue, count)
    render = renderer(output, text_format)
    with access.admin() as admin:
        if follow:
            show_messages(islice(_follow(admin, wish), count), render, flush_each=True)
        elif key is not None:
            show_messages(islice(_query_by_key(admin, wish, key), count), render)
        else:
            show_messages(islice(_read_stored(admin, wish), count), render)


@click.command(cls=CommandWithExample, example="rocketpoll tail orders payments -n 1")
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...")
@_consume_options
@connection_options
def tail(
    topics: tuple[str, ...],
    count: int | None,
    tags: str | None,
    sql: str | None,
    queue: QueueName | None,
    text_format: str | None,
    output: str,
    access: ClusterAccess,
) -> None:
    """Print new messages of one or more topics as they arrive, until Ctrl-C."""
    end = TopicPosition(PositionKind.END)
    wish = ConsumeQuery(topics, end, end, _selector(tags, sql), None, queue, count)
    render = renderer(output, text_format)
    with access.admin() as admin:
        show_messages(islice(_follow(admin, wish), count), render, flush_each=True)


def _selector(tags: str | None, sql: str | None) -> MessageSelector:
    if tags is not None and sql is not None:
        raise click.UsageError(
            "--tags and --sql exclude each other. Use TAGS in the condition of --sql"
        )
    return by_sql(sql) if sql is not None else by_tag(tags or "*")


def _read_stored(admin: Admin, query: ConsumeQuery) -> Iterator[MessageExt]:
    """Yield the messages that are stored now, by store time."""
    from rmq_spark.client.consumer.brokers.broker_client import GroupBrokerClient  # noqa: PLC0415  # not for help
    from rmq_spark.client.reading.read_bounds import READER_GROUP  # noqa: PLC0415  # --help needs no client

    subscription = subscription_data(query.topics[0], query.selector, 0)
    GroupBrokerClient(admin.instance, READER_GROUP, lambda _: None).check_subscription(subscription)
    spans = resolve_ranges(admin.instance, query.topics[0], query.position, query.queue, query.end)
    queues = [_read_range(admin, span, query) for span in spans if span.start < span.end]
    return heapq.merge(*queues, key=store_order_key)


def _read_range(admin: Admin, span: ReadRange, query: ConsumeQuery) -> Iterator[MessageExt]:
    from rmq_spark.client.reading.bulk_pull import PullRules, stored_messages  # noqa: PLC0415  # --help needs no client

    subscription = subscription_data(span.queue.topic, query.selector, 0)
    rules = PullRules(
        subscription=subscription.sub_string,
        expression_type=query.selector.expression_type,
        in_flight=1 if query.limit else 2,
        chunk_bytes=_CHUNK_BYTES,
        chunk_messages=min(query.limit or 10_000, 10_000),
    )
    for message in stored_messages(admin.instance.api, span, rules):
        # The tag of a damaged record may be damaged; the broker considered it a match.
        if message.fault is not None or filter_by_tags([message], subscription):
            yield message


def _query_by_key(admin: Admin, query: ConsumeQuery, key: str) -> Iterator[MessageExt]:
    """Yield the messages that the brokers' index has for a key."""
    kind, number = query.position
    if kind not in (PositionKind.START, PositionKind.TIME):
        raise click.UsageError(
            "--key needs --offset start or a time. Use another position only with --follow"
        )
    if query.selector.expression_type != by_tag().expression_type:
        raise click.UsageError("--key and --sql need --follow. Add it, or select by --tags")
    if query.end.kind not in (PositionKind.END, PositionKind.TIME):
        raise click.UsageError("--key needs --until end or a time. Use another position without it")
    topic = query.topics[0]
    until = {} if query.end.kind is PositionKind.END else {"end_ms": query.end.number - 1}
    found = admin.messages_by_key(
        topic,
        key,
        begin_ms=number if kind is PositionKind.TIME else 0,
        **until,
        messages_max=max(query.limit or _KEY_QUERY_MESSAGES, _KEY_QUERY_MESSAGES),
    )
    chosen = filter_by_tags(found, subscription_data(topic, query.selector, 0))
    return iter(
        sorted(
            (each for each in chosen if query.queue is None or query.queue.matches(each.queue)),
            key=store_order_key,
        )
    )


def _follow(admin: Admin, query: ConsumeQuery) -> Iterator[MessageExt]:
    """Yield messages from the requested position, and new ones, endlessly."""
    from rmq_spark.client.consumer.lite_pull_consumer import Consumer  # noqa: PLC0415  # only to follow
    from rmq_spark.client.consumer.settings import LitePullSettings  # noqa: PLC0415  # --help needs no client
    from rmq_spark.client.reading.read_bounds import READER_GROUP  # noqa: PLC0415  # --help needs no client

    consumer = Consumer(
        READER_GROUP, instance=admin.instance, settings=LitePullSettings(auto_commit=False)
    )
    with ExitStack() as stack:
        stack.enter_context(consumer)
        _assign_and_seek(consumer, admin, query)
        stack.enter_context(show_client_warnings())  # before this, problems are errors
        while True:
            for message in consumer.poll(_POLL_MS):
                if query.key is None or query.key in message.keys:
                    yield message


def _assign_and_seek(consumer: Consumer, admin: Admin, query: ConsumeQuery) -> None:
    """Make a consumer read from the requested position, in any number of topics.

    Starts and ends take one request for each queue; other positions need both.
    """
    topics = dict.fromkeys(query.topics)
    if query.position.kind in (PositionKind.START, PositionKind.END):
        queues = [each for topic in topics for each in _queues_of(consumer, topic, query.queue)]
        consumer.assign(queues, query.selector)
        is_start = query.position.kind is PositionKind.START
        seek = consumer.seek_to_begin if is_start else consumer.seek_to_end
        for queue in queues:
            seek(queue)
        return
    spans = [
        span
        for topic in topics
        for span in resolve_ranges(admin.instance, topic, query.position, query.queue)
    ]
    consumer.assign([span.queue for span in spans], query.selector)
    for span in spans:
        consumer.seek(span.queue, span.start)


def _queues_of(consumer: Consumer, topic: str, name: QueueName | None) -> list[MessageQueue]:
    found = sorted(consumer.fetch_message_queues(topic))
    if name is not None:
        found = [queue for queue in found if name.matches(queue)]
        name.require_match(found, topic)
    return found
