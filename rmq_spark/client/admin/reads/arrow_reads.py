"""Arrow reads: read a range of a topic as one Arrow table, at bulk speed.

    offset ranges (`read_bounds`) ──> bulk pulls ──> readable chunks
        ──> record batches ──> a table

The columns are those of the Spark source, made by the same code. Our broker returns megabytes per
pull, a RocketMQ broker 32 messages; several pulls are in flight at once.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Final

import pyarrow as pa

from rmq_spark.client.arguments import check_kind, check_number, check_text, wrong_kind
from rmq_spark.client.damaged_records import BadRecord
from rmq_spark.client.errors import (
    MessageRejected,
    MessageUnreadable,
    ProtocolError,
    TableTooLarge,
)
from rmq_spark.client.instance.instance import ClientInstance
from rmq_spark.client.reading.bulk_pull import BulkPull, PullRules
from rmq_spark.client.reading.read_bounds import READER_GROUP, Bound, ReadRange, resolve_read_ranges
from rmq_spark.client.reading.readable_chunks import (
    first_not_rolled_back,
    missing_ranges,
    readable_chunks,
    without_rolled_back,
)
from rmq_spark.client.reading.record_batches import BROKER_NAME, RecordBatchConverter
from rmq_spark.client.subscriptions import ALL, by_tag, subscription_data
from rmq_spark.errors import excerpt, nearest_name, sanitize
from rmq_spark.wire.chunk import COLUMNS

PULL_TIMEOUT_MS: Final = 30_000
"""Milliseconds for a pull: several megabytes queue up after earlier ones."""

TABLE_BYTES_MAX: Final = 2 << 30
"""Bytes that a table may take unless its reader allows more; a few KiB can inflate to that."""

BAD_RECORDS: Final = ("fail", "null", "skip")
"""The values of ``on_bad_record``, as of the Spark source's option (which sends dead letters)."""

_log = logging.getLogger(__name__)
_FIRST: Final = ("topic", BROKER_NAME)
COLUMN_NAMES: Final = (*_FIRST, *(name for name in COLUMNS if name not in _FIRST))
DEFAULT_COLUMNS: Final = COLUMN_NAMES[:9]
_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")


def read_topic_table(
    instance: ClientInstance,
    topic: str,
    start: Bound,
    end: Bound,
    columns: Iterable[str] | None,
    tags: str | None,
    on_bad_record: str,
    bytes_max: int,
) -> pa.Table:
    """Read a topic, as `Admin.read_table` does."""
    schema = build_schema(DEFAULT_COLUMNS if columns is None else check_columns(columns))
    if tags is not None:
        tags = check_text("tags", tags, "created || paid")
    wanted = subscription_data(topic, by_tag(ALL if tags is None else tags), 0)
    rules = PullRules(subscription=wanted.sub_string, timeout_ms=PULL_TIMEOUT_MS)
    check_kind("on_bad_record", on_bad_record, str, f"one of {', '.join(BAD_RECORDS)}", "'skip'")
    if on_bad_record not in BAD_RECORDS:
        needed = f"one of {', '.join(BAD_RECORDS)}"
        if on_bad_record == "dead_letter":
            needed += ", as a table sends nothing (the Spark source sends dead letters)"
        raise MessageRejected("on_bad_record", needed, on_bad_record)
    table = BoundedBatches(topic, bytes_max)
    for span in resolve_read_ranges(instance, topic, start, end):
        bad = _TableBadRecords(span.address, on_bad_record)
        rows = RecordBatchConverter(
            schema, bad, tags=wanted.tags_set, max_body_bytes=instance.api.max_body_bytes
        )
        at = span.start
        while at < span.end:
            at = _read_range(instance, span._replace(start=at), rules, bad, rows, table)
    return pa.Table.from_batches(table.batches, schema=schema)


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
        """Add batches, which are made one after the other."""
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
    """Read a span up to its end or to an unreadable record; return where to continue."""
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
    """Return the columns of these names with the types that the Spark source has."""
    types = {BROKER_NAME: pa.string(), **{name: each.type for name, each in COLUMNS.items()}}
    return pa.schema(
        [
            (name, _TIMESTAMP if pa.types.is_timestamp(types[name]) else types[name])
            for name in names
        ]
    )


def bulk_pull(instance: ClientInstance, read_range: ReadRange, rules: PullRules) -> BulkPull:
    """Return the records of a range, to be pulled."""
    queue, address, start, end = read_range
    return BulkPull(instance.api, address, READER_GROUP, queue, start, end, rules)


class _TableBadRecords:
    """Fails a read at the first message that cannot be read, or logs it as a warning."""

    def __init__(self, address: str, action: str) -> None:
        self._address = address
        self._action = action
        self.keeps_rows = action == "null"

    def report(self, records: Sequence[BadRecord]) -> None:
        """Raise MessageUnreadable, or log whether the messages are nulled or skipped."""
        for queue, queue_offset, problem, _ in records:
            place = f"offset {queue_offset} of queue {queue.queue_id} of {queue.topic} on "
            why = f"the message at {place}{queue.broker_name} cannot be read: {problem}"
            if self._action == "fail":
                raise MessageUnreadable(self._address, why)
            _log.warning("%s; %s", why, "its body is null" if self.keeps_rows else "it is skipped")
