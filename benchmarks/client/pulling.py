"""Pulls by a polling consumer, by a bulk pull, and a pull held until its message arrives."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence

from benchmarks.client.clients import message
from rmq_spark.client.api.broker_api import BrokerApi
from rmq_spark.client.reading.bulk_pull import BulkPull
from rmq_spark.wire.bodies.clients import ConsumeFromWhere
from rmq_spark.wire.codes import PullSysFlag
from rmq_spark.wire.headers.members import PullMessageRequestHeader
from rocketpoll import ClientInstance, LitePullConsumer, LitePullSettings, MessageQueue, Producer

_POLL_MS = 10_000
_HOLD_MS = 20_000
_UNTIL_HELD_SECONDS = 0.002
_GROUP = "benchmarks"
_HELD = int(PullSysFlag.SUBSCRIPTION | PullSysFlag.SUSPEND)
_numbers = itertools.count(1)


def lite_pull(name_server: str, topic: str, count: int, pull_batch_size: int) -> int:
    """Poll messages from the first one, in a new group; the time includes joining it."""
    settings = LitePullSettings(
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        pull_batch_size=pull_batch_size,
        auto_commit=False,
    )
    consumer = LitePullConsumer(
        f"readers-{next(_numbers)}", instance=ClientInstance(name_server), settings=settings
    )
    consumer.assign(consumer.fetch_message_queues(topic))
    with consumer:
        polled = 0
        while polled < count:
            found = consumer.poll(_POLL_MS)
            if not found:
                raise AssertionError(f"only {polled} of {count} messages")
            polled += len(found)
    return polled


def bulk_pull(api: BrokerApi, address: str, queues: Sequence[MessageQueue]) -> int:
    """Pull all that these queues hold, and return the number of messages."""
    pulled = 0
    for queue in queues:
        end = api.max_offset(address, queue)
        records = sum(len(chunk.records) for chunk in BulkPull(api, address, _GROUP, queue, 0, end))
        if end and not records:
            raise AssertionError(f"nothing was pulled of {queue}")
        pulled += end
    return pulled


def wakes(
    api: BrokerApi, address: str, producer: Producer, queue: MessageQueue, seconds: float
) -> Sequence[float]:
    """Hold pulls one after the other; return the sorted seconds from send to response."""
    took: list[float] = []
    end = api.max_offset(address, queue)
    stop = time.perf_counter() + seconds
    while not took or time.perf_counter() < stop:
        header = PullMessageRequestHeader(
            consumer_group=_GROUP,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=end,
            max_msg_nums=32,
            sys_flag=_HELD,
            commit_offset=0,
            suspend_timeout_millis=_HOLD_MS,
            sub_version=0,
            subscription="*",
            expression_type="TAG",
        )
        held = api.pull_async(address, header)
        time.sleep(_UNTIL_HELD_SECONDS)
        started = time.perf_counter()
        producer.send_one_way(message(queue.topic), queue)
        end = held.result(_HOLD_MS / 1000).next_begin_offset
        took.append(time.perf_counter() - started)
    return sorted(took)
