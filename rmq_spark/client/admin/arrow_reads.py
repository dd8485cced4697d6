"""Arrow reads: read a range of a topic as one Arrow table, at bulk speed.

    offset ranges (`read_bounds`) ──> bulk pulls ──> readable chunks
        ──> record batches ──> a table

The columns are those of the Spark source, made by the same code. Our broker returns megabytes per
pull, a RocketMQ broker 32 messages; several pulls are in flight at once.

With a serializer, the fields of decoded bodies replace the column ``body``:

    {"id": 1, "total": 9.5}  ──>  id BIGINT, total DOUBLE     types are found in the values
    "some text"              ──>  body STRING, if all bodies are texts
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import dropwhile
from typing import Any, Final, NamedTuple

import pyarrow as pa

from rmq_spark.client.arguments import check_kind, check_number, check_text, check_topic, wrong_kind
from rmq_spark.client.damaged_records import BadRecord
from rmq_spark.client.errors import (
    ManifestError,
    MessageRejected,
    MessageUnreadable,
    ProtocolError,
    TableTooLarge,
)
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
from rmq_spark.client.reading.bulk_pull import BulkPull, PullRules, stored_messages
from rmq_spark.client.reading.read_bounds import READER_GROUP, Bound, ReadRange, resolve_read_ranges
from rmq_spark.client.reading.readable_chunks import (
    first_not_rolled_back,
    missing_ranges,
    readable_chunks,
    without_rolled_back,
)
from rmq_spark.client.reading.record_batches import BROKER_NAME, RecordBatchConverter
from rmq_spark.client.serializers import Serializer, decode_value, resolve_serializer
from rmq_spark.client.subscriptions import ALL, by_tag, subscription_data
from rmq_spark.client.times import EARLIEST, LATEST
from rmq_spark.errors import BodyError, RecordError, excerpt, nearest_name, sanitize
from rmq_spark.wire.chunk import COLUMNS
from rmq_spark.wire.message_queue import MessageQueue

PULL_TIMEOUT_MS: Final = 30_000
"""Timeout of a pull: its megabytes may wait until those of earlier pulls have arrived."""

TABLE_BYTES_MAX: Final = 2 << 30
"""Default limit of a table's bytes, because small compressed bodies can inflate to gigabytes."""

BAD_RECORDS: Final = ("fail", "null", "skip")
"""The values of ``on_bad_record``; the Spark source's option has ``dead_letter`` as well."""

_log = logging.getLogger(__name__)
_FIRST: Final = ("topic", BROKER_NAME)
COLUMN_NAMES: Final = (*_FIRST, *(name for name in COLUMNS if name not in _FIRST))
DEFAULT_COLUMNS: Final = COLUMN_NAMES[:9]
_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
_POSITION_COLUMNS: Final = (BROKER_NAME, "queueId", "queueOffset")


def read_topic_table(
    instance: ClientInstance,
    topic: str,
    start: Bound,
    end: Bound,
    columns: Iterable[str] | None,
    tags: str | None,
    on_bad_record: str,
    bytes_max: int,
    body: str | Serializer | None = None,
) -> pa.Table:
    """Read a topic, as `Admin.read_table` does."""
    names = DEFAULT_COLUMNS if columns is None else check_columns(columns)
    serializer = resolve_serializer(body, "body")
    read = names if serializer is None else tuple(dict.fromkeys((*names, *_POSITION_COLUMNS, BODY)))
    schema = build_schema(read)
    if tags is not None:
        tags = check_text("tags", tags, "created || paid")
    topic = instance.namespace.wrap(check_topic(topic))
    wanted = subscription_data(topic, by_tag(ALL if tags is None else tags), 0)
    rules = PullRules(subscription=wanted.sub_string, timeout_ms=PULL_TIMEOUT_MS)
    check_kind("on_bad_record", on_bad_record, str, f"one of {', '.join(BAD_RECORDS)}", "'skip'")
    if on_bad_record not in BAD_RECORDS:
        needed = f"one of {', '.join(BAD_RECORDS)}"
        if on_bad_record == "dead_letter":
            needed += " (only the Spark source sends dead letters)"
        raise MessageRejected("on_bad_record", needed, on_bad_record)
    table = BoundedBatches(topic, bytes_max)
    for bounds in resolve_read_ranges(instance, topic, start, end):
        bad = _TableBadRecords(bounds.address, on_bad_record)
        rows = RecordBatchConverter(
            schema, bad, tags=wanted.tags_set, max_body_bytes=instance.api.max_body_bytes
        )
        at = bounds.start
        while at < bounds.end:
            at = _read_range(instance, bounds._replace(start=at), rules, bad, rows, table)
    found = _strip_topic(instance, pa.Table.from_batches(table.batches, schema=schema))
    if serializer is None:
        return found

    def report(row: int, problem: str) -> None:
        broker_name, queue_id, queue_offset = (
            found[name][row].as_py() for name in _POSITION_COLUMNS
        )
        queue = MessageQueue(topic, broker_name, queue_id)
        address = instance.routes.address_for_read(broker_name)
        bad = BadRecord(queue, queue_offset, problem)
        _TableBadRecords(address, on_bad_record).report([bad])

    expanded = expand_bodies(found, serializer, report, keeps_rows=on_bad_record == "null")
    return expanded.drop_columns([name for name in _POSITION_COLUMNS if name not in names])


def _strip_topic(instance: ClientInstance, table: pa.Table) -> pa.Table:
    names = instance.namespace
    if not names or _FIRST[0] not in table.column_names:
        return table
    at = table.column_names.index(_FIRST[0])
    topics = table.column(at).combine_chunks().dictionary_encode()
    short = pa.array([names.strip(each) for each in topics.dictionary.to_pylist()], pa.string())
    column = pa.DictionaryArray.from_arrays(topics.indices, short).cast(table.schema.field(at).type)
    return table.set_column(at, table.schema.field(at), column)


class BoundedBatches:
    """The batches of a table that may take a limited number of bytes."""

    def __init__(self, topic: str, bytes_max: int) -> None:
        self._topic = topic
        check_number("bytes_max", bytes_max, TABLE_BYTES_MAX)
        if bytes_max < 1:
            raise MessageRejected("bytes_max", "at least 1", bytes_max)
        self._bytes_max = bytes_max
        self._bytes = self._rows = 0
        self.batches: list[pa.RecordBatch] = []

    def add(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Add batches one by one; raise `TableTooLarge` once they exceed the limit."""
        for batch in batches:
            self._bytes += batch.nbytes
            self._rows += batch.num_rows
            if self._bytes > self._bytes_max:
                raise TableTooLarge(self._topic, self._bytes_max, self._rows)
            self.batches.append(batch)


def _read_range(
    instance: ClientInstance,
    read_range: ReadRange,
    rules: PullRules,
    bad_records: _TableBadRecords,
    converter: RecordBatchConverter,
    table: BoundedBatches,
) -> int:
    """Read a range up to its end or to an unreadable record; return where to continue."""
    is_filtered = rules.subscription != ALL
    at = read_range.start
    for records, next_offset, fault, _, record in readable_chunks(
        bulk_pull(instance, read_range, rules), read_range.queue, at, is_filtered=is_filtered
    ):
        if not is_filtered:
            offsets = records.head["queue_offset"].tolist()
            check_no_missing(instance, read_range, missing_ranges(offsets, at, next_offset))
        at = next_offset
        table.add(converter.convert(records, read_range.queue))
        if fault is not None:
            if not is_filtered:
                where = instance.api, read_range.address, read_range.queue
                at = first_not_rolled_back(*where, next_offset, read_range.end)
            bad_records.report([BadRecord(read_range.queue, at, fault, record)])
            table.add(converter.convert_unreadable(read_range.queue, at))
            return at + 1
    if not is_filtered:
        check_no_missing(instance, read_range, missing_ranges((), at, read_range.end))
    return read_range.end


def check_no_missing(
    instance: ClientInstance, read_range: ReadRange, ranges: Iterable[tuple[int, int]]
) -> None:
    """Raise an error if a broker omits messages that its retention has not deleted."""
    for first, last in without_rolled_back(
        instance.api, read_range.address, read_range.queue, ranges
    ):
        if last > instance.api.min_offset(read_range.address, read_range.queue):
            raise ProtocolError(
                read_range.address,
                f"it cannot read offsets {first} to {last - 1} of {read_range.queue}, although it "
                "has not deleted them",
            )


def check_columns(names: Iterable[str]) -> tuple[str, ...]:
    """Return column names, after checking that the columns exist."""
    example = '["body", "storeTimestamp"]'
    if isinstance(names, str):
        raise wrong_kind(
            "columns", "several names", f"str {excerpt(names)}", f'["{sanitize(names[:60])}"]'
        )
    check_kind("columns", names, Iterable, "several names", example)
    found = tuple(names)
    for name in found:
        check_text("one of columns", name, "body")
    unknown = [name for name in found if name not in COLUMN_NAMES]
    if unknown:
        nearest = nearest_name(unknown[0], COLUMN_NAMES)
        hint = "" if nearest is None else f" (did you mean {nearest}?)"
        raise MessageRejected("columns", f"some of {', '.join(COLUMN_NAMES)}{hint}", unknown[0])
    if not found or len(set(found)) < len(found):
        raise MessageRejected("columns", "one name or more, each once", ", ".join(found) or "none")
    return found


def build_schema(names: Iterable[str]) -> pa.Schema:
    """Return the schema of the named columns, with the types of the Spark source."""
    types = {BROKER_NAME: pa.string(), **{name: each.type for name, each in COLUMNS.items()}}
    return pa.schema(
        [
            (name, _TIMESTAMP if pa.types.is_timestamp(types[name]) else types[name])
            for name in names
        ]
    )


def bulk_pull(instance: ClientInstance, read_range: ReadRange, rules: PullRules) -> BulkPull:
    """Return a `BulkPull` of the records of a range."""
    queue, address, start, end = read_range
    return BulkPull(instance.api, address, READER_GROUP, queue, start, end, rules)


class _TableBadRecords:
    """Fails a read at the first message that cannot be read, or logs it as a warning."""

    def __init__(self, address: str, action: str) -> None:
        self._address = address
        self._action = action
        self.keeps_rows = action == "null"

    def report(self, records: Sequence[BadRecord]) -> None:
        for queue, queue_offset, problem, _ in records:
            position = f"offset {queue_offset} of queue {queue.queue_id} of {queue.topic} on "
            why = f"the message at {position}{queue.broker_name} cannot be read: {problem}"
            if self._action == "fail":
                raise MessageUnreadable(self._address, why)
            _log.warning("%s; %s", why, "its body is null" if self.keeps_rows else "it is skipped")


# ---- Committed reads: the rows that Spark sinks have committed. The Spark source reads the same
# rows with ``isolation=committed``.
#
#     commits topic (`load_manifest`) ──> counted manifests ──> their spans ──> bulk pulls
#         ──> are these the rows that were committed? ──> record batches ──> a table

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
    for read_range in resolve_read_ranges(instance, commits_topic_name(topic), EARLIEST, LATEST):
        for message, manifest in _manifests(instance, read_range):
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
    topic = instance.namespace.wrap(check_topic(topic))
    table = BoundedBatches(topic, bytes_max)
    wanted = subscription_data(topic, by_tag(ALL if tags is None else tags), 0).tags_set
    ranges = resolve_read_ranges(instance, commits_topic_name(topic), start, end)
    if not ranges:
        needed = f"a time, a word such as earliest, or an offset in {commits_topic_name(topic)}"
        raise MessageRejected("start and end", needed, "a mapping without queues")
    if len(ranges) > 1:
        raise ManifestError(
            f"topic {commits_topic_name(topic)} has {len(ranges)} queues, but batches are ordered "
            "within one queue only: delete the queues that no sink writes to"
        )
    instance.routes.refresh(topic)
    for manifest in _committed_manifests(instance, ranges[0]):
        for span in manifest.spans:
            _read_span(instance, span, schema, wanted, table)
    return _strip_topic(instance, pa.Table.from_batches(table.batches, schema=schema))


def _committed_manifests(instance: ClientInstance, read_range: ReadRange) -> list[CommitManifest]:
    """Return the counted manifests of a range, from the first whose rows are all still stored."""
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

    def has_deleted_rows(manifest: CommitManifest) -> bool:
        """Return whether retention has deleted rows of a batch."""
        return any(span.queue_offset < min_offset(span.queue) for span in manifest.spans)

    return [*dropwhile(has_deleted_rows, whole)]


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
    bounds = ReadRange(
        span.queue, address, span.queue_offset, span.queue_offset + span.message_count
    )
    bad = _FailOnBadRecord()
    rows = RecordBatchConverter(schema, bad, tags=tags, max_body_bytes=instance.api.max_body_bytes)
    count = crc = 0
    for records, next_offset, fault, *_ in readable_chunks(
        bulk_pull(instance, bounds, _PULL_RULES), bounds.queue, bounds.start, is_filtered=False
    ):
        count += len(records)
        crc = add_crc(crc, int(records.head["body_crc"].astype("int64").sum()))
        table.add(rows.convert(records, span.queue))
        if fault is not None:
            bad.report([BadRecord(span.queue, next_offset, fault)])
    if (count, crc) != (span.message_count, span.crc):
        raise ManifestError(
            f"the messages at offsets {bounds.start} to {bounds.end - 1} of {span.queue} are not "
            "the committed rows, or some of these are missing"
        )


class _FailOnBadRecord:
    """Fails a read at the first message of committed rows that cannot be read."""

    keeps_rows = False

    def report(self, records: Sequence[BadRecord]) -> None:
        queue, queue_offset, problem, _ = records[0]
        raise ManifestError(
            f"the committed row at offset {queue_offset} of {queue} cannot be read: {problem}. "
            "The committed rows are damaged or were replaced"
        )


# ---- Body values.

BODY: Final = "body"


def expand_bodies(
    table: pa.Table, serializer: Serializer, report: Callable[[int, str], None], *, keeps_rows: bool
) -> pa.Table:
    """Return a table whose column ``body`` is replaced by the values of the bodies.

    Args:
        table: Rows with the column ``body``.
        serializer: Decodes each body.
        report: Called with the row of a body that has no value, and the reason; it may raise.
        keeps_rows: True if such a body's columns are null; False if its row is omitted.

    Raises:
        MessageRejected: A field has values of several types, or the name of another column.
    """
    values: list[Any] = []
    kept: list[int] = []
    for row, body in enumerate(table.column(BODY).to_pylist()):
        value, problem = (None, None) if body is None else _decode(body, serializer)
        if problem is not None:
            report(row, problem)
        if problem is None or keeps_rows:
            kept.append(row)
            values.append(value)
    rest = table.take(pa.array(kept, pa.int64()))
    at = rest.schema.get_field_index(BODY)
    rest = rest.remove_column(at)
    for name, column in _columns(values, set(rest.column_names)).items():
        rest = rest.add_column(at, name, column)
        at += 1
    return rest


def _decode(body: bytes, serializer: Serializer) -> tuple[Any, str | None]:
    """Return the value of a body and None, or None and the reason why it cannot be decoded."""
    try:
        value = decode_value(body, serializer, BODY, "the start")
    except BodyError as error:
        return None, str(error)
    if isinstance(value, (Mapping, str)):
        return value, None
    return None, f"its body has no fields: found {type(value).__name__} {excerpt(value)}"


def _columns(values: list[Any], used_names: set[str]) -> dict[str, pa.Array]:
    found = [each for each in values if each is not None]
    if all(isinstance(each, str) for each in found):
        return {BODY: pa.array(values, pa.string())}
    if any(isinstance(each, str) for each in found):
        raise MessageRejected(BODY, "bodies that all have fields, or all are texts", "both")
    names = dict.fromkeys(name for each in found for name in each)
    columns = {}
    for name in names:
        if name in used_names:
            needed = "bodies without a field that has the name of a column. Choose other columns"
            raise MessageRejected(BODY, needed, name)
        field = [None if each is None else each.get(name) for each in values]
        try:
            columns[str(name)] = pa.array(field)
        except (pa.ArrowException, OverflowError, TypeError) as error:
            needed = f"fields of one type each. Read bodies as bytes (field {name!r}: {error})"
            first = next(each for each in field if each is not None)
            raise MessageRejected(BODY, needed, excerpt(first)) from error
    return columns
