"""Partition reader: reads a task's offset range, from pulls (`record_chunks`) to record batches.

Clients are shared by the tasks of a Python worker, one for each set of connection options. A broker
that cannot be reached is retried until `retry_timeout_ms` have passed; rows that were yielded are
not yielded again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from rmq_spark.client.concurrency.retry_timer import TRANSIENT_ERRORS, RetryTimer
from rmq_spark.client.errors import BrokerRefused, OffsetMoved
from rmq_spark.client.failure_log import FailureLog
from rmq_spark.spark.brokers.fan_out import BrokerAddresses, instance_for, is_unknown_queue
from rmq_spark.spark.errors import BrokersAway, describe_lost_offsets, report_losses
from rmq_spark.spark.options.access import BrokerAccess
from rmq_spark.spark.options.options import ReadOptions
from rmq_spark.spark.plan.partition_planner import OffsetRange
from rmq_spark.spark.read.dead_letters import bad_record_handler

if TYPE_CHECKING:
    import pyarrow as pa

    from rmq_spark.wire.chunk import RecordChunk

_PAUSE_SECONDS: Final = 0.5
_addresses: Final[dict[tuple[int, BrokerAccess], BrokerAddresses]] = {}
_failure_logs: Final[dict[tuple[int, BrokerAccess], FailureLog]] = {}
"""The logs of failures that the tasks of a process share."""


class RecordObserver:
    """Gets all records that brokers return for a range, before they become rows. Does nothing."""

    def on_records(self, records: RecordChunk) -> None:
        """Process the next records."""

    def on_unreadable(self, recorded_crc: int | None) -> None:
        """Process the next record, which is unreadable, and the CRC that it states for its body."""


_NULL_OBSERVER: Final = RecordObserver()


def addresses_of(access: BrokerAccess) -> BrokerAddresses:
    """Return the addresses and the client that tasks of a process share; a fork gets new ones."""
    key = (os.getpid(), access)
    if key not in _addresses:
        _addresses[key] = BrokerAddresses(instance_for(access))
    return _addresses[key]


def retry_timer_of(access: BrokerAccess, broker_name: str) -> RetryTimer:
    """Return the retry timer of a task's requests to a broker."""
    return RetryTimer(
        f"reading from broker {broker_name}",
        access.retry_timeout_ms,
        pause_seconds=_PAUSE_SECONDS,
        failure_log=_failure_logs.setdefault((os.getpid(), access), FailureLog()),
    )


def read_range(
    options: ReadOptions,
    schema: pa.Schema,
    offset_range: OffsetRange,
    *,
    tags: frozenset[str] | None = None,
    observer: RecordObserver = _NULL_OBSERVER,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one range, in order.

    Messages must have one of ``tags``, by default those in the options. The ``observer`` sees all
    records that brokers return, and those that cannot be read.
    """
    # Both bring numpy and pyarrow: in tasks only.
    from rmq_spark.spark.bodies.decoder import record_batches_for  # noqa: PLC0415  # see above
    from rmq_spark.spark.read.record_chunks import QueueRecreated, UnreadableRecord, pull_chunks  # noqa: PLC0415  # see above

    addresses = addresses_of(options.access)
    with bad_record_handler(options) as bad:
        batches = record_batches_for(options, schema, bad, options.tags if tags is None else tags)
        queue, at = offset_range.queue, offset_range.start
        timer = retry_timer_of(options.access, queue.broker_name)
        is_done = False
        while not is_done and at < offset_range.end:
            try:
                for records, next_offset in pull_chunks(
                    addresses, options, offset_range._replace(start=at)
                ):
                    observer.on_records(records)
                    yield from batches.convert(records, queue)
                    at = next_offset
                    timer.reset()
                is_done = True
            except OffsetMoved as moved:  # noqa: PERF203  # continue where the queue has messages
                at = _skip_lost(options, offset_range, at, moved)
            except UnreadableRecord as unreadable:
                bad.report([unreadable.bad])
                observer.on_unreadable(unreadable.recorded_crc)
                yield from batches.convert_unreadable(queue, unreadable.bad.queue_offset)
                at = unreadable.bad.queue_offset + 1
            except QueueRecreated as error:
                _report_loss(options, str(error))
                return
            except TRANSIENT_ERRORS as error:
                if not timer.sleep_or_expire(error):
                    raise BrokersAway(
                        queue.broker_name, options.access.retry_timeout_ms, error
                    ) from error
                addresses.refresh()
            except BrokerRefused as error:
                if not is_unknown_queue(error):
                    raise
                _report_loss(
                    options,
                    f"{queue} is gone, before its offsets {at} to {offset_range.end - 1} were read",
                )
                return


def _skip_lost(options: ReadOptions, offset_range: OffsetRange, at: int, moved: OffsetMoved) -> int:
    """Report messages that are gone; return the offset at which to continue."""
    queue = offset_range.queue
    if at < moved.min_offset:
        resume_offset = min(moved.min_offset, offset_range.end)
        _report_loss(options, describe_lost_offsets(queue, at, resume_offset))
        return resume_offset
    _report_loss(
        options,
        f"{queue} ends at offset {moved.max_offset}, and the batch was planned to "
        f"{offset_range.end}",
    )
    return offset_range.end


def _report_loss(options: ReadOptions, loss: str) -> None:
    report_losses([loss], is_failure=options.fail_on_data_loss)
