"""Arrow reads: what a topic holds, as one Arrow table, at bulk speed.

    spans of offsets (`read_bounds`) ──> bulk pulls ──> readable chunks
        ──> record batches ──> a table

The columns are those of the Spark source, by the same code. A broker of ours gives megabytes at a
time, a RocketMQ broker 32 messages, several times at once. This module must not know what a table
is for.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import pyarrow as pa

from rmq_spark.client.arguments import check_kind, check_text, wrong_kind
from rmq_spark.client.errors import MessageRejected, ProtocolError
from rmq_spark.client.instance.instance import ClientInstance
from rmq_spark.client.reading.bulk_pull import BulkPull, PullRules
from rmq_spark.client.reading.left_out import left_out
from rmq_spark.client.reading.read_bounds import (
    READER_GROUP,
    Bound,
    Span,
    spans_to_read,
)
from rmq_spark.client.reading.readable_chunks import readable_chunks
from rmq_spark.client.reading.record_batches import BROKER_NAME, RecordBatches
from rmq_spark.client.reading.taken_back import first_not_taken_back, without_taken_back
from rmq_spark.client.subscriptions import ALL, by_tag, subscription_data
from rmq_spark.errors import excerpt, legible
from rmq_spark.nearest import nearest
from rmq_spark.wire.chunk import COLUMNS
from rmq_spark.wire.message_queue import MessageQueue

PULL_TIMEOUT_MS: Final = 30_000
"""Several megabytes wait for those before them."""

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
) -> pa.Table:
    """Read a topic; what `Admin.read_table` does."""
    schema = schema_of(DEFAULT_COLUMNS if columns is None else checked_columns(columns))
    if tags is not None:
        tags = check_text("tags", tags, "created || paid")
    wanted = subscription_data(topic, by_tag(ALL if tags is None else tags), 0)
    rules = PullRules(subscription=wanted.sub_string, timeout_ms=PULL_TIMEOUT_MS)
    batches: list[pa.RecordBatch] = []
    for span in spans_to_read(instance, topic, start, end):
        bad = Refused(span.address)
        rows = RecordBatches(schema, bad, tags=wanted.tags_set)
        is_filtered = bool(wanted.tags_set)
        at = span.start
        pulled = _pull(instance, span, rules)
        for records, next_offset, fault, _ in readable_chunks(
            pulled, span.queue, at, is_filtered=is_filtered
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
        if not is_filtered:
            refuse_left_out(instance, span, left_out((), at, span.end))
    return pa.Table.from_batches(batches, schema=schema)


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


class Refused:
    """Ends a read with the first message that cannot be read."""

    are_kept = False

    def __init__(self, address: str) -> None:
        self._address = address

    def met(self, queue: MessageQueue, queue_offset: int, problem: object) -> None:
        """End the read with the name of the message."""
        why = f"the message at offset {queue_offset} of {queue} cannot be read: {problem}"
        raise ProtocolError(self._address, why)
