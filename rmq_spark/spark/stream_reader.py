"""The stream readers: Spark's interface over `micro_batch_planner` and `partition_reader`.

With isolation=committed they use `committed_planner` and `committed_reader` instead.

Spark 4.2 passes the start of each batch, and asks for limits and AvailableNow. Spark 4.0 and 4.1 do
neither: there the reader remembers its position and applies the limits itself. `stream_reader`
chooses the class.

Constructors do nothing that can fail, because Spark hides their errors inside one of its own. A
reader lives in the planner's process or, pickled, in a task's, where `stop` may never be called:
therefore it registers nothing that would have to be undone.

Spark starts a new planner's process for each query, and imports are most of the cost of a small
query. Therefore a module that only some queries need is imported where these use it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from rmq_spark.client.instance.instance import ClientInstance
from rmq_spark.spark.bodies.columns import check_schema, with_body_schema
from rmq_spark.spark.brokers.fan_out import instance_for
from rmq_spark.spark.brokers.queue_client import QueueClient
from rmq_spark.spark.options.options import BatchLimits, ReadOptions, read_options
from rmq_spark.spark.options.table import Use
from rmq_spark.spark.plan.micro_batch_planner import NO_LIMITS, MicroBatchPlanner
from rmq_spark.spark.plan.source_offset import SourceOffset, with_sizes
from rmq_spark.spark.preflight import check_filter
from rmq_spark.spark.tasks import read_task, task_partitions
from rmq_spark.spark.tracebacks import without_frames

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )
except ImportError:  # before Spark 4.2
    HAS_LIMITS = False
else:
    HAS_LIMITS = True

if TYPE_CHECKING:
    import pyarrow as pa


_log = logging.getLogger(__name__)


def stream_reader(raw_options: Mapping[str, str], schema: StructType) -> DataSourceStreamReader:
    """Return the reader for this release of Spark."""
    return (
        Spark42StreamReader(raw_options, schema)
        if HAS_LIMITS
        else Spark40StreamReader(raw_options, schema)
    )


@without_frames
class _BaseStreamReader(DataSourceStreamReader):
    def __init__(self, raw_options: Mapping[str, str], schema: StructType) -> None:
        self._raw_options = dict(raw_options)
        self._schema = schema
        self._parsed: ReadOptions | None = None
        self._instance: ClientInstance | None = None
        self._planner: MicroBatchPlanner | None = None

    @property
    def _options(self) -> ReadOptions:
        if self._parsed is None:
            options = read_options(self._raw_options)
            options.check_use(Use.STREAM)
            self._parsed = with_body_schema(options, self._schema)
        return self._parsed

    @property
    def _batches(self) -> MicroBatchPlanner:
        if self._planner is None:
            self._planner = self._create_planner()
        return self._planner

    def _create_planner(self) -> MicroBatchPlanner:
        options = self._options
        check_schema(self._schema, options)
        instance = self._instance = instance_for(options.access)
        if options.is_committed:
            from rmq_spark.spark.exactly_once.committed_planner import CommittedBatchPlanner  # noqa: PLC0415  # few queries need it

            return CommittedBatchPlanner(
                options, lambda given: QueueClient(given, instance), time.monotonic
            )
        queues = QueueClient(options, instance)
        check_filter(options, instance, queues)
        return MicroBatchPlanner(options, queues, time.monotonic)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for tasks: no connections, and the options as parsed on the driver."""
        return {**self.__dict__, "_parsed": self._options, "_instance": None, "_planner": None}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's name
        return self._batches.initial_offset().to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        found = self._batches.plan_ranges(self._parse_offset(start), self._parse_offset(end))
        return task_partitions(found, self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield from read_task(self._options, self._schema, partition)

    def commit(self, end: dict[str, Any]) -> None:
        self._batches.end_batch(self._parse_offset(end))

    def stop(self) -> None:
        if self._instance is not None:
            self._instance.shutdown()

    def _latest_offset(self, start: dict[str, Any], limits: BatchLimits) -> dict[str, Any]:
        at = self._parse_offset(start)
        end = self._batches.latest_offset(at, limits)
        self._batches.commit_progress(at)  # everything before the start has been written
        return start if end == at else end.to_json()

    def _parse_offset(self, document: dict[str, Any]) -> SourceOffset:
        """Parse an offset that Spark passes; brokers may have been renamed since it was written."""
        return SourceOffset.from_json(document).renamed(self._options.broker_names)


@without_frames
class Spark40StreamReader(_BaseStreamReader):
    """The stream reader for Spark 4.0 and 4.1.

    Trigger.AvailableNow is a single batch there: with option availableNow it reads all that is
    available, whatever the limits.
    """

    def __init__(self, raw_options: Mapping[str, str], schema: StructType) -> None:
        super().__init__(raw_options, schema)
        self._last_offset: dict[str, Any] | None = None

    def _create_planner(self) -> MicroBatchPlanner:
        planner = super()._create_planner()
        if self._options.available_now:
            planner.prepare_available_now()
        return planner

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's name
        """Return the offset at which a new query starts, and remember it."""
        self._last_offset = super().initialOffset()
        return self._last_offset

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # noqa: N802  # as in 4.0
        """Return the end of the next batch, starting at the end of the last one."""
        if self._last_offset is None:
            self._last_offset = super().initialOffset()
        options = self._options
        return self._latest_offset(
            self._last_offset, NO_LIMITS if options.available_now else options.limits
        )

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of a batch, and remember its end as the query's position."""
        found = super().partitions(start, end)
        self._last_offset = end
        return found


if HAS_LIMITS:

    @without_frames
    class Spark42StreamReader(_BaseStreamReader, SupportsTriggerAvailableNow):
        """The stream reader for Spark 4.2 and later, which supports AvailableNow."""

        def _create_planner(self) -> MicroBatchPlanner:
            planner = super()._create_planner()
            if self._options.available_now:
                _log.warning(
                    "option availableNow applies to Spark 4.0 and 4.1, and has no effect here. "
                    "Remove it, and use .trigger(availableNow=True) for a query that ends"
                )
            return planner

        def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  # Spark's name
            """Return one limit, because Spark takes only one; `latestOffset` applies the others."""
            limits = self._options.limits
            if limits.rows_max is not None:
                return ReadMaxRows(limits.rows_max)
            if limits.bytes_max is not None:
                return ReadMaxBytes(limits.bytes_max)
            if limits.rows_min is not None:
                return ReadMinRows(limits.rows_min)
            return ReadAllAvailable()

        def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # Spark's name
            """Fix the end of the query, which does not read messages that arrive later."""
            self._batches.prepare_available_now()

        def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802  # Spark's name
            """Return the end of the next batch after ``start``, within the limit."""
            limits = self._options.limits
            if isinstance(limit, ReadAllAvailable):
                limits = NO_LIMITS
            elif isinstance(limit, ReadMaxRows):
                limits = replace(limits, rows_max=limit.max_rows)
            elif isinstance(limit, ReadMaxBytes):
                limits = replace(limits, bytes_max=limit.max_bytes)
            return self._latest_offset(start, limits)

        def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802  # Spark's name
            """Return the ends of the queues, for ``latestOffset`` of the progress."""
            batches = self._batches
            return (
                None
                if batches.newest is None
                else with_sizes(batches.newest.to_json(), batches.sizes)
            )
