"""Message trace: finds a message by either id, and its delivery to the groups of its topic.

A broker's id names the message's position. A producer's id is looked up in the index of one topic,
or of all. Offsets show which groups have passed the message; if producers and consumers record
traces, these show each send and each call of a listener. ``rocketpoll message`` and the console
share this module.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from enum import Enum
from shlex import quote
from typing import TYPE_CHECKING, Final, NamedTuple

from rmq_spark.cli.shell.failures import Failure
from rmq_spark.client.errors import BrokerRefused, ConnectionFailed, NotFound, RouteNotFound
from rmq_spark.client.message import MessageExt
from rmq_spark.errors import RecordError, format_count
from rmq_spark.wire.message.message_id import decode_offset_message_id
from rmq_spark.wire.message.properties import REAL_TOPIC
from rmq_spark.wire.names import (
    CHECK_GROUP,
    CHECK_MAX_TIME_TOPIC,
    DLQ_PREFIX,
    HALF_TOPIC,
    RETRY_PREFIX,
    TRACE_TOPIC,
    dlq_topic,
    is_system_group,
    is_system_topic,
    retry_topic,
)
from rmq_spark.wire.trace import MessageTrace, TraceMessageType, TraceType

if TYPE_CHECKING:
    from rmq_spark.client.admin.admin import Admin


_ID_FORM: Final = re.compile(r"[0-9A-Fa-f]{32}|[0-9A-Fa-f]{34}|[0-9A-Fa-f]{56}")


class DeliveryState(Enum):
    """The states of a message's delivery to a group."""

    CONSUMED = "consumed"
    WAITING = "waiting"
    NOT_STARTED = "untouched"
    DEAD_LETTER = "dead"


class Delivery(NamedTuple):
    """The delivery of a message to one group.

    Attributes:
        group: Name of the group.
        state: The state of the delivery, by the group's offset.
        committed: Offset that the group has committed in the message's queue, or None.
        messages_before: Number of messages before this one that the group has yet to consume.
        retries: Number of times that the message was sent back for redelivery.
    """

    group: str
    state: DeliveryState
    committed: int | None
    messages_before: int
    retries: int


def find_copies(
    admin: Admin,
    message_id: str,
    topic: str | None,
    on_search: Callable[[int], object] | None = None,
) -> Sequence[MessageExt]:
    """Find a message by its producer's or its broker's id, and return its copies, oldest first.

    Without a topic, all topics may have to be searched; ``on_search`` then gets their number.
    """
    if topic is not None:
        try:
            return admin.messages_by_unique_id(topic, message_id)
        except NotFound:
            found = find_by_offset_id(admin, message_id)
            if found is None or found.topic != admin.instance.namespace.strip(topic):
                raise _no_message(
                    f"{topic} does not have", message_id, "Leave --topic out to search all topics"
                ) from None
            return [found]
    found = find_by_offset_id(admin, message_id)
    if found is not None:
        return [found]
    topics = sorted(
        (each for each in admin.topics() if not each.startswith(RETRY_PREFIX)),
        # System topics come last, because they may have copies.
        key=lambda each: (is_system_topic(each), each == HALF_TOPIC, each),
    )
    if on_search is not None:
        on_search(len(topics))
    for each in topics:
        try:
            return admin.messages_by_unique_id(each, message_id)
        except (NotFound, RouteNotFound):  # noqa: PERF203  # it is in another topic
            continue
    searched = format_count(len(topics), "topic")
    remedy = "Check the id; the message may have been deleted"
    raise _no_message(f"searched all {searched}: none has", message_id, remedy)


def _no_message(where: str, message_id: str, remedy: str) -> Failure:
    if not _ID_FORM.fullmatch(message_id):
        return Failure(
            f"{where} message {message_id}, and ids have 32, 34 or 56 hexadecimal digits",
            "Give one whole id, as rocketpoll consume -f '%i\\n' prints it, or search by key: "
            f"rocketpoll consume TOPIC --key {quote(message_id)}",
        )
    return Failure(f"{where} message {message_id}", remedy)


def find_by_offset_id(admin: Admin, message_id: str) -> MessageExt | None:
    """Return the message at the position in an id; None if it is not a broker's id, or is gone."""
    try:
        host, _ = decode_offset_message_id(message_id)
    except RecordError:
        return None
    if str(host) not in admin.masters().values():
        return None  # an id of a producer has the same form
    try:
        return admin.message_by_offset_id(message_id)
    except (BrokerRefused, ConnectionFailed):
        return None


def trace_deliveries(admin: Admin, message: MessageExt) -> list[Delivery]:
    """Return the delivery of a message to each group of its topic.

    A group counts as having consumed the message if it has committed an offset past it, even if its
    filter has skipped the message.
    """
    return [
        _trace_group(admin, name, message)
        for name in sorted(admin.groups_of_topic(message.topic))
        if not is_system_group(name)  # tools that read without consuming
    ]


class Transaction(NamedTuple):
    """The state of a half message, which consumers do not see.

    Attributes:
        state: The state, in words.
        topic: Topic that the message is sent to if it is committed.
        producer_group: Group whose clients the broker asks.
        checks: Number of times that the broker has asked.
    """

    state: str
    topic: str
    producer_group: str
    checks: int


def transaction_of(admin: Admin, message: MessageExt) -> Transaction | None:
    """Return the state of a half message; None for any other message."""
    if message.topic not in (HALF_TOPIC, CHECK_MAX_TIME_TOPIC):
        return None
    properties = message.properties
    topic, times = properties.get(REAL_TOPIC, ""), properties.get("TRANSACTION_CHECK_TIMES", "")
    if message.topic == CHECK_MAX_TIME_TOPIC:
        state = "given up: its producer has not ended it"
    elif topic and _copies(admin, topic, message):
        state = f"committed to {topic}"
    else:
        state = _open_state(admin, message)
    checks = int(times) if times.isdecimal() else 0
    return Transaction(state, topic, properties.get("PGROUP", ""), checks)


def _open_state(admin: Admin, message: MessageExt) -> str:
    """Return the state of a half message that is in no other topic.

    The broker's offset is past half messages that were rolled back; it appends open ones again.
    """
    copies = [message, *_copies(admin, HALF_TOPIC, message)]
    newest = max(copies, key=lambda each: each.queue_offset)
    address = admin.instance.routes.master_address(newest.queue.broker_name)
    api = admin.instance.api
    checked_to = api.query_consumer_offset(
        address, CHECK_GROUP, newest.queue, set_zero_if_not_found=False
    )
    if newest.queue_offset < (checked_to or 0):
        return "rolled back"
    return "open, or ended since the last check"


def _trace_group(admin: Admin, name: str, message: MessageExt) -> Delivery:
    lags = {lag.queue: lag for lag in admin.lag(name, message.topic)}
    committed = lags[message.queue].consumer_offset if message.queue in lags else None
    before, retries = 0, 0
    if committed is None:
        state = DeliveryState.NOT_STARTED
    elif committed > message.queue_offset:
        state = DeliveryState.CONSUMED
        retried = _copies(admin, retry_topic(name), message)
        retries = max((each.reconsume_times for each in retried), default=0)
    else:
        state, before = DeliveryState.WAITING, message.queue_offset - committed
    if not message.topic.startswith(DLQ_PREFIX) and _copies(admin, dlq_topic(name), message):
        state = DeliveryState.DEAD_LETTER
    return Delivery(name, state, committed, before, retries)


class TracedEvent(NamedTuple):
    """A send, a delivery or the end of a transaction, as a producer or consumer has recorded it.

    Attributes:
        timestamp_ms: Milliseconds since the epoch at which it began; 0 if that is not recorded.
        action: The event, in words, such as "sent".
        group: The group of the producer or consumer.
        is_success: Whether it succeeded; None if its end is not recorded.
        detail: How long it took, and how it ended.
    """

    timestamp_ms: int
    action: str
    group: str
    is_success: bool | None
    detail: str


def traced_events(
    admin: Admin, message_id: str, trace_topic: str = TRACE_TOPIC
) -> list[TracedEvent]:
    """Return what members have recorded about a message, oldest first; none without traces."""
    try:
        traces = admin.message_traces(message_id, trace_topic)
    except RouteNotFound:  # nobody records traces here
        return []
    ends = {each.request_id: each for each in traces if each.trace_type is TraceType.SUB_AFTER}
    started_ids = {each.request_id for each in traces if each.trace_type is TraceType.SUB_BEFORE}
    return [
        _traced_event(each, ends.get(each.request_id))
        for each in traces
        if each.trace_type is not TraceType.SUB_AFTER or each.request_id not in started_ids
    ]


def _traced_event(trace: MessageTrace, end: MessageTrace | None) -> TracedEvent:
    kind, is_success = trace.trace_type, trace.is_success
    if kind is TraceType.PUB:
        action, detail = "sent", f"in {trace.cost_ms} ms to {trace.store_host}"
        if trace.message_type is TraceMessageType.HALF:
            action = "sent in a transaction"
        elif trace.message_type is TraceMessageType.DELAY:
            action = "sent with a delay"
        detail += "" if is_success else ", not stored safely"
    elif kind is TraceType.END_TRANSACTION:
        state = trace.transaction_state.removesuffix("_MESSAGE").lower()
        action = {"commit": "committed", "rollback": "rolled back"}.get(state, "left open")
        detail = "after a check of the broker" if trace.is_from_check else ""
    elif kind is TraceType.RECALL:
        action, detail = "recalled", "" if is_success else "failed"
    else:
        retries = f", retry {trace.retry_times}" if trace.retry_times else ""
        if end is None:
            return TracedEvent(
                trace.timestamp_ms, "consumed", trace.group, None, f"no end recorded{retries}"
            )
        how = "" if end.is_success else f", {end.return_type.name.lower().replace('_', ' ')}"
        action, is_success = "consumed", end.is_success
        detail = f"in {end.cost_ms} ms{how}{retries}"
    return TracedEvent(trace.timestamp_ms, action, trace.group, is_success, detail)


def _copies(admin: Admin, topic: str, message: MessageExt) -> Sequence[MessageExt]:
    try:
        return admin.messages_by_unique_id(topic, message.message_id)
    except (NotFound, RouteNotFound):
        return ()
