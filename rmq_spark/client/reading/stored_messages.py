"""Stored messages: yields every message of one queue between two offsets, one by one.

    bulk pull ──> decoded record by record ──> messages, those that cannot be read with a fault

A record with a damaged size hides where the next one begins. It becomes a message with a fault as
well, and the queue is pulled again from the offset after it. The caller decides what to do with
faults.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from rmq_spark.client.api.broker_api import BrokerApi
from rmq_spark.client.damaged_records import (
    decode_damaged_record,
    read_queue_offset,
    record_positions,
)
from rmq_spark.client.message import MessageExt, WrongQueueRecord, decode_pulled, unreadable_message
from rmq_spark.client.reading.bulk_pull import BulkPull, PullRules, RawChunk
from rmq_spark.client.reading.read_bounds import READER_GROUP, ReadRange
from rmq_spark.errors import RecordError
from rmq_spark.wire import record_layout as layout
from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.names import LIGHT_QUEUE_PREFIX


def stored_messages(
    api: BrokerApi, read_range: ReadRange, rules: PullRules | None = None
) -> Iterator[MessageExt]:
    """Yield the messages of a range, in order; a message that cannot be read has a ``fault``.

    Raises:
        WrongQueueRecord: The broker returns a message of another queue.
        OffsetMoved: The queue does not hold these offsets any more.
        ClientError: The broker does not answer, or refuses.
    """
    at = read_range.start
    while at < read_range.end:
        queue, address = read_range.queue, read_range.address
        for chunk in BulkPull(api, address, READER_GROUP, queue, at, read_range.end, rules):
            try:
                for message in _decode_chunk(api, queue, chunk, at):
                    yield message
                    at = message.queue_offset + 1
            except WrongQueueRecord:  # the broker is wrong, so its other records are not trusted
                raise
            except RecordError as error:
                damaged = _undecodable_message(chunk, queue, at, error)
                yield damaged
                at = damaged.queue_offset + 1
                break  # and resume after it
            at = chunk.next_offset
        else:
            return


def _decode_chunk(
    api: BrokerApi, queue: MessageQueue, chunk: RawChunk, at: int
) -> Iterator[MessageExt]:
    """Yield the messages of a chunk; one with a fault keeps its place."""
    for message in decode_pulled(
        chunk.records, queue, max_body_bytes=api.max_body_bytes, with_faults=True
    ):
        found = message
        if message.fault is not None:
            is_possible = at <= message.queue_offset < chunk.next_offset
            offset = message.queue_offset if is_possible else at
            is_light = queue.topic.startswith(LIGHT_QUEUE_PREFIX)  # its records state another place
            place = message.queue if is_light else queue
            found = replace(message, topic=place.topic, queue=place, queue_offset=offset)
        yield found
        at = found.queue_offset + 1


def _undecodable_message(
    chunk: RawChunk, queue: MessageQueue, at: int, error: RecordError
) -> MessageExt:
    """Return a message for the record at which a chunk's decoding ended."""
    records = bytes(chunk.records)
    places, _ = record_positions(records)
    rest = records[sum(places[-1]) if places else 0 :]
    offset = at
    if len(rest) >= layout.RECORD_BYTES_MIN:
        stated = read_queue_offset(rest, 0)
        offset = stated if at <= stated < chunk.next_offset else at
    stored = decode_damaged_record(rest.ljust(layout.RECORD_BYTES_MIN, b"\0"))
    message = unreadable_message(stored, queue.broker_name, str(error))
    return replace(message, topic=queue.topic, queue=queue, queue_offset=offset)
