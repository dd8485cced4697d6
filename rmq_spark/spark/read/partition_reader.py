"""Tasks: how an executor reads a piece of a queue, from pulls (`piece_chunks`) to record batches.

Clients are kept between tasks, one for each way to reach brokers, as long as Spark keeps the Python
worker. A broker that cannot be reached is tried again until `retry_timeout_ms` is over; rows that
were given out are not given out again. It knows no offsets but those of its piece.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, Protocol

from rmq_spark.client.consumer.brokers.broker_client import Outages
from rmq_spark.client.errors import BrokerRefused, OffsetMoved
from rmq_spark.spark.bodies.bad_records import BadRecords
from rmq_spark.spark.brokers.addresses import BrokerAddresses, instance_for
from rmq_spark.spark.brokers.fan_out import AWAY, Patience, is_gone
from rmq_spark.spark.errors import BrokersAway, lost, named, report_losses
from rmq_spark.spark.options.access import Access
from rmq_spark.spark.options.options import ReadOptions
from rmq_spark.spark.plan.rate_limit import Piece

if TYPE_CHECKING:
    import pyarrow as pa

    from rmq_spark.wire.chunk import RecordChunk

_log = logging.getLogger(__name__)

_PAUSE_SECONDS: Final = 0.5
_addresses: Final[dict[tuple[int, Access], BrokerAddresses]] = {}
_outages: Final[dict[tuple[int, Access], Outages]] = {}
"""Records of the brokers that are away, shared by the tasks of a process, which read by turns."""


class Observer(Protocol):
    """Is shown all records that brokers give for a piece, before rows are made of them."""

    def see(self, records: RecordChunk) -> None:
        """Take some records, the next ones."""

    def miss(self, stated_crc: int | None) -> None:
        """Take the next record, which cannot be read; and what it says of its body's CRC."""


class _Nobody:
    """An observer for pieces that nobody observes."""

    def see(self, records: RecordChunk) -> None:
        """Take records, and do nothing with them."""

    def miss(self, stated_crc: int | None) -> None:
        """Take what a record states, and do nothing with it."""


_NOBODY: Final = _Nobody()


def addresses_of(access: Access) -> BrokerAddresses:
    """Return the addresses and the client that tasks of a process share; a fork starts without."""
    key = (os.getpid(), access)
    if key not in _addresses:
        _addresses[key] = BrokerAddresses(instance_for(access))
    return _addresses[key]


def outages_of(access: Access) -> Outages:
    """Return the record of brokers that are away that tasks of a process share."""
    return _outages.setdefault((os.getpid(), access), Outages("cannot be read on yet"))


def patience_of(access: Access) -> Patience:
    """Return the pauses of a task whose broker does not answer."""
    return Patience(
        access.retry_timeout_ms, time.monotonic, time.sleep, pause_seconds=_PAUSE_SECONDS
    )


def read_piece(
    options: ReadOptions,
    schema: pa.Schema,
    piece: Piece,
    *,
    tags: frozenset[str] | None = None,
    observer: Observer = _NOBODY,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one piece, in order.

    Args:
        options: The options of the source.
        schema: The types that record batches must have.
        piece: What to read.
        tags: The tags of which messages must have one; by default, as the options say.
        observer: Is shown all records that brokers give, and told of those that cannot be read.

    Raises:
        DataLoss: Messages of the piece are gone, and that is to end the query.
        RecordFault: A message cannot be read, and that is to end the query.
        BrokersAway: The broker could not be reached for too long.
    """
    # Both bring numpy and pyarrow: in tasks only.
    from rmq_spark.spark.bodies.decoder import batches_of  # noqa: PLC0415
    from rmq_spark.spark.read.record_chunks import MadeAgain, Unreadable, chunks_of  # noqa: PLC0415

    addresses = addresses_of(options.access)
    outages, patience = outages_of(options.access), patience_of(options.access)
    bad = BadRecords(options.on_bad_record)
    batches = batches_of(options, schema, bad, options.tags if tags is None else tags)
    queue, at = piece.queue, piece.start
    is_done = False
    while not is_done and at < piece.end:
        try:
            for records, next_offset in chunks_of(addresses, options, piece._replace(start=at)):
                observer.see(records)
                yield from batches.of(records, queue)
                at = next_offset
                patience.reset()
                outages.went_well(queue)
            is_done = True
        except OffsetMoved as moved:  # noqa: PERF203  # to be read again from where it stands
            at = _passed_over(options, piece, at, moved)
        except Unreadable as unreadable:
            bad.met(queue, unreadable.queue_offset, unreadable.fault)
            observer.miss(unreadable.stated_crc)
            yield from batches.of_place(queue, unreadable.queue_offset)
            at = unreadable.queue_offset + 1
        except MadeAgain as made_again:
            _report(options, str(made_again))
            return
        except AWAY as error:
            outages.failed(queue, error)
            if not patience.pause():
                raise BrokersAway(
                    queue.broker_name, options.access.retry_timeout_ms, error
                ) from error
            addresses.look_again()
        except BrokerRefused as error:
            if not is_gone(error):
                raise
            _report(
                options, f"{named(queue)} is gone, and was to be read from {at} to {piece.end - 1}"
            )
            return


def _passed_over(options: ReadOptions, piece: Piece, at: int, moved: OffsetMoved) -> int:
    """Report messages that are gone; return where to go on behind them."""
    queue = piece.queue
    if at < moved.min_offset:
        go_on = min(moved.min_offset, piece.end)
        _report(options, lost(queue, at, go_on))
        return go_on
    _report(
        options,
        f"{named(queue)} ends at offset {moved.max_offset}, and was to be read to {piece.end}",
    )
    return piece.end


def _report(options: ReadOptions, loss: str) -> None:
    report_losses([loss], is_failure=options.fail_on_data_loss)
