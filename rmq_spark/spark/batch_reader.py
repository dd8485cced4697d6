"""BatchReader: Spark's interface of a batch read: queues from start to end, or one key's messages.

The end is fixed at `load()` (`LoadSnapshot`): all actions on a data frame, all parts of one plan,
and retried tasks see the same rows. To see newer messages, call `load()` again. If the user gives a
schema, Spark does not call the source at `load()`: then the first action fixes the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from rmq_spark.client.instance.instance import ClientInstance
from rmq_spark.spark.bodies.columns import check_schema, with_body_schema
from rmq_spark.spark.brokers.fan_out import instance_for
from rmq_spark.spark.brokers.queue_client import QueueClient
from rmq_spark.spark.errors import OptionError
from rmq_spark.spark.options.options import ReadOptions, commits_options, read_options
from rmq_spark.spark.options.start_positions import EARLIEST, LATEST, OffsetPosition
from rmq_spark.spark.options.table import Use
from rmq_spark.spark.plan.partition_planner import (
    OffsetRange,
    align_to_messages,
    divide_ranges,
    last_position,
)
from rmq_spark.spark.plan.position_resolver import LoadSnapshot, PositionResolver
from rmq_spark.spark.preflight import check_filter
from rmq_spark.spark.tasks import read_task, task_partitions
from rmq_spark.spark.tracebacks import without_frames

if TYPE_CHECKING:
    import pyarrow as pa

    from rmq_spark.spark.exactly_once.committed_reader import SpanGroup
    from rmq_spark.spark.read.key_reader import KeyLookup


@without_frames
class BatchReader(DataSourceReader):
    """A batch read: the queues from start to end, or the messages of one key."""

    def __init__(
        self,
        raw_options: Mapping[str, str],
        schema: StructType,
        snapshot: LoadSnapshot | None = None,
    ) -> None:
        """Take the snapshot made at `load()`, or None to make one when the tasks are planned."""
        options = read_options(raw_options)
        options.check_use(Use.BATCH)
        if options.starting is not None and options.starting.common == OffsetPosition(LATEST):
            raise OptionError(
                options.starting.option,
                "a batch read that starts at the end has no rows. Give earliest, a time or offsets",
            )
        check_schema(schema, options)
        self._options = with_body_schema(options, schema)
        self._schema = schema
        self._snapshot = snapshot

    def partitions(self) -> list[InputPartition]:
        """Return the tasks of the read."""
        instance = instance_for(self._options.access)
        try:
            found = self._plan_ranges(instance)
        finally:
            instance.shutdown()
        return task_partitions(found, self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task."""
        yield from read_task(self._options, self._schema, partition)

    def _plan_ranges(
        self, instance: ClientInstance
    ) -> Sequence[OffsetRange | KeyLookup | SpanGroup]:
        if self._options.is_committed:
            from rmq_spark.spark.exactly_once.committed_planner import (  # noqa: PLC0415  # few queries need it
                ManifestReader,
                plan_batch_read,
            )

            by_commits = commits_options(self._options)
            queues = QueueClient(by_commits, instance)
            queue_ranges = _plan_queue_ranges(by_commits, queues, self._snapshot)
            return plan_batch_read(self._options, ManifestReader(by_commits, queues), queue_ranges)
        queues = QueueClient(self._options, instance)
        check_filter(self._options, instance, queues)
        if self._options.key is not None:
            from rmq_spark.spark.read.key_reader import plan_key_lookups  # noqa: PLC0415  # few queries need it

            return plan_key_lookups(self._options, queues)
        return _plan_queue_ranges(self._options, queues, self._snapshot)


def _plan_queue_ranges(
    options: ReadOptions, queues: QueueClient, snapshot: LoadSnapshot | None
) -> list[OffsetRange]:
    found = queues.wait_for_named_brokers(options.starting, options.ending)
    span = PositionResolver(options, queues, found, snapshot)
    starts, ends = span.starting_offsets(default=EARLIEST), span.ending_offsets()
    for queue, start in starts.items():
        if start > ends[queue] and options.ending is not None:
            raise OptionError(
                options.ending.option,
                f"{queue} would end at {ends[queue]}, before it starts at {start}",
            )
    ranges = {queue: (min(starts[queue], ends[queue]), ends[queue]) for queue in starts}
    cut, known = align_to_messages(  # so that tasks of later actions recognize the topic
        queues, divide_ranges(ranges, options.partitions_min, options.partition_rows_max)
    )
    last_positions = [last_position(offset_range) for offset_range in cut]
    return [
        offset_range._replace(last_stored_ms=known[last].timestamp_ms, last_mark=known[last].mark)
        if last in known
        else offset_range
        for offset_range, last in zip(cut, last_positions, strict=True)
    ]
