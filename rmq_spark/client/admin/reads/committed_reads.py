"""Committed reads: read the rows of a topic that Spark sinks have committed, as one Arrow table.

    commits topic (`load_manifest`) ──> counted manifests ──> their spans ──> bulk pulls
        ──> are these the rows that were committed? ──> record batches ──> a table

The Spark source reads the same rows with ``isolation=committed``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import dropwhile
from typing import NamedTuple

import pyarrow as pa

from rmq_spark.client.admin.reads.arrow_reads import (
    DEFAULT_COLUMNS,
    PULL_TIMEOUT_MS,
    BoundedBatches,
    build_schema,
    bulk_pull,
    check_columns,
    check_no_missing,
)
from rmq_spark.client.arguments import check_text, check_topic
from rmq_spark.client.damaged_records import BadRecord
from rmq_spark.client.errors import ManifestError, MessageRejected
from rmq_spark.client.instance.instance import ClientInstance
from rmq_spark.client.manifest import (
    CommitManifest,
    CommitState,
    CommittedSpan,
    ManifestId,
    add_crc,
    commits_topic_name,
    decode_manifest,
)
from rmq_spark.client.message import MessageExt
from rmq_spark.client.reading.bulk_pull import PullRules
from rmq_spark.client.reading.read_bounds import (
    EARLIEST,
    LATEST,
    Bound,
    ReadRange,
    resolve_read_ranges,
)
from rmq_spark.client.reading.readable_chunks import missing_ranges, readable_chunks
from rmq_spark.client.reading.record_batches import RecordBatchConverter
from rmq_spark.client.reading.stored_messages import stored_messages
from rmq_spark.client.subscriptions import ALL, by_tag, subscription_data
from rmq_spark.errors import RecordError
from rmq_spark.wire.message_queue import MessageQueue

_PULL_RULES = PullRules(timeout_ms=PULL_TIMEOUT_MS)


class SinkBatch(NamedTuple):
    """A batch that a sink has committed to a topic, as its manifest says."""

    id: ManifestId  # the query and batch, or the batch write
    row_count: int
    body_bytes: int | None  # of all rows; None if its manifest has parts, which are not read
    stored_ms: int  # since the epoch, when the manifest was stored
    is_counted: bool  # False for a repeat, which readers ignore


def sink_batches(instance: ClientInstance, topic: str) -> list[SinkBatch]:
    """Return all batches that sinks have committed to a topic, in the order of their manifests."""
    found: list[SinkBatch] = []
    for place in resolve_read_ranges(instance, commits_topic_name(topic), EARLIEST, LATEST):
        for message, manifest in _manifests(instance, place):
            rows = manifest.stated[0] if manifest.parts else manifest.row_count
            size = None if manifest.parts else manifest.body_bytes
            stored_ms = message.store_timestamp
            found.append(SinkBatch(manifest.id, rows, size, stored_ms, is_counted=False))
    _, counting = CommitState().apply((at, batch.id) for at, batch in enumerate(found))
    for at in counting:
        found[at] = found[at]._replace(is_counted=True)
    return found


def read_committed_table(
    instance: ClientInstance,
    topic: str,
    start: Bound,
    end: Bound,
    columns: Iterable[str] | None,
    tags: str | None,
    bytes_max: int,
) -> pa.Table:
    """Read the committed rows of a topic, as `Admin.read_committed` does."""
    schema = build_schema(DEFAULT_COLUMNS if columns is None else check_columns(columns))
    if tags is not None:
        tags = check_text("tags", tags, "created || paid")
    topic = check_topic(topic)
    table = BoundedBatches(topic, bytes_max)
    wanted = subscription_data(topic, by_tag(ALL if tags is None else tags), 0).tags_set
    places = resolve_read_ranges(instance, commits_topic_name(topic), start, end)
    if not places:
        queue = f"one for the queue of {commits_topic_name(topic)}, or a string or a time"
        raise MessageRejected("start and end", queue, "bounds of no queue")
    if len(places) > 1:
        raise ManifestError(
            f"topic {commits_topic_name(topic)} has {len(places)} queues, but batches are ordered "
            "within one queue only: delete the queues that no sink writes to"
        )
    instance.routes.refresh(topic)
    for manifest in _committed_manifests(instance, places[0]):
        for span in manifest.spans:
            _read_span(instance, span, schema, wanted, table)
    return pa.Table.from_batches(table.batches, schema=schema)


def _committed_manifests(instance: ClientInstance, read_range: ReadRange) -> list[CommitManifest]:
    """Return the counted manifests between two offsets, from the first with all its rows."""
    first = min(instance.api.min_offset(read_range.address, read_range.queue), read_range.start)
    ids: list[tuple[int, ManifestId]] = []
    stored: dict[int, CommitManifest] = {}
    for message, manifest in _manifests(instance, read_range._replace(start=first)):
        ids.append((message.queue_offset, manifest.id))
        if message.queue_offset >= read_range.start:
            stored[message.queue_offset] = manifest
    whole: list[CommitManifest] = []
    for at in filter(stored.__contains__, CommitState().apply(ids)[1]):
        manifest, parts = stored[at], {}
        for part in manifest.parts:
            for each in _messages(instance, read_range._replace(start=part, end=part + 1)):
                parts[each.queue_offset] = bytes(each.body)
        whole.append(manifest.join_parts(parts) if manifest.parts else manifest)

    @cache
    def min_offset(queue: MessageQueue) -> int:
        address = instance.routes.address_for_read(queue.broker_name)
        return instance.api.min_offset(address, queue)

    def is_begun(manifest: CommitManifest) -> bool:
        """Return whether retention has deleted rows of a batch."""
        return any(span.queue_offset < min_offset(span.queue) for span in manifest.spans)

    return [*dropwhile(is_begun, whole)]


def _manifests(
    instance: ClientInstance, read_range: ReadRange
) -> Iterator[tuple[MessageExt, CommitManifest]]:
    for message in _messages(instance, read_range):
        try:
            manifest = decode_manifest(bytes(message.body))
        except ManifestError as error:
            at = f"offset {message.queue_offset} of {read_range.queue.topic}"
            raise ManifestError(f"{at}: {error}") from error
        if manifest is not None:
            yield message, manifest


def _messages(instance: ClientInstance, read_range: ReadRange) -> Iterator[MessageExt]:
    at = read_range.start
    try:
        for message in stored_messages(instance.api, read_range, _PULL_RULES):
            if message.fault is not None:
                raise ManifestError(
                    f"the message at offset {message.queue_offset} of {read_range.queue} "
                    f"({message.message_id}) cannot be read: {message.fault}"
                )
            if message.queue_offset > at:
                check_no_missing(instance, read_range, missing_ranges((), at, message.queue_offset))
            at = message.queue_offset + 1
            yield message
    except RecordError as error:
        raise ManifestError(f"offsets from {at} of {read_range.queue.topic}: {error}") from error
    check_no_missing(instance, read_range, missing_ranges((), at, read_range.end))


def _read_span(
    instance: ClientInstance,
    span: CommittedSpan,
    schema: pa.Schema,
    tags: frozenset[str],
    table: BoundedBatches,
) -> None:
    """Add the rows of a span to a table, and verify that they are the committed ones."""
    address = instance.routes.address_for_read(span.queue.broker_name)
    place = ReadRange(
        span.queue, address, span.queue_offset, span.queue_offset + span.message_count
    )
    bad = _FailOnBadRecord()
    rows = RecordBatchConverter(schema, bad, tags=tags, max_body_bytes=instance.api.max_body_bytes)
    count = crc = 0
    for records, next_offset, fault, *_ in readable_chunks(
        bulk_pull(instance, place, _PULL_RULES), place.queue, place.start, is_filtered=False
    ):
        count += len(records)
        crc = add_crc(crc, int(records.head["body_crc"].astype("int64").sum()))
        table.add(rows.convert(records, span.queue))
        if fault is not None:
            bad.report([BadRecord(span.queue, next_offset, fault)])
    if (count, crc) != (span.message_count, span.crc):
        raise ManifestError(
            f"the messages at offsets {place.start} to {place.end - 1} of {span.queue} are not "
            "the committed rows, or some of these are missing"
        )


class _FailOnBadRecord:
    """Fails a read at the first message of committed rows that cannot be read."""

    keeps_rows = False

    def report(self, records: Sequence[BadRecord]) -> None:
        """Raise an error that names the first message."""
        queue, queue_offset, problem, _ = records[0]
        raise ManifestError(
            f"{queue} has a message at offset {queue_offset}, where rows were committed, that "
            f"cannot be read: {problem}; the committed rows are damaged or were replaced"
        )
