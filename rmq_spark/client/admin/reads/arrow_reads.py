"""Arrow reads: what a topic holds, as one Arrow table, at bulk speed.

    spans of offsets (`read_bounds`) ──> bulk pulls ──> readable chunks
        ──> record batches ──> a table

The columns are those of the Spark source, by the same code. A broker of ours gives megabytes at a
time, a RocketMQ broker 32 messages, several times at once. This module must not know what a table
is for.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

import pyarrow as pa

from rmq_spark.client.arguments import check_kind, check_text, wrong_kind
from rmq_spark.client.errors import MessageRejected, MessageUnreadable, ProtocolError
from rmq_spark.client.instance.instance import ClientInstance
from rmq_spark.client.reading.bulk_pull import BulkPull, PullRules
from rmq_spark.client.reading.read_bounds import READER_GROUP, Bound, Span, spans_to_read
from rmq_spark.client.reading.readable_chunks import readable_chunks
from rmq_spark.client.reading.record_batches import BROKER_NAME, RecordBatches
from rmq_spark.client.reading.taken_back import first_not_taken_back, left_out, without_taken_back
from rmq_spark.client.subscriptions import ALL, by_tag, subscription_data
from rmq_spark.errors import excerpt, legible
from rmq_spark.nearest import nearest
from rmq_spark.wire.chunk import COLUMNS
from rmq_spark.wire.message_queue import MessageQueue

PULL_TIMEOUT_MS: Final = 30_000
"""Several megabytes wait for those before them."""

BAD_RECORDS: Final = ("fail", "null", "skip")
"""The values of ``on_bad_record``, as of the Spark source's option."""

_log = logging.getLogger(__name__)
_FIRST: Final = ("topic", BROKER_NAME)
COLUMN_NAMES: Final = (*_FIRST, *(name for name in COLUMNS if name not in _FIRST))
DEFAULT_COLUMNS: Final = COLUMN_NAMES[:9]
_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")


def table_of(
    instance: ClientInstance,
    topic: str,
    start: Bound,
    end: Bound,
    columns: Iterable[str] | None,
    tags: str | None,
    on_bad_record: str,
) -> pa.Table:
    """Read a topic; what `Admin.read_table` does."""
    schema = schema_of(DEFAULT_COLUMNS if columns is None else checked_columns(columns))
    if tags is not None:
        tags = check_text("tags", tags, "created || paid")
    wanted = subscription_data(topic, by_tag(ALL if tags is None else tags), 0)
    rules = PullRules(subscription=wanted.sub_string, timeout_ms=PULL_TIMEOUT_MS)
    check_kind("on_bad_record", on_bad_record, str, f"one of {', '.join(BAD_RECORDS)}", "'skip'")
    if on_bad_record not in BAD_RECORDS:
        raise MessageRejected("on_bad_record", f"one of {', '.join(BAD_RECORDS)}", on_bad_record)
    batches: list[pa.RecordBatch] = []
    for span in spans_to_read(instance, topic, start, end):
        bad = _BadRecords(span.address, on_bad_record)
        rows = RecordBatches(
            schema, bad, tags=wanted.tags_set, max_body_bytes=instance.api.max_body_bytes
        )
        at = span.start
        while at < span.end:
            at = _read_on(instance, span._replace(start=at), rules, bad, rows, batches)
    return pa.Table.from_batches(batches, schema=schema)


def _read_on(
    instance: ClientInstance,
    span: Span,
    rules: PullRules,
    bad: _BadRecords,
    rows: RecordBatches,
    batches: list[pa.RecordBatch],
) -> int:
    """Read a span up to a record that cannot be read, or to its end; return where to go on."""
    is_filtered = rules.subscription != ALL
    at = span.start
    for records, next_offset, fault, _ in readable_chunks(
        _pull(instance, span, rules), span.queue, at, is_filtered=is_filtered
    ):
        if not is_filtered:
            offsets = records.head["queue_offset"].tolist()
            refuse_left_out(instance, span, left_out(offsets, at, next_offset))
        at = next_offset
        batches += rows.of(records, span.queue)
        if fault is not None:
            if not is_filtered:
                where = instance.api, span.address, span.queue
                at = first_not_taken_back(*where, next_offset, span.end)
            bad.met(span.queue, at, fault)
            batches += rows.of_place(span.queue, at)
            return at + 1
    if not is_filtered:
        refuse_left_out(instance, span, left_out((), at, span.end))
    return span.end


def refuse_left_out(
    instance: ClientInstance, span: Span, ranges: Iterable[tuple[int, int]]
) -> None:
    """Raise an error if a broker has left out messages that it has not deleted of old age.

    Raises:
        ProtocolError: It has, as they cannot be read.
    """
    for first, last in without_taken_back(instance.api, span.address, span.queue, ranges):
        if last > instance.api.min_offset(span.address, span.queue):
            raise ProtocolError(
                span.address,
                f"it leaves out {span.queue}, offsets {first} to {last - 1}, which it should hold: "
                "they cannot be read there",
            )


def checked_columns(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names of columns, if there are such columns.

    Raises:
        MessageRejected: One is unknown, or named twice, or there are none.
        TypeError: They are no names.
    """
    example = '["body", "storeTimestamp"]'
    if isinstance(names, str):
        raise wrong_kind(
            "columns", "several names", f"str {excerpt(names)}", f'["{legible(names[:60])}"]'
        )
    check_kind("columns", names, Iterable, "several names", example)
    found = tuple(names)
    for name in found:
        check_text("one of columns", name, "body")
    unknown = [name for name in found if name not in COLUMN_NAMES]
    if unknown:
        meant = nearest(unknown[0], COLUMN_NAMES)
        hint = "" if meant is None else f" (did you mean {meant}?)"
        raise MessageRejected("columns", f"some of {', '.join(COLUMN_NAMES)}{hint}", unknown[0])
    if not found or len(set(found)) < len(found):
        raise MessageRejected("columns", "one name or more, each once", ", ".join(found) or "none")
    return found


def schema_of(names: Iterable[str]) -> pa.Schema:
    """Return the columns of these names with the types that the Spark source has."""
    return pa.schema([pa.field(name, _type_of(name)) for name in names])


def _type_of(name: str) -> pa.DataType:
    if name == BROKER_NAME:
        return pa.string()
    found = COLUMNS[name].type
    return _TIMESTAMP if pa.types.is_timestamp(found) else found


def _pull(instance: ClientInstance, span: Span, rules: PullRules) -> BulkPull:
    return BulkPull(
        api=instance.api,
        address=span.address,
        group=READER_GROUP,
        queue=span.queue,
        start=span.start,
        end=span.end,
        rules=rules,
    )


class _BadRecords:
    """Ends a read with the first message that cannot be read, or names it in a warning."""

    def __init__(self, address: str, how: str) -> None:
        self._address = address
        self._how = how
        self.are_kept = how == "null"

    def met(self, queue: MessageQueue, queue_offset: int, problem: object) -> None:
        """Raise MessageUnreadable, or log what becomes of the message."""
        place = f"offset {queue_offset} of queue {queue.queue_id} of {queue.topic} on "
        why = f"the message at {place}{queue.broker_name} cannot be read: {problem}"
        if self._how == "fail":
            raise MessageUnreadable(self._address, why)
        _log.warning("%s; %s", why, "its body is null" if self.are_kept else "it is left out")
