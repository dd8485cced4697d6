"""Spark's interface of a batch read: queues from start to end, or the messages of one key.

Where a read ends is settled at `load()` (`Moment`), and stays: all actions on a data frame, all
parts of one plan, and tasks that are run again see the same rows. To see what has arrived since,
call `load()` again. With a schema of the user's Spark does not ask the source at `load()`: then the
first action settles the ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from rmq_spark.client.instance.instance import ClientInstance
from rmq_spark.spark.bodies.columns import check_schema, with_body_schema
from rmq_spark.spark.brokers.addresses import instance_for
from rmq_spark.spark.brokers.queue_client import Queues
from rmq_spark.spark.errors import OptionError, named
from rmq_spark.spark.exactly_once.committed_planner import CommitsReader, batch_pieces
from rmq_spark.spark.exactly_once.committed_reader import SpanPiece, read_spans
from rmq_spark.spark.options.options import ReadOptions, commits_options, read_options
from rmq_spark.spark.options.start_positions import EARLIEST, LATEST, AtOffset
from rmq_spark.spark.options.table import Use
from rmq_spark.spark.plan.partitions import bundled, ending_with_messages, last_of
from rmq_spark.spark.plan.rate_limit import Piece, pieces
from rmq_spark.spark.plan.resolve_positions import Moment, Span
from rmq_spark.spark.preflight import check_filter
from rmq_spark.spark.read.key_reader import KeyPiece, key_pieces, read_key_piece
from rmq_spark.spark.read.partition_reader import read_piece
from rmq_spark.spark.schemas.columns import arrow_schema_of

if TYPE_CHECKING:
    import pyarrow as pa


class BatchPieces(InputPartition):
    """The input partition of one task of a batch read: what it reads, one after the other."""

    def __init__(self, pieces: Sequence[Piece | KeyPiece | SpanPiece]) -> None:
        super().__init__(pieces)
        self.pieces = pieces


class BatchReader(DataSourceReader):
    """A batch read: the queues from start to end, or the messages of one key.

    The end is where the queues ended at `load()`; all actions on the data frame, and tasks that are
    run again, see the same rows.
    """

    def __init__(
        self, given: Mapping[str, str], schema: StructType, moment: Moment | None = None
    ) -> None:
        """Take the moment at which it was loaded; None if that is when its tasks are planned."""
        options = read_options(given)
        options.check_is_for(Use.BATCH)
        if options.starting is not None and options.starting.everywhere == AtOffset(LATEST):
            raise OptionError(
                options.starting.option, "a batch read that starts at the end has no rows"
            )
        check_schema(schema, options)
        self._options = with_body_schema(options, schema)
        self._schema = schema
        self._moment = moment

    def partitions(self) -> list[InputPartition]:  # a list: Spark refuses other sequences
        """Return the tasks of the read."""
        instance = instance_for(self._options.access)
        try:
            found = self._pieces(instance)
        finally:
            instance.shutdown()
        return [BatchPieces(pieces) for pieces in bundled(found, self._options.tasks_max)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task; Spark asks for one without a piece if there are no tasks."""
        if not isinstance(partition, BatchPieces):
            return
        schema = arrow_schema_of(self._schema)
        for piece in partition.pieces:
            if isinstance(piece, KeyPiece):
                yield from read_key_piece(self._options, schema, piece)
            elif isinstance(piece, SpanPiece):
                yield from read_spans(self._options, schema, piece)
            else:
                yield from read_piece(self._options, schema, piece)

    def _pieces(self, instance: ClientInstance) -> Sequence[Piece | KeyPiece | SpanPiece]:
        if self._options.is_committed:
            return _committed(self._options, instance, self._moment)
        queues = Queues(self._options, instance)
        check_filter(self._options, instance, queues)
        if self._options.key is not None:
            return key_pieces(self._options, queues)
        return _queue_pieces(self._options, queues, self._moment)


def _committed(
    options: ReadOptions, instance: ClientInstance, moment: Moment | None
) -> list[SpanPiece]:
    by_commits = commits_options(options)
    queues = Queues(by_commits, instance)
    places = _queue_pieces(by_commits, queues, moment)
    return batch_pieces(options, CommitsReader(by_commits, queues), places)


def _queue_pieces(options: ReadOptions, queues: Queues, moment: Moment | None) -> list[Piece]:
    found = queues.discover_those_named(options.starting, options.ending)
    span = Span(options, queues, found, moment)
    starts, ends = span.starting(default=EARLIEST), span.ending()
    for queue, start in starts.items():
        if start > ends[queue] and options.ending is not None:
            raise OptionError(
                options.ending.option,
                f"{named(queue)} would end at {ends[queue]}, before it starts at {start}",
            )
    ranges = {queue: (min(starts[queue], ends[queue]), ends[queue]) for queue in starts}
    cut, known = ending_with_messages(  # by which tasks of later actions know the topic, too
        queues, pieces(ranges, options.pieces_min, options.piece_rows_max)
    )
    lasts = [last_of(piece) for piece in cut]
    return [
        piece._replace(last_stored_ms=known[last].timestamp_ms, last_mark=known[last].mark)
        if last in known
        else piece
        for piece, last in zip(cut, lasts, strict=True)
    ]
