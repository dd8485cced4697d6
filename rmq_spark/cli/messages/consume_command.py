"""``rocketpoll consume`` and ``rocketpoll tail``: print messages of topics as text.

Messages are read between offsets (`BulkPull`), in the order in which they were stored, or followed
by a consumer of RocketMQ's own group for tools. No offsets of users' groups change, unless
``--group`` is given: then a member of that group prints messages, and commits those it has printed;
with ``--pop`` it pops messages, and acknowledges those it has printed.
"""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing, suppress
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from rmq_spark.cli.messages.message_text import BODY_FORMATS, TEXT, renderer, show_messages
from rmq_spark.cli.shell.command_tree import CommandWithExample, option_set
from rmq_spark.cli.shell.connection import ClusterAccess, connection_options
from rmq_spark.cli.shell.failures import Failure, OutageNotes, print_error, show_client_warnings
from rmq_spark.cli.shell.parameter_types import (
    PositionKind,
    QueueName,
    TopicPosition,
    parse_position,
    parse_queue,
    resolve_ranges,
    store_order_key,
)
from rmq_spark.client.errors import (
    ConnectionClosed,
    ConnectionFailed,
    ConsumerNotOnline,
    GroupNotFound,
    RequestTimeout,
    SystemBusy,
)
from rmq_spark.client.message import MessageExt
from rmq_spark.client.subscriptions import (
    MessageSelector,
    by_sql,
    by_tag,
    filter_by_tags,
    subscription_data,
)
from rmq_spark.errors import format_count
from rmq_spark.wire.bodies.clients import ConsumeType
from rmq_spark.wire.names import RETRY_PREFIX

if TYPE_CHECKING:
    from rmq_spark.client.admin.admin import Admin
    from rmq_spark.client.consumer.lite_pull_consumer import Consumer
    from rmq_spark.client.consumer.simple_consumer import SimpleConsumer
    from rmq_spark.client.reading.read_bounds import ReadRange
    from rmq_spark.wire.message_queue import MessageQueue

_POLL_MS: Final = 500
_POP_MS: Final = 1_000
_KEY_QUERY_MESSAGES: Final = 64
_CHUNK_BYTES: Final = 1 << 20
_LINGER_MS: Final = 20
_ORDERED_MAX: Final = 1_000
"""The most messages that are sorted before they are printed."""
_GROUP_IDLE_SECONDS: Final = 3.0
_COMMIT_SECONDS: Final = 1.0
_RETRY_SECONDS: Final = 0.5
_UNAVAILABLE_ERRORS: Final = (ConnectionFailed, ConnectionClosed, RequestTimeout, SystemBusy)


class ConsumeQuery(NamedTuple):
    """The messages that a user selects."""

    topics: tuple[str, ...]
    position: TopicPosition
    end: TopicPosition
    selector: MessageSelector
    key: str | None
    queue: QueueName | None
    limit: int | None


_consume_options: Final = option_set(
    click.option("-n", "--count", type=click.IntRange(1), metavar="N",
                 help="Stop after N messages."),
    click.option("--tags", metavar="TAGS",
                 help="Only messages with one of these tags: 'paid || refunded'."),
    click.option("--sql", metavar="CONDITION",
                 help="Only messages that meet this SQL92 condition: 'total > 5'."),
    click.option("-q", "--queue", type=parse_queue, metavar="N|BROKER:N",
                 help="Limit to this queue. [default: all]"),
    click.option("-f", "--format", "text_format", metavar="FORMAT",
                 help="Line format as in kcat: rocketpoll help format."),
    click.option("-o", "--output", type=click.Choice(BODY_FORMATS), default=TEXT,
                 show_default=True,
                 help="Lines, JSON lines, or bodies as bytes or in hex."),
)  # fmt: skip


@click.command(
    cls=CommandWithExample,
    example="rocketpoll consume orders --offset -10\n"
    "rocketpoll consume orders --from 2026-11-23T09:00Z --until 2026-11-23T09:05Z\n"
    "rocketpoll consume orders --offset -1h --tags paid -f '%o %k %s\\n'\n"
    "rocketpoll consume orders -n 1 -o json\n"
    "rocketpoll consume orders --group billing -n 5\n"
    "rocketpoll consume orders --group packing --pop",
)
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...")
@click.option("-g", "--group", metavar="GROUP",
              help="Consume as a member; commit what was printed.")  # fmt: skip
@click.option("--pop", "is_popping", is_flag=True,
              help="With --group: pop; acknowledge what was printed.")  # fmt: skip
@click.option("--offset", "--from", "start", type=parse_position, default="start",
              show_default=True, metavar="POSITION",
              help="Where to start in each queue: start, end, -10, +5, 42, -1h, 09:00, "
              "2026-11-23T09:00Z. More: rocketpoll help positions.")  # fmt: skip
@click.option("--until", "end", type=parse_position, default="end", show_default=True,
              metavar="POSITION",
              help="Where to stop in each queue.")  # fmt: skip
@click.option("--key", metavar="KEY", help="Only messages with this key, found in the index.")
@click.option("--follow", is_flag=True, help="At the end, wait for new messages until Ctrl-C.")
@_consume_options
@connection_options
def consume(
    topics: tuple[str, ...],
    group: str | None,
    start: TopicPosition,
    end: TopicPosition,
    key: str | None,
    count: int | None,
    tags: str | None,
    sql: str | None,
    queue: QueueName | None,
    text_format: str | None,
    output: str,
    *,
    is_popping: bool,
    follow: bool,
    access: ClusterAccess,
) -> None:
    """Print messages of topics in the order in which they were stored.

    Stops at the last message that was there at the start, unless --follow is given.

    With --group, joins GROUP as a member: starts where GROUP is, prints the messages of its share
    of the queues, each at least once, and commits what it has printed. With --pop, brokers divide
    messages among the members, and not queues. Stops when no message has come for 3 s. Without
    --group, no offsets move.
    """
    if is_popping and group is None:
        raise click.UsageError("--pop needs the group that pops. Add --group GROUP")
    if follow and end.kind is not PositionKind.END:
        raise click.UsageError("--follow and --until exclude each other. Give one")
    if key is not None and len(topics) > 1:
        raise click.UsageError("--key needs one TOPIC. Give one")
    query = ConsumeQuery(topics, start, end, _selector(tags, sql), key, queue, count)
    render = renderer(output, text_format)
    if group is not None:
        _check_group_query(query)
    with access.admin() as admin:
        if group is not None:
            consume_in = _pop_in_group if is_popping else _consume_in_group
            with closing(consume_in(admin, query, group, is_endless=follow)) as found:
                shown = show_messages(found, render, flush_each=True)
        elif follow:
            shown = show_messages(islice(_follow(admin, query), count), render, flush_each=True)
        elif key is not None:
            shown = show_messages(islice(_query_by_key(admin, query, key), count), render)
        else:
            shown = show_messages(islice(_read_stored(admin, query), count), render)
    if not shown and count != 0:
        click.echo("rocketpoll: no messages found", err=True)


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
    """Print new messages of one or more topics as they arrive, until Ctrl-C.

    Messages that arrive within a moment are printed in the order in which they were stored.
    """
    end = TopicPosition(PositionKind.END)
    query = ConsumeQuery(topics, end, end, _selector(tags, sql), None, queue, count)
    render = renderer(output, text_format)
    with access.admin() as admin:
        show_messages(islice(_follow(admin, query), count), render, flush_each=True)


def _selector(tags: str | None, sql: str | None) -> MessageSelector:
    if tags is not None and sql is not None:
        raise click.UsageError(
            "--tags and --sql exclude each other. Use TAGS in the condition of --sql"
        )
    return by_sql(sql) if sql is not None else by_tag(tags or "*")


def _read_stored(admin: Admin, query: ConsumeQuery) -> Iterator[MessageExt]:
    """Yield the messages that are stored now, by store time."""
    from rmq_spark.client.consumer.brokers.broker_client import GroupBrokerClient  # noqa: PLC0415  # --help does not need it
    from rmq_spark.client.reading.read_bounds import READER_GROUP  # noqa: PLC0415  # --help needs no client

    ranges: list[ReadRange] = []
    for topic in dict.fromkeys(query.topics):
        full = admin.instance.namespace.wrap(topic)
        subscription = subscription_data(full, query.selector, 0)
        reader = GroupBrokerClient(admin.instance, READER_GROUP, lambda _: None)
        reader.check_subscription(subscription)
        ranges += resolve_ranges(admin.instance, topic, query.position, query.queue, query.end)
    queues = [_read_range(admin, bounds, query) for bounds in ranges if bounds.start < bounds.end]
    return heapq.merge(*queues, key=store_order_key)


def _read_range(admin: Admin, bounds: ReadRange, query: ConsumeQuery) -> Iterator[MessageExt]:
    from rmq_spark.client.reading.bulk_pull import PullRules, stored_messages  # noqa: PLC0415  # --help needs no client

    subscription = subscription_data(bounds.queue.topic, query.selector, 0)
    rules = PullRules(
        subscription=subscription.sub_string,
        expression_type=query.selector.expression_type,
        in_flight=1 if query.limit else 2,
        chunk_bytes=_CHUNK_BYTES,
        chunk_messages=min(query.limit or 10_000, 10_000),
    )
    for message in stored_messages(admin.instance.api, bounds, rules):
        # The tag of a damaged record may be damaged; the broker considered it a match.
        if message.fault is not None or filter_by_tags([message], subscription):
            yield admin.instance.namespace.strip_message(message)


def _query_by_key(admin: Admin, query: ConsumeQuery, key: str) -> Iterator[MessageExt]:
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
        stack.enter_context(show_client_warnings())  # until here, problems are raised as errors
        while True:
            for message in _poll_in_order(consumer):
                if query.key is None or query.key in message.keys:
                    yield message


def _poll_in_order(consumer: Consumer) -> list[MessageExt]:
    """Return the messages that arrive within a moment, in the order in which they were stored.

    A poll returns messages of one queue.
    """
    found = consumer.poll(_POLL_MS)
    while found and len(found) < _ORDERED_MAX and (more := consumer.poll(_LINGER_MS)):
        found += more
    return sorted(found, key=store_order_key)


# ---- As a member of a group.


def _check_group_query(query: ConsumeQuery) -> None:
    if query.key is not None or query.queue is not None or query.end.kind is not PositionKind.END:
        raise click.UsageError(
            "--group excludes --key, --queue and --until: the group decides what is read. Leave "
            "them out"
        )
    if query.position.kind not in (PositionKind.START, PositionKind.END):
        raise click.UsageError(
            "--group continues where the group is. Give --offset start or end for new queues, or "
            "move the group with rocketpoll group seek"
        )


def _consume_in_group(
    admin: Admin, query: ConsumeQuery, group: str, *, is_endless: bool
) -> Generator[MessageExt, None, None]:
    """Yield messages as a member of a group, and commit each once the caller asks for the next.

    If the caller closes this generator instead, the last message counts as not printed, and is not
    committed.
    """
    from rmq_spark.client.consumer.lite_pull_consumer import Consumer  # noqa: PLC0415  # only in groups
    from rmq_spark.client.consumer.settings import LitePullSettings  # noqa: PLC0415  # --help needs no client

    _check_subscriptions(admin, query, group, is_popping=False)
    if query.position.kind is PositionKind.END:
        _commit_ends(admin, query, group)
    consumer = Consumer(
        group,
        instance=admin.instance,
        settings=LitePullSettings(auto_commit=False, pull_batch_size=32),
        message_queue_listener=_MemberNotes(group),
        start="earliest",
    )
    for topic in dict.fromkeys(query.topics):
        consumer.subscribe(topic, query.selector)
    printed: dict[MessageQueue, int] = {}
    count = 0
    with ExitStack() as stack:
        stack.enter_context(consumer)
        stack.enter_context(show_client_warnings())
        stack.callback(_commit, consumer, printed)
        idle_since = committed_at = time.monotonic()
        while is_endless or time.monotonic() - idle_since < _GROUP_IDLE_SECONDS:
            for message in _poll_in_order(consumer):
                yield message
                printed[message.queue] = message.queue_offset + 1
                count += 1
                if count == query.limit:
                    return
                idle_since = time.monotonic()
            if time.monotonic() - committed_at >= _COMMIT_SECONDS:
                _commit(consumer, printed)
                committed_at = time.monotonic()


def _pop_in_group(
    admin: Admin, query: ConsumeQuery, group: str, *, is_endless: bool
) -> Generator[MessageExt, None, None]:
    """Yield messages popped for a group; acknowledge each once the caller asks for the next.

    Messages that were popped and not printed are given back to the group at the end.
    """
    from rmq_spark.client.consumer.simple_consumer import SimpleConsumer  # noqa: PLC0415  # only in groups
    from rmq_spark.wire.pop import POP_MESSAGES_MAX  # noqa: PLC0415  # only in groups

    _check_subscriptions(admin, query, group, is_popping=True)
    if query.position.kind is PositionKind.END:
        _commit_ends(admin, query, group)
    consumer = SimpleConsumer(group, instance=admin.instance, start="earliest")
    for topic in dict.fromkeys(query.topics):
        consumer.subscribe(topic, query.selector)
    printed: list[MessageExt] = []
    popped: deque[MessageExt] = deque()
    outage = OutageNotes(
        f"popping for {group}", _UNAVAILABLE_ERRORS if is_endless else (), _RETRY_SECONDS
    )
    left = query.limit
    with ExitStack() as stack:
        stack.enter_context(consumer)
        stack.enter_context(show_client_warnings())
        stack.callback(_settle_popped, consumer, printed, popped)
        print_error("rocketpoll", f"a member of {group}: pops {', '.join(sorted(consumer.topics))}")
        idle_since = time.monotonic()
        while left != 0 and (is_endless or time.monotonic() - idle_since < _GROUP_IDLE_SECONDS):
            most = POP_MESSAGES_MAX if left is None else min(left, POP_MESSAGES_MAX)
            with outage:
                found = consumer.receive(most, timeout_ms=_POP_MS)
                popped.extend(sorted(found, key=store_order_key))
                left = None if left is None else left - len(found)
            while popped:
                yield popped[0]
                printed.append(popped.popleft())
                idle_since = time.monotonic()
            with outage:
                _settle_popped(consumer, printed, popped)


def _settle_popped(
    consumer: SimpleConsumer, printed: list[MessageExt], others: deque[MessageExt]
) -> None:
    """Acknowledge messages that were printed, and let others be delivered again soon."""
    if printed:
        consumer.ack(printed)
        printed.clear()
    while others:
        consumer.change_invisible_duration(others.popleft(), 0)


def _commit(consumer: Consumer, printed: dict[MessageQueue, int]) -> None:
    """Commit the printed messages of queues that this member still has."""
    held = consumer.assignment()
    for queue in [each for each in printed if each not in held]:
        del printed[queue]
        print_error(
            "rocketpoll",
            f"{queue.topic} {queue.broker_name}:{queue.queue_id} went to another member before the "
            "last commit: that member may get the newest messages again",
        )
    if printed:
        consumer.commit(dict(printed))
    printed.clear()


def _commit_ends(admin: Admin, query: ConsumeQuery, group: str) -> None:
    """Commit the ends of queues in which a group has committed nothing.

    Otherwise brokers answer 0 to a consumer that starts at the end, as long as a queue still has
    its first message.
    """
    for topic in dict.fromkeys(query.topics):
        ends = admin.topic_offsets(topic)
        try:
            new = [each.queue for each in admin.lag(group, topic) if each.consumer_offset is None]
        except GroupNotFound:
            new = list(ends)
        for queue in new:
            admin.set_offset(group, queue, ends[queue].max_offset, missing_ok=True)


def _check_subscriptions(
    admin: Admin, query: ConsumeQuery, group: str, *, is_popping: bool
) -> None:
    """Raise a failure if members of the group subscribe differently, or pop while this one pulls.

    RocketMQ divides the queues among all members: if their subscriptions differ, messages are lost.
    If some members pull and others pop, both get the same messages.
    """
    from rmq_spark.client.admin.lookups import ADMIN_TIMEOUT_MS  # noqa: PLC0415  # only in groups
    from rmq_spark.client.api.broker_api import BrokerApi  # noqa: PLC0415  # only in groups

    names = admin.instance.namespace
    wanted = {
        names.wrap(topic): subscription_data(topic, query.selector, 0).sub_string
        for topic in query.topics
    }
    api = BrokerApi(admin.instance.connections, ADMIN_TIMEOUT_MS)
    for address in admin.masters().values():
        with suppress(ConsumerNotOnline):
            online = api.admin.consumer_connection(address, names.wrap(group))
            _check_consume_type(group, online.consume_type, is_popping=is_popping)
            for topic, found in online.subscription_table.items():
                if not topic.startswith(RETRY_PREFIX) and wanted.get(topic) != found.sub_string:
                    raise Failure(
                        f"members of {group} subscribe to {topic} with {found.sub_string}, and "
                        "this member would not: it would be assigned queues and not read them",
                        "Give the same topics and tags, stop the members, or name another group",
                    )


def _check_consume_type(group: str, found: ConsumeType | None, *, is_popping: bool) -> None:
    """Raise a failure if members pop and this one would not, or pull and this one would pop.

    Push consumers do either, as the group's mode says.
    """
    if is_popping and found is ConsumeType.CONSUME_ACTIVELY:
        raise Failure(
            f"members of {group} pull, and this one would pop: both would get the same messages",
            "Leave out --pop, stop the members, or name another group",
        )
    if not is_popping and found is ConsumeType.CONSUME_POP:
        raise Failure(
            f"members of {group} pop, and this one would pull: both would get the same messages",
            "Add --pop, stop the members, or name another group",
        )


class _MemberNotes:
    """Prints on stderr how many queues this member has, whenever they change."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._printed: dict[str, str] = {}

    def __call__(
        self, topic: str, queues: frozenset[MessageQueue], own: frozenset[MessageQueue]
    ) -> None:
        others = "" if len(own) == len(queues) else "; other members have the rest"
        total = format_count(len(queues), "queue")
        text = f"a member of {self._group}: reads {len(own)} of {total} of {topic}{others}"
        if self._printed.get(topic) != text:
            self._printed[topic] = text
            print_error("rocketpoll", text)


def _assign_and_seek(consumer: Consumer, admin: Admin, query: ConsumeQuery) -> None:
    """Make a consumer read from the requested position, in any number of topics.

    A start or an end takes one request for each queue; other positions take more.
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
    ranges = [
        bounds
        for topic in topics
        for bounds in resolve_ranges(admin.instance, topic, query.position, query.queue)
    ]
    consumer.assign([bounds.queue for bounds in ranges], query.selector)
    for bounds in ranges:
        consumer.seek(bounds.queue, bounds.start)


def _queues_of(consumer: Consumer, topic: str, name: QueueName | None) -> list[MessageQueue]:
    found = sorted(consumer.fetch_message_queues(topic))
    if name is not None:
        found = [queue for queue in found if name.matches(queue)]
        name.require_match(found, topic)
    return found
