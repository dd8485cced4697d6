"""Topic sizes: count the messages of a topic and estimate the bytes that they take.

No request of RocketMQ returns the bytes of a topic, because the messages of all topics share one
log. So the first and the last messages of each queue are sampled, and their mean size is taken for
all messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from rmq_spark.client.instance.instance import ClientInstance
from rmq_spark.client.reading.read_bounds import READER_GROUP
from rmq_spark.client.results import PullStatus
from rmq_spark.errors import RecordError
from rmq_spark.wire.bodies.stats import TopicOffset
from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.record import record_size

_SAMPLED: Final = 32
"""Messages looked at, at each end of a queue."""


class TopicSize(NamedTuple):
    """The number of messages in a topic, and their estimated size.

    Attributes:
        messages: Number of messages in all queues.
        stored_bytes: Estimate of the bytes that they take in the commit log.
        last_timestamp: Milliseconds since the epoch at which the last message was stored; 0 if
            there is none.
    """

    messages: int
    stored_bytes: int
    last_timestamp: int


def estimate_topic_size(
    instance: ClientInstance, offsets: Mapping[MessageQueue, TopicOffset]
) -> TopicSize:
    """Estimate the size of a topic from some messages of each queue.

    Args:
        instance: The client, which must know the topic's route.
        offsets: The offsets that each queue begins and ends at.
    """
    messages = stored_bytes = last = 0
    for queue, held in offsets.items():
        count = max(held.max_offset - held.min_offset, 0)
        if not count:
            continue
        means = list(_mean_record_sizes(instance, queue, held))
        messages += count
        stored_bytes += round(count * sum(means) / len(means)) if means else 0
        last = max(last, held.last_update_timestamp)
    return TopicSize(messages, stored_bytes, last)


def _mean_record_sizes(
    instance: ClientInstance, queue: MessageQueue, offsets: TopicOffset
) -> Iterator[float]:
    """Yield the mean length of the first records of a queue, and of its last ones.

    Apart, as a broker gives fewer at once where they are long.
    """
    address = instance.routes.address_for_read(queue.broker_name)
    behind_first = offsets.min_offset + _SAMPLED
    starts = [offsets.min_offset]
    if offsets.max_offset > behind_first:
        starts.append(max(offsets.max_offset - _SAMPLED, behind_first))
    for start in starts:
        pulled = instance.api.peek(address, READER_GROUP, queue, start, _SAMPLED)
        if pulled.pull_status is PullStatus.FOUND:
            sizes = list(_record_sizes(memoryview(pulled.records)))
            if sizes:
                yield sum(sizes) / len(sizes)


def _record_sizes(records: memoryview) -> Iterator[int]:
    at = 0
    try:
        while at < len(records):
            size = record_size(records, at)
            yield size
            at += size
    except RecordError:  # one that cannot be read is for whoever reads the queue
        return
