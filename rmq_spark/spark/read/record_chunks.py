"""Record chunks: the pulls of a task for its range, in order, with nothing left out silently.

    pulls ──> gathered to megabytes ──> all readable?
          ──> still the queue of the plan? ──> no offset missing?

A record that cannot be read ends a chunk: those before it are yielded first (`UnreadableRecord`). A
topic that was recreated since the range was planned is detected before a row of the new one is
yielded (`QueueRecreated`). The caller decides how long to wait for brokers that are away.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from rmq_spark.client.damaged_records import BadRecord
from rmq_spark.client.reading.bulk_pull import BulkPull, PullRules
from rmq_spark.client.reading.log_files import LocalLogFinder
from rmq_spark.client.reading.readable_chunks import (
    first_not_rolled_back,
    missing_ranges,
    readable_chunks,
    without_rolled_back,
)
from rmq_spark.spark.brokers.fan_out import BrokerAddresses
from rmq_spark.spark.brokers.queue_client import MessagePosition, QueueClient, mark_of
from rmq_spark.spark.errors import describe_lost_offsets, report_losses
from rmq_spark.spark.options.options import ReadOptions
from rmq_spark.spark.plan.partition_planner import OffsetRange
from rmq_spark.wire.chunk import RecordChunk
from rmq_spark.wire.message_queue import MessageQueue

PULL_TIMEOUT_MS: Final = 30_000
"""The timeout of a pull in ms: its megabytes may have to wait for those of other pulls."""

IDLE_CONNECTION_SECONDS: Final = 10.0
"""Seconds of silence after which a small request tests a connection before a pull."""


class UnreadableRecord(Exception):
    """A record cannot be read; all records before it have been yielded."""

    def __init__(self, bad: BadRecord, recorded_crc: int | None = None) -> None:
        super().__init__(bad, recorded_crc)
        self.bad = bad
        self.recorded_crc = recorded_crc


class QueueRecreated(Exception):
    """A queue is not the one for which a range was planned; the text says why."""


def pull_chunks(
    addresses: BrokerAddresses, options: ReadOptions, offset_range: OffsetRange
) -> Iterator[tuple[RecordChunk, int]]:
    """Pull a range; yield its records, and the offset after them.

    Raises:
        OffsetMoved: The queue does not have the next offset.
        UnreadableRecord: The next record cannot be read.
        QueueRecreated: The topic was deleted and recreated.
    """
    queue, at, end = offset_range.queue, offset_range.start, offset_range.end
    is_filtered = options.expression != "*"
    pulled = _bulk_pull(addresses, options, offset_range)
    for chunk in readable_chunks(pulled, queue, at, is_filtered=is_filtered):
        records, next_offset, fault, recorded_crc, record = chunk
        if fault is not None and not is_filtered:
            where = addresses.instance.api, addresses.resolve(queue), queue
            next_offset = first_not_rolled_back(*where, next_offset, end)
        _check_identity(addresses, options, offset_range, records)
        if not is_filtered and len(records) < next_offset - at:
            ranges = missing_ranges(records.head["queue_offset"].tolist(), at, next_offset)
            _report_lost(addresses, options, queue, ranges)
        at = next_offset
        yield records, at
        if fault is not None:
            raise UnreadableRecord(BadRecord(queue, at, fault, record), recorded_crc)
    if not is_filtered and at < end:
        _report_lost(addresses, options, queue, [(at, end)])


def _bulk_pull(
    addresses: BrokerAddresses, options: ReadOptions, offset_range: OffsetRange
) -> BulkPull:
    rules = PullRules(
        subscription=options.expression,
        expression_type=options.expression_type,
        timeout_ms=max(PULL_TIMEOUT_MS, options.access.request_timeout_ms),
        local_files=LocalLogFinder(is_requested=options.warns_without_files)
        if options.reads_files
        else None,
    )
    address = addresses.resolve(offset_range.queue)
    api = addresses.instance.api
    if api.connections.idle_seconds(address) > IDLE_CONNECTION_SECONDS:
        # A NAT may have dropped the connection since the last task. A small request detects that
        # sooner than a pull of megabytes.
        api.max_offset(address, offset_range.queue)
    return BulkPull(
        api=api,
        address=address,
        group=options.group,
        queue=offset_range.queue,
        start=offset_range.start,
        end=offset_range.end,
        rules=rules,
    )


def _check_identity(
    addresses: BrokerAddresses,
    options: ReadOptions,
    offset_range: OffsetRange,
    records: RecordChunk,
) -> None:
    """Check whether the topic was recreated since the range was planned.

    The store time and mark of the range's last message are known. Records that were stored before
    it belong to the planned topic. In that topic, earlier records have later times only if the
    broker's clock was set back. In a recreated topic, times are equal only if the clock stood
    still. In both cases the last message is read and compared.
    """
    planned_ms, last = (
        offset_range.last_stored_ms,
        MessagePosition(offset_range.queue, offset_range.end - 1),
    )
    if planned_ms is None or not len(records):
        return
    found: tuple[int, int] | None = _stored_ms(records, -1), _mark(records, -1)
    if records.head["queue_offset"][-1] != last.queue_offset:
        newest_ms = max(_stored_ms(records, 0), _stored_ms(records, -1))
        if newest_ms < planned_ms or (newest_ms == planned_ms and offset_range.last_mark is None):
            return
        stored = QueueClient(options, addresses.instance).fingerprints([last]).get(last)
        found = None if stored is None else (stored.timestamp_ms, stored.mark)
    if found is None or found[0] != planned_ms or offset_range.last_mark not in (None, found[1]):
        what = "is gone" if found is None else f"was stored at {found[0]} ms"
        if found is not None and found[0] == planned_ms:
            what = "is another"
        raise QueueRecreated(
            f"{offset_range.queue} is not the one for which the batch was "
            f"planned: its message at offset {last.queue_offset} {what}, and was stored at "
            f"{planned_ms} ms then; the topic was deleted and recreated"
        )


def _mark(records: RecordChunk, row: int) -> int:
    head: Any = records.head[row]
    return mark_of(int(head["body_crc"]), int(head["born_timestamp"]))


def _stored_ms(records: RecordChunk, row: int) -> int:
    return int(records.store_timestamp[row])


def _report_lost(
    addresses: BrokerAddresses,
    options: ReadOptions,
    queue: MessageQueue,
    ranges: Iterable[tuple[int, int]],
) -> None:
    """Report offsets that a broker skips: they are lost, even if its first offset is lower."""
    api, address = addresses.instance.api, addresses.resolve(queue)
    lost = without_rolled_back(api, address, queue, ranges)
    losses = [describe_lost_offsets(queue, first, last) for first, last in lost]
    report_losses(losses, is_failure=options.fail_on_data_loss)
