"""Topic copy: sends the messages of a topic to another, perhaps of another cluster, in order.

    a queue of the source ──> after the last copied message ──> one queue of the destination

A copy has body, flag, keys, tag, sharding key, properties, id and born time of its message, and the
position of that message: COPY_ORIGIN_TOPIC, _BROKER, _QUEUE_ID, _QUEUE_OFFSET. An interrupted copy
continues by these properties: no state is kept outside the destination. Only one message of a queue
is sent at a time, to keep the order. After an error the command asks the destination for its last
copy before it sends anything again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from rmq_spark.cli.shell.failures import Failure, describe_error
from rmq_spark.cli.shell.output import describe_location
from rmq_spark.cli.shell.parameter_types import (
    PositionKind,
    TopicPosition,
    rate_limited,
    resolve_ranges,
)
from rmq_spark.client.arguments import check_send_topic
from rmq_spark.client.errors import (
    CONNECTION_FAULTS,
    BrokerNotFound,
    ClientError,
    MessageIllegal,
    MessageRejected,
    RouteNotFound,
    SystemBusy,
)
from rmq_spark.client.forwarding import (
    COMPRESSION_FLAGS,
    ORIGIN_MESSAGE_ID,
    ORIGIN_TOPIC,
    ForwardedMessage,
    forwarded_properties,
    origin_properties,
)
from rmq_spark.client.message import MessageExt
from rmq_spark.errors import RocketPollError, format_count
from rmq_spark.wire.codes import MessageSysFlag
from rmq_spark.wire.compression import PLAIN_BYTES_MAX, compress_body
from rmq_spark.wire.message.properties import UNIQ_KEY
from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.names import RETRY_PREFIX, is_system_topic

if TYPE_CHECKING:
    from concurrent.futures import Future

    from rmq_spark.client.admin.admin import Admin
    from rmq_spark.client.producer.producer import Producer
    from rmq_spark.client.reading.read_bounds import ReadRange
    from rmq_spark.client.results import SendResult

_GROUP: Final = "rocketpoll-copy"
_PREFIX: Final = "COPY"
_DEAD_LETTER: Final = frozenset([ORIGIN_TOPIC, ORIGIN_MESSAGE_ID])
"""The reserved properties that ``dlq resend`` needs in a copy of a dead letter."""
_START: Final = TopicPosition(PositionKind.START)
_FIRST_STEP, _STEP_MAX = 32, 10_000
_TRIES: Final = 5
_PAUSE_SECONDS: Final = 1.0
_ROUTE_SECONDS: Final = 10.0
_SHOWN_SECONDS: Final = 30.0
_SEND_MS: Final = 10_000
_TRANSIENT: Final = (*CONNECTION_FAULTS, BrokerNotFound, SystemBusy)


@dataclass
class QueueCopy:
    """The copy of one queue: the range to read, the destination, and the results so far."""

    source: ReadRange
    target: MessageQueue
    expired: int = 0
    """The number of messages that retention had deleted before they were copied."""
    copied: int = 0
    last_stored: int = -1
    """The offset at which the last copy is stored."""
    left_out: list[str] = field(default_factory=list)
    """The messages that cannot be copied, with the reason."""


def plan_copy(
    source: Admin,
    destination: Admin,
    topic: str,
    to: str,
    position: TopicPosition,
    end: TopicPosition,
    *,
    creates: bool,
) -> list[QueueCopy]:
    """Return the copies of all queues, each starting where an earlier copy ended.

    A missing destination is created if ``creates``; else the plan is for a topic with the same
    queues.
    """
    check_send_topic(to)
    if is_system_topic(to) or to.startswith(RETRY_PREFIX):
        needed = "a topic that neither RocketMQ nor a group's retries use"
        raise MessageRejected("topic", needed, to)
    ranges = resolve_ranges(source.instance, topic, position, None)
    if end.kind is not PositionKind.END:
        found_ends = resolve_ranges(source.instance, topic, end, None)
        ends = {bounds.queue: bounds.start for bounds in found_ends}
        ranges = [bounds._replace(end=max(ends[bounds.queue], bounds.start)) for bounds in ranges]
    try:
        tails = _tails(destination, to)
    except RouteNotFound:
        if not creates:
            return [QueueCopy(bounds, replace(bounds.queue, topic=to)) for bounds in ranges]
        masters = destination.masters()
        destination.create_topic(to, -(-len(ranges) // len(masters)))
        tails = _wait_for_tails(destination, to)
    _check_queues(topic, to, ranges, tails)
    found = []
    for bounds, tail in zip(ranges, tails, strict=False):
        copy = last_copy(destination, tail, bounds.queue)
        if copy is None:
            found.append(QueueCopy(bounds, tail.queue))
            continue
        last = _origin_offset(copy)
        _check_is_copy(source, bounds, copy, to)
        expired = max(bounds.start - last - 1, 0) if position == _START else 0
        begin = min(max(last + 1, bounds.start), bounds.end)
        found.append(QueueCopy(bounds._replace(start=begin), tail.queue, expired))
    return found


def _tails(admin: Admin, topic: str) -> list[ReadRange]:
    return resolve_ranges(admin.instance, topic, _START, None)


def _wait_for_tails(admin: Admin, topic: str) -> list[ReadRange]:
    """Return the queues of a topic that was created just now, once name servers know it."""
    deadline = time.monotonic() + _ROUTE_SECONDS
    while time.monotonic() < deadline:
        with suppress(RouteNotFound):
            return _tails(admin, topic)
        time.sleep(_PAUSE_SECONDS / 10)
    return _tails(admin, topic)


def _check_queues(
    topic: str, to: str, ranges: Sequence[ReadRange], tails: Sequence[ReadRange]
) -> None:
    read, written = ({(each.address, each.queue) for each in some} for some in (ranges, tails))
    if read & written:
        raise Failure(
            f"{topic} would be copied to itself", "Name another DESTINATION, or another cluster"
        )
    if len(tails) < len(ranges):
        raise Failure(
            f"{to} has {format_count(len(tails), 'queue')}, and {topic} has {len(ranges)}",
            f"Give it as many with rocketpoll topic alter {to} --queues, or name a topic that does "
            "not exist",
        )


def _check_is_copy(source: Admin, bounds: ReadRange, copy: MessageExt, to: str) -> None:
    """Refuse a source queue without the last copied message: shorter, or with another message."""
    from rmq_spark.client.reading.bulk_pull import stored_messages  # noqa: PLC0415  # --help does not need it

    last = _origin_offset(copy)
    api = source.instance.api
    end = api.max_offset(bounds.address, bounds.queue)
    if last >= end:
        problem = f"which ends at {end}"
    elif last < api.min_offset(bounds.address, bounds.queue):
        return  # retention has deleted it
    else:
        original = next(stored_messages(api, bounds._replace(start=last, end=last + 1)), None)
        if original is None or original.fault is not None:
            return  # a message that is gone proves nothing
        same_id = original.properties.get(UNIQ_KEY) in (None, copy.properties.get(UNIQ_KEY))
        if same_id and original.born_timestamp == copy.born_timestamp:
            return
        problem = "which has another message there"
    raise Failure(
        f"{to} has a copy of offset {last} of {bounds.queue}, {problem}: "
        f"{bounds.queue.topic} was deleted and created again since",
        "Copy it to another topic",
    )


def last_copy(admin: Admin, tail: ReadRange, origin: MessageQueue) -> MessageExt | None:
    """Return the last copy, in a queue of the destination, of messages from queue ``origin``."""
    from rmq_spark.client.reading.bulk_pull import stored_messages  # noqa: PLC0415  # --help does not need it

    end, step = tail.end, _FIRST_STEP
    while end > tail.start:
        start = max(end - step, tail.start)
        part = stored_messages(admin.instance.api, tail._replace(start=start, end=end))
        found = [message for message in part if _is_copy(message, origin)]
        if found:
            return max(found, key=_origin_offset)
        end, step = start, min(step * 8, _STEP_MAX)
    return None


def _is_copy(message: MessageExt, origin: MessageQueue) -> bool:
    try:
        wanted = origin_properties(_PREFIX, origin, _origin_offset(message))
    except ValueError:
        return False
    return all(message.properties.get(name) == text for name, text in wanted.items())


def _origin_offset(message: MessageExt) -> int:
    return int(message.properties.get(f"{_PREFIX}_ORIGIN_QUEUE_OFFSET", ""))


def copy_queues(
    source: Admin, destination: Admin, copies: Sequence[QueueCopy], rate: float | None = None
) -> None:
    """Copy messages in rounds, one of each queue, ``rate`` a second at most."""
    from rmq_spark.client.producer.prepared_message import SendRules  # noqa: PLC0415  # planning does not need it
    from rmq_spark.client.producer.producer import Producer  # noqa: PLC0415  # planning does not need it
    from rmq_spark.client.reading.bulk_pull import stored_messages  # noqa: PLC0415  # --help does not need it

    queues = [stored_messages(source.instance.api, each.source) for each in copies]
    rules = SendRules(_GROUP, max_message_bytes=PLAIN_BYTES_MAX)  # brokers accepted the size before
    left = [number for number, each in enumerate(copies) if each.source.start < each.source.end]

    def rounds() -> Iterator[list[int]]:
        while left:
            yield list(left)

    with Producer(_GROUP, instance=destination.instance, rules=rules) as producer:
        for numbers in rate_limited(rounds(), rate, len):
            started = []
            for number in numbers:
                message = next(queues[number], None)
                if message is None:
                    left.remove(number)
                else:
                    started += _start(producer, copies[number], message)
            for each, copy, message, future in started:
                _finish(producer, destination, each, copy, message, future)
    _wait_until_shown(destination, copies)


def _wait_until_shown(destination: Admin, copies: Sequence[QueueCopy]) -> None:
    """Wait until the destination shows all copies, so that the next run finds the last ones."""
    deadline = time.monotonic() + _SHOWN_SECONDS
    for each in copies:
        address = destination.instance.routes.master_address(each.target.broker_name)
        while destination.instance.api.max_offset(address, each.target) <= each.last_stored:
            if time.monotonic() > deadline:
                return
            time.sleep(_PAUSE_SECONDS / 10)


_PendingCopy = tuple[QueueCopy, ForwardedMessage, MessageExt, "Future[SendResult]"]


def _start(producer: Producer, each: QueueCopy, message: MessageExt) -> list[_PendingCopy]:
    """Send a copy without waiting for the answer; nothing if it cannot be copied."""
    if message.fault is not None:
        each.left_out.append(f"{describe_location(message)} cannot be read: {message.fault}")
        return []
    copy = copy_of(message, each.target)
    try:
        return [(each, copy, message, producer.send_async(copy, each.target, _SEND_MS))]
    except MessageRejected as error:
        each.left_out.append(_not_copyable(message, error))
        return []


def _finish(
    producer: Producer,
    destination: Admin,
    each: QueueCopy,
    copy: ForwardedMessage,
    message: MessageExt,
    future: Future[SendResult],
) -> None:
    """Wait until a copy is stored; after an error, send it again unless it is there."""
    for tries_left in range(_TRIES, -1, -1):
        try:
            each.last_stored = future.result().queue_offset
        except _TRANSIENT as error:
            if not tries_left:
                raise _interrupted(message, error) from error
        except ClientError as error:
            if isinstance(error, MessageIllegal) and not message.body:
                each.left_out.append(_not_copyable(message, error))
                return
            raise _interrupted(message, error) from error
        else:
            each.copied += 1
            return
        time.sleep(_PAUSE_SECONDS)
        with suppress(*_TRANSIENT):
            [tail] = [
                bounds for bounds in _tails(destination, copy.topic) if bounds.queue == each.target
            ]
            found = last_copy(destination, tail, message.queue)
            if found is not None and _origin_offset(found) >= message.queue_offset:
                each.copied += 1
                return
        future = producer.send_async(copy, each.target, _SEND_MS)


def _not_copyable(message: MessageExt, error: RocketPollError) -> str:
    return f"{describe_location(message)} cannot be copied: {describe_error(error)}"


def _interrupted(message: MessageExt, error: ClientError) -> Failure:
    return Failure(
        f"{describe_location(message)} was not copied: {describe_error(error)}",
        "Run the same command again: it continues after the last copy",
    )


def copy_of(message: MessageExt, target: MessageQueue) -> ForwardedMessage:
    """Return the copy of a message for a queue."""
    body, flags = message.body, int(message.sys_flag & COMPRESSION_FLAGS)
    if flags & MessageSysFlag.COMPRESSED:
        kind = flags & MessageSysFlag.COMPRESSION_MASK or MessageSysFlag.COMPRESSION_ZLIB
        body = compress_body(body, MessageSysFlag(kind))
    else:
        flags = 0
    return ForwardedMessage(
        target.topic,
        body,
        properties={
            **forwarded_properties(message.properties),
            **{name: message.properties[name] for name in _DEAD_LETTER & message.properties.keys()},
            **origin_properties(_PREFIX, message.queue, message.queue_offset),
        },
        flag=message.flag,
        message_id=message.properties.get(UNIQ_KEY),
        sys_flag=flags,
        born_timestamp=message.born_timestamp,
    )
