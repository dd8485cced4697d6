"""Tasks: how a read is split into input partitions, and how a task reads one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from rmq_spark.spark.options.options import ReadOptions
from rmq_spark.spark.plan.partition_planner import CountedRange, OffsetRange, group_ranges
from rmq_spark.spark.read.partition_reader import read_range
from rmq_spark.spark.schemas.columns import arrow_schema_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


class TaskPartition(InputPartition):
    """The input partition of one task of a read: the ranges that it reads, in order."""

    def __init__(self, ranges: Sequence[CountedRange]) -> None:
        super().__init__(ranges)
        self.ranges = ranges


def task_partitions(ranges: Sequence[CountedRange], options: ReadOptions) -> list[InputPartition]:
    """Return the tasks that read ranges: a list, as Spark refuses other sequences."""
    return [TaskPartition(some) for some in group_ranges(ranges, options.partitions_max)]


def read_task(
    options: ReadOptions, schema: StructType, partition: InputPartition
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task; if there are no tasks, Spark passes a partition of its own."""
    if not isinstance(partition, TaskPartition):
        return
    arrow_schema = arrow_schema_of(schema)
    for piece in partition.ranges:
        if isinstance(piece, OffsetRange):
            yield from read_range(options, arrow_schema, piece)
        else:
            yield from _read_seldom(options, arrow_schema, piece)


def _read_seldom(
    options: ReadOptions, arrow_schema: pa.Schema, piece: CountedRange
) -> Iterator[pa.RecordBatch]:
    """Yield committed rows, or those of a key; other queries do not import these readers."""
    from rmq_spark.spark.exactly_once.committed_reader import SpanGroup, read_spans  # noqa: PLC0415  # few queries need it
    from rmq_spark.spark.read.key_reader import KeyLookup, read_key_lookup  # noqa: PLC0415  # few queries need it

    if isinstance(piece, KeyLookup):
        yield from read_key_lookup(options, arrow_schema, piece)
    elif isinstance(piece, SpanGroup):
        yield from read_spans(options, arrow_schema, piece)
