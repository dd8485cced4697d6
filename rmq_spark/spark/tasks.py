"""Tasks: what an executor does to read a piece of a queue: pulls of megabytes, record batches out of them.

Clients are kept between tasks, one for each way to reach brokers, as long as Spark keeps the Python worker.
A broker that cannot be reached is tried again until `retry_timeout_ms` is over; rows that were given out are
not given out again. It knows no offsets but those of its piece.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from rmq_spark.client.bulk_pull import BulkPull, PullRules, RawChunk
from rmq_spark.client.errors import BrokerRefused, OffsetMoved
from rmq_spark.errors import RocketPollError
from rmq_spark.spark.access import Access
from rmq_spark.spark.addresses import BrokerAddresses, instance_for
from rmq_spark.spark.asking import AWAY, is_gone
from rmq_spark.spark.errors import lost, named, report_losses
from rmq_spark.spark.options import ReadOptions
from rmq_spark.spark.patience import Patience
from rmq_spark.spark.planning import Piece
from rmq_spark.spark.schema import BatchMaker
from rmq_spark.wire.message_queue import MessageQueue

if TYPE_CHECKING:
    import pyarrow as pa

    from rmq_spark.wire.chunk import RecordChunk

_log = logging.getLogger(__name__)

GATHERED_BYTES: Final = 2 * 1024 * 1024
"""Of records that become a record batch together, unless a broker gives more at once."""

PULL_TIMEOUT_MS: Final = 30_000
"""Several megabytes wait for those before them, and for the tasks beside this one."""

_PAUSE_SECONDS: Final = 0.5
_addresses: Final[dict[tuple[int, Access], BrokerAddresses]] = {}


def addresses_of(access: Access) -> BrokerAddresses:
    """Return the addresses, and the client, that tasks of this process share; a fork begins with none."""
    key = (os.getpid(), access)
    if key not in _addresses:
        _addresses[key] = BrokerAddresses(instance_for(access))
    return _addresses[key]


def read_piece(options: ReadOptions, schema: pa.Schema, piece: Piece) -> Iterator[pa.RecordBatch]:
    """The rows of one piece, in order.

    Raises:
        DataLoss: Some of them are gone, and the query does not go on without.
    """
    addresses = addresses_of(options.access)
    patience = Patience(
        options.access.retry_timeout_ms, time.monotonic, time.sleep, pause_seconds=_PAUSE_SECONDS
    )
    maker = BatchMaker(schema)
    queue, at, end = piece.queue, piece.start, piece.end
    is_done = False
    while not is_done and at < end:
        try:
            for records, next_offset in _pulled(addresses, options, Piece(queue, at, end)):
                yield maker.record_batch(records, queue.broker_name)
                at = next_offset
                patience.reset()
            is_done = True
        except OffsetMoved as moved:  # noqa: PERF203  # to be read again from where it stands
            at = _passed_over(options, piece, at, moved)
        except AWAY as error:
            if not patience.is_waiting:
                _log.warning("%s is read again from offset %d on when it can be: %s", queue, at, error)
            if not patience.pause():
                raise
            addresses.look_again()
        except BrokerRefused as error:
            if not is_gone(error):
                raise
            _report(options, [f"{named(queue)} is gone, and was to be read from {at} to {end - 1}"])
            return


def _pulled(
    addresses: BrokerAddresses, options: ReadOptions, piece: Piece
) -> Iterator[tuple[RecordChunk, int]]:
    """Chunks of records, and where the next begins. Nothing is left out of them unsaid."""
    from rmq_spark.wire.chunk import RecordChunk  # noqa: PLC0415  # brings numpy and pyarrow

    queue, at, end = piece.queue, piece.start, piece.end
    is_filtered = options.expression.strip() != "*"
    for chunk in gathered(_pull(addresses, options, piece)):
        records = RecordChunk(chunk.records, chunk.sizes)
        if not is_filtered and len(records) < chunk.next_offset - at:
            _check_gaps(options, queue, at, records, chunk.next_offset)
        at = chunk.next_offset
        yield records, at
    if not is_filtered and at < end:
        _report(options, [lost(queue, at, end)])


def gathered(answers: Iterable[RawChunk]) -> Iterator[RawChunk]:
    """The same records in fewer and larger pieces.

    A RocketMQ broker gives 32 messages at a time, and a filter leaves few of many: to make a record batch
    takes as long for so few as for some thousands.
    """
    waiting: list[RawChunk] = []
    size = 0
    try:
        for answer in answers:
            waiting.append(answer)
            size += len(answer.records)
            if size >= GATHERED_BYTES:
                yield _joined(waiting)
                waiting, size = [], 0
    except RocketPollError:
        if waiting:
            yield _joined(waiting)
        raise
    if waiting:
        yield _joined(waiting)


def _joined(chunks: Sequence[RawChunk]) -> RawChunk:
    if len(chunks) == 1:
        return chunks[0]
    import numpy as np  # noqa: PLC0415  # in tasks only

    sizes = None
    if all(chunk.sizes is not None for chunk in chunks):
        sizes = np.concatenate([chunk.sizes for chunk in chunks])
    return RawChunk(b"".join(chunk.records for chunk in chunks), sizes, chunks[-1].next_offset)


def _pull(addresses: BrokerAddresses, options: ReadOptions, piece: Piece) -> BulkPull:
    rules = PullRules(
        subscription=options.expression,
        expression_type=options.expression_type,
        timeout_ms=max(PULL_TIMEOUT_MS, options.access.request_timeout_ms),
    )
    address = addresses.of(piece.queue)
    return BulkPull(
        addresses.instance.api, address, options.group, piece.queue, piece.start, piece.end, rules
    )


def _passed_over(options: ReadOptions, piece: Piece, at: int, moved: OffsetMoved) -> int:
    """Where to go on after messages that are gone."""
    queue = piece.queue
    if at < moved.min_offset:
        go_on = min(moved.min_offset, piece.end)
        _report(options, [lost(queue, at, go_on)])
        return go_on
    _report(options, [f"{named(queue)} ends at offset {moved.max_offset}, and was to be read to {piece.end}"])
    return piece.end


def _check_gaps(options: ReadOptions, queue: MessageQueue, at: int, records: RecordChunk, end: int) -> None:
    """Offsets are dense: what a broker leaves out is gone, though its first offset may not show it yet."""
    from rmq_spark.wire.chunk import COLUMNS  # noqa: PLC0415  # brings numpy and pyarrow

    losses = []
    for queue_offset in [*COLUMNS["queueOffset"].build(records).to_pylist(), end]:
        if queue_offset > at:
            losses.append(lost(queue, at, queue_offset))
        at = queue_offset + 1
    _report(options, losses)


def _report(options: ReadOptions, losses: Sequence[str]) -> None:
    report_losses(losses, is_failure=options.fail_on_data_loss)
