"""The writers: Spark's interface to the sink, over `sender` or `staged_commit` in the tasks.

Options and columns are checked on the driver, when Spark asks for a writer. Tasks send their rows
at once and report them (`TaskCommitMessage`). Messages that were sent cannot be withdrawn, so that
`abort` only logs them. Spark makes a new writer for each step of a streaming batch: a writer keeps
no state, and identifies a query by the reports of its tasks.

With delivery=exactly_once, `commit` stores a manifest of the rows (`manifest_commit`), and `abort`
does not undo anything either, because it may follow a commit whose answer was lost. If a batch must
become visible to all consumers at once, tasks stage their rows, `commit` has the broker publish
them (`staged_commit`), and `abort` deletes those that the tasks report, unless they are committed.

Spark 4.0 has no Arrow interface for streams: there, rows arrive one by one and are gathered into
record batches.

Spark starts a Python process for each writer and another one for each commit of a batch. They
import only what they use: numpy and pyarrow, and the client, where rows or requests are sent.
"""

from __future__ import annotations

import hashlib
import logging
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from rmq_spark.client.manifest import ManifestId
from rmq_spark.spark.errors import OptionError, WriteError
from rmq_spark.spark.options.options import WriteOptions, write_options
from rmq_spark.spark.options.sink_columns import (
    DELAY_LEVEL,
    DELIVER_AT,
    KEYS,
    SinkColumn,
    check_sink_columns,
)
from rmq_spark.spark.options.values import RowIds
from rmq_spark.spark.tracebacks import without_frames
from rmq_spark.spark.write.reports import StagedReport, TaskReport, WriteTask
from rmq_spark.wire.headers.members import BatchRequestHeader

try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
except ImportError:  # before Spark 4.1
    HAS_ARROW_STREAMS = False
else:
    HAS_ARROW_STREAMS = True

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Row

    from rmq_spark.spark.bodies.encoder import BodyEncoder

_log = logging.getLogger(__name__)

BATCH_ROWS: Final = 10_000
_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"
_RUN_ID: Final = "spark.jobGroup.id"
"""The property with the run of a stream, as tasks of its own sink have it; a foreachBatch function
may overwrite it."""
_CALL_ID: Final = "spark.sql.execution.root.id"
"""The property with the execution that called a foreachBatch function."""
_LOCAL_DIRS: Final = "SPARK_LOCAL_DIRS"
_DRIVER_CHARS: Final = 24
_CALL_CHARS: Final = 16
_PROCESS_ID: Final = uuid.uuid4().hex
_CHECKPOINT_OPTION: Final = "checkpointlocation"
_SENT_ROWS_STAY: Final = "the sent rows stay, and are sent again when the query continues"


@dataclass(frozen=True)
class TaskCommitMessage(WriterCommitMessage):
    """The report of one task: the rows that it sent, and where they are stored."""

    task: WriteTask
    rows: TaskReport
    manifest_id: ManifestId | None = None
    """The batch that the rows belong to, with exactly-once delivery."""


class _TaskWriter:
    def __init__(self, raw_options: Mapping[str, str], schema: StructType) -> None:
        self.options: WriteOptions = write_options(raw_options)
        self.columns: Sequence[SinkColumn] = check_sink_columns(
            schema, has_topic=self.options.topic is not None, body=self.options.body
        )
        names = {column.name for column in self.columns}
        if self.options.row_ids is RowIds.KEYS and KEYS not in names:
            raise OptionError(
                "rowIds",
                f'rowIds=keys needs a column {KEYS}. Add one with .withColumn("{KEYS}", ...), '
                "with a different value in each row of a batch",
            )
        self._checkpoint = next(
            (text for name, text in raw_options.items() if name.lower() == _CHECKPOINT_OPTION), None
        )
        self.encoder: BodyEncoder | None = None
        if self.options.body.has_fields:
            from rmq_spark.spark.bodies.encoder import BodyEncoder  # noqa: PLC0415  # brings pyarrow

            self.encoder = BodyEncoder(schema, self.options.body)
        delays = [name for name in (DELAY_LEVEL, DELIVER_AT) if name in names]
        if self.options.is_exactly_once and delays:
            # Brokers store delayed rows in another topic first, so their offsets are unknown.
            raise OptionError(
                "delivery",
                f"delivery=exactly_once cannot delay rows. Drop column {delays[0]} with .drop()",
            )

    def send(
        self,
        task: WriteTask,
        batches: Iterable[pa.RecordBatch],
        batch_manifest_id: ManifestId,
        batch: BatchRequestHeader | None,
    ) -> TaskCommitMessage:
        if self.encoder is not None:
            batches = self.encoder.encode_batches(batches, task.partition)
        if batch is not None:
            from rmq_spark.spark.exactly_once.staged_commit import stage_rows  # noqa: PLC0415  # see the module's docstring

            rows = stage_rows(self.options, self.columns, task, batches, batch, batch_manifest_id)
        else:
            from rmq_spark.spark.write.sender import send_rows  # noqa: PLC0415  # see the module's docstring

            rows = send_rows(self.options, self.columns, task, batches)
        manifest_id = batch_manifest_id if self.options.is_exactly_once else None
        return TaskCommitMessage(task, rows, manifest_id)

    def send_batch_write(
        self,
        write_id: str,
        driver_id: str,
        fallback_call_id: str,
        batches: Iterable[pa.RecordBatch],
        batch: BatchRequestHeader | None = None,
    ) -> TaskCommitMessage:
        """Send a task's rows of a batch write, which may be inside a query's foreachBatch.

        Within a query, or with option txnAppId, rows get the ids of that batch.
        ``fallback_call_id`` identifies the call of the foreachBatch function if Spark does not.
        ``batch`` identifies the write if it is not part of a query.
        """
        context, name = _task_context(), self.options.write_name
        task = WriteTask(write_id, 0, context.partitionId())
        query_id, batch_id = map(context.getLocalProperty, (_QUERY_ID, _BATCH_ID))
        part_of = ManifestId(None, write_id, 0)
        if batch is not None and self.options.transaction is not None:
            part_of = ManifestId(batch.owner, batch.sink, batch.batch_id)
        elif query_id is not None and batch_id is not None:
            if self.options.sink_name is not None:
                name = self.options.sink_name  # in manifests too: a batch may have several writes
                batch = BatchRequestHeader(name, int(batch_id), query_id)
            elif self.options.is_exactly_once and name is None:
                raise WriteError(
                    "query, batch and name identify a write within foreachBatch. Set option "
                    "writeName, to a different name for each write of a batch"
                )
            run_id = f"{driver_id}#{context.getLocalProperty(_CALL_ID) or fallback_call_id}"
            part_of = ManifestId(query_id, name or "", int(batch_id), run_id)
            batch_write_id = query_id if name is None else f"{query_id}/{name}"
            task = WriteTask(batch_write_id, int(batch_id), task.partition)
        if self.options.transaction is not None:
            task = WriteTask(*self.options.transaction, task.partition)
        if part_of.query_id is not None and batch_id == "0":
            self._check_first_batch(part_of)
        return self.send(task, batches, part_of, batch)

    def send_stream_batch(self, batches: Iterable[pa.RecordBatch]) -> TaskCommitMessage:
        context = _task_context()
        query_id, batch_id = map(context.getLocalProperty, (_QUERY_ID, _BATCH_ID))
        if query_id is None or batch_id is None:
            raise WriteError(
                f"this release of Spark does not pass {_QUERY_ID} and {_BATCH_ID} to tasks"
            )
        sink = self.options.sink_name
        if batch_id == "0":  # later batches wait for unreachable brokers
            _check_brokers(self.options)
            if sink is not None:
                from rmq_spark.spark.exactly_once.staged_commit import check_stageable  # noqa: PLC0415  # see the module's docstring

                check_stageable(self.options)
        part_of = ManifestId(query_id, "", int(batch_id), context.getLocalProperty(_RUN_ID) or "")
        if batch_id == "0":
            self._check_first_batch(part_of)
        task = WriteTask(query_id, int(batch_id), context.partitionId())
        batch = None if sink is None else BatchRequestHeader(sink, int(batch_id), query_id)
        return self.send(task, batches, part_of, batch)

    def commit(
        self, messages: Sequence[WriterCommitMessage | None], batch_id: int | None = None
    ) -> None:
        if not self.options.is_exactly_once:
            return
        sent = [message for message in messages if isinstance(message, TaskCommitMessage)]
        ids = {message.manifest_id for message in sent}
        foreign_ids = [
            each for each in ids if each is None or batch_id not in (None, each.batch_id)
        ]
        if len(sent) < len(messages) or len(ids) > 1 or foreign_ids:
            raise WriteError(
                f"the reports of the tasks belong to different batches: {ids}, "
                f"{_summarize(messages)}"
            )
        spans = [span for message in sent for span in message.rows.spans]
        for manifest_id in filter(None, ids):
            origin = self._origin_of(manifest_id)
            if self.options.sink_name is None:
                from rmq_spark.spark.exactly_once.manifest_commit import commit  # noqa: PLC0415  # see the module's docstring

                commit(self.options, manifest_id, spans, origin=origin)
            else:
                from rmq_spark.spark.exactly_once.staged_commit import commit_staged  # noqa: PLC0415  # see the module's docstring

                commit_staged(self.options, manifest_id, _staged_reports(messages), origin=origin)

    def _check_first_batch(self, manifest_id: ManifestId) -> None:
        """Refuse a query that starts over, before rows are sent; staging brokers also check it."""
        if self.options.is_exactly_once and self.options.sink_name is None:
            from rmq_spark.spark.exactly_once.manifest_commit import check_first_batch  # noqa: PLC0415  # see the module's docstring

            check_first_batch(self.options, manifest_id, self._origin_of(manifest_id))

    def _origin_of(self, manifest_id: ManifestId) -> str:
        """Return the origin of a query, which outlives its checkpoint; empty if unknown."""
        if manifest_id.query_id is None:
            return ""
        from rmq_spark.spark.exactly_once.manifest_commit import (  # noqa: PLC0415  # see the module's docstring
            origin_of_checkpoint,
            origin_of_write,
        )

        if manifest_id.write_name:
            return origin_of_write(manifest_id.write_name)
        return "" if self._checkpoint is None else origin_of_checkpoint(self._checkpoint)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        staged = _staged_reports(messages)
        if staged:
            from rmq_spark.spark.exactly_once.staged_commit import abort_staged  # noqa: PLC0415  # see the module's docstring

            abort_staged(self.options, staged)


@without_frames
class BatchWriter(DataSourceArrowWriter):
    """The writer of a batch query, ``df.write``."""

    def __init__(
        self, raw_options: Mapping[str, str], schema: StructType, *, overwrite: bool
    ) -> None:
        if overwrite:
            raise WriteError(
                'a topic cannot be overwritten: append to it by .mode("append") or INSERT INTO'
            )
        self._task_writer = _TaskWriter(raw_options, schema)
        self._write_id = self._task_writer.options.write_name or str(uuid.uuid4())
        self._driver_id, self._fallback_call_id = _driver_id(), uuid.uuid4().hex[:_CALL_CHARS]
        self._batch: BatchRequestHeader | None = None
        options = self._task_writer.options
        _check_brokers(options)
        if options.sink_name is not None:
            from rmq_spark.spark.exactly_once.staged_commit import next_batch_header  # noqa: PLC0415  # see the module's docstring

            self._batch = next_batch_header(options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskCommitMessage:
        """Send the rows of a task."""
        return self._task_writer.send_batch_write(
            self._write_id, self._driver_id, self._fallback_call_id, iterator, self._batch
        )

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Commit the rows if delivery is exactly once; log that all tasks have sent their rows."""
        self._task_writer.commit(messages)
        _log.info("write %s: %s", self._write_id, _summarize(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Log the failure; rows that were sent stay, and staged rows are deleted."""
        self._task_writer.abort(messages)
        _log.warning(
            "write %s was aborted: %s%s",
            self._write_id,
            _summarize(messages),
            "" if _staged_reports(messages) else "; the sent rows stay",
        )


@without_frames
class _BaseStreamWriter(DataSourceStreamWriter):
    def __init__(
        self, raw_options: Mapping[str, str], schema: StructType, *, overwrite: bool = False
    ) -> None:
        self._task_writer = _TaskWriter(raw_options, schema)
        if self._task_writer.options.is_exactly_once:
            _check_stream(raw_options, overwrite=overwrite)
        if self._task_writer.options.write_name is not None:
            raise OptionError(
                "writeName",
                "it applies to batch writes only: the query identifies the rows of a stream. "
                "Remove it",
            )
        if self._task_writer.options.transaction is not None:
            raise OptionError(
                "txnAppId",
                "it applies to batch writes only: the query identifies the rows of a stream. "
                "Remove it, and txnVersion",
            )

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """Commit the rows if delivery is exactly once; log that all tasks have sent their rows."""
        self._task_writer.commit(messages, batchId)
        _log.info("batch %d: %s", batchId, _summarize(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """Log that a batch failed or was stopped; Spark retries it when the query continues."""
        self._task_writer.abort(messages)
        stays = (
            "its rows are staged again when the query continues"
            if _staged_reports(messages)
            else _SENT_ROWS_STAY
        )
        _log.warning("batch %d was aborted: %s; %s", batchId, _summarize(messages), stays)


@without_frames
class StreamRowWriter(_BaseStreamWriter):
    """The writer of a stream for Spark 4.0, which passes single rows."""

    def write(self, iterator: Iterator[Row]) -> TaskCommitMessage:
        """Send the rows of a task."""
        writing = self._task_writer
        return writing.send_stream_batch(
            to_record_batches(iterator, writing.columns, writing.encoder)
        )


if HAS_ARROW_STREAMS:

    @without_frames
    class StreamArrowWriter(_BaseStreamWriter, DataSourceStreamArrowWriter):
        """The writer of a stream for Spark 4.1 and later, which hands over record batches."""

        def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskCommitMessage:
            """Send the rows of a task."""
            return self._task_writer.send_stream_batch(iterator)


def _driver_id() -> str:
    """Return the id of the driver that this Python process works for.

    A driver has several such processes, and starts more at any time. They share the directories of
    its block manager, which Spark creates with a random name whenever a driver starts.
    """
    local_directories = os.environ.get(_LOCAL_DIRS)
    return (
        _PROCESS_ID
        if local_directories is None
        else hashlib.sha256(local_directories.encode()).hexdigest()[:_DRIVER_CHARS]
    )


def stream_writer(
    raw_options: Mapping[str, str], schema: StructType, *, overwrite: bool
) -> DataSourceStreamWriter:
    """Return the writer for this release of Spark.

    Output mode complete asks to overwrite: as in Spark's Kafka sink, the whole result is then sent
    with each batch, as a topic cannot be overwritten. With exactly-once delivery it is refused.
    """
    kind = StreamArrowWriter if HAS_ARROW_STREAMS else StreamRowWriter
    return kind(raw_options, schema, overwrite=overwrite)


def to_record_batches(
    rows: Iterator[Row], sink_columns: Sequence[SinkColumn], encoder: BodyEncoder | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield rows as the record batches that later Spark releases pass; unsent columns are null."""
    import pyarrow as pa  # noqa: PLC0415  # in tasks only

    from rmq_spark.spark.bodies.encoder import to_arrow_value  # noqa: PLC0415  # in tasks only

    kinds = {
        "string": pa.string(),
        "binary": pa.binary(),
        "array<string>": pa.list_(pa.string()),
        "map<string,string>": pa.map_(pa.string(), pa.string()),
    }
    by_position = {column.position: column for column in sink_columns}
    width = max(by_position) + 1
    of_body: Mapping[int, pa.DataType] = {}
    if encoder is not None:
        width, of_body = encoder.width, encoder.arrow_types
        by_position.pop(width)
    while some := list(islice(rows, BATCH_ROWS)):
        arrays = [pa.nulls(len(some))] * width
        for position, column in by_position.items():
            values = [row[position] for row in some]
            if column.kind.startswith("map"):
                values = [None if value is None else list(value.items()) for value in values]
            arrays[position] = pa.array(values, kinds.get(column.kind, pa.int64()))
        for position, kind in of_body.items():
            arrays[position] = pa.array([to_arrow_value(row[position], kind) for row in some], kind)
        yield pa.RecordBatch.from_arrays(arrays, names=[str(position) for position in range(width)])


def _check_stream(raw_options: Mapping[str, str], *, overwrite: bool) -> None:
    if overwrite:
        raise OptionError(
            "delivery",
            "output mode complete writes all rows with each batch, and so each row repeatedly. "
            "Use append, or foreachBatch with a write of the changed rows",
        )
    if not any(name.lower() == _CHECKPOINT_OPTION for name in raw_options):
        raise OptionError(
            "delivery",
            "delivery=exactly_once identifies a query by its checkpoint. Set option "
            "checkpointLocation, even if spark.sql.streaming.checkpointLocation is set",
        )


def _check_brokers(options: WriteOptions) -> None:
    """Check that the brokers accept rows; create the topic of manifests if there will be any."""
    from rmq_spark.spark.preflight import check_writable  # noqa: PLC0415  # see the module's docstring

    check_writable(options)
    if options.is_exactly_once and options.sink_name is None:
        from rmq_spark.spark.exactly_once.manifest_commit import create_commits_topic  # noqa: PLC0415  # see the module's docstring

        create_commits_topic(options)


def _task_context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise WriteError("rows can be written in Spark's tasks only")
    return context


def _staged_reports(messages: Sequence[WriterCommitMessage | None]) -> list[StagedReport]:
    sent = [message for message in messages if isinstance(message, TaskCommitMessage)]
    return [message.rows.staged for message in sent if message.rows.staged is not None]


def _summarize(messages: Sequence[WriterCommitMessage | None]) -> str:
    sent = [message for message in messages if isinstance(message, TaskCommitMessage)]
    rows = [message.rows for message in sent]
    count, size = sum(each.row_count for each in rows), sum(each.body_bytes for each in rows)
    queues = {span.queue for each in rows for span in each.spans}
    unknown = len(messages) - len(sent)
    retries = sum(each.retries for each in rows)
    staged = _staged_reports(messages)
    location = f"are in {len(queues)} queues"
    if staged:
        location = f"were staged in {sum(each.staged_bytes for each in staged)} bytes"
        if any(each.is_committed for each in staged):
            location += ", or were committed before"
    return (
        f"{count} rows, {size} bytes, of {len(sent)} tasks {location}"
        + (f", after {retries} retries" if retries else "")
        + (f", {unknown} tasks have not reported" if unknown else "")
    )
