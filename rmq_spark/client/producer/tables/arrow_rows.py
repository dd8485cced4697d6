"""Arrow rows: cut tables into requests, and encode their rows as records or messages.

    body             the payload; binary or text, never empty
    topic            the topic, unless one is given for all rows
    keys, tags       text
    properties       a map of text to text
    flag             a 32-bit number
    bornTimestamp    when the message was made; now, if it is not given

Rows that no broker would accept are refused before anything of their request is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmq_spark.client.arguments import check_send_topic, check_text
from rmq_spark.client.errors import MessageRejected
from rmq_spark.client.message import Message
from rmq_spark.client.producer.prepared_message import RECORD_OVERHEAD_BYTES, now_ms
from rmq_spark.errors import RecordError
from rmq_spark.wire.chunk import encode_chunk
from rmq_spark.wire.chunk.columns import TIMESTAMP
from rmq_spark.wire.chunk.properties import lengths_of_maps
from rmq_spark.wire.chunk.sized_chunk import encode_sizes
from rmq_spark.wire.codes import MessageSysFlag
from rmq_spark.wire.hosts import parse_host
from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.properties import RESERVED_NAMES

COLUMNS: Final = ("body", "topic", "keys", "tags", "properties", "flag", "bornTimestamp")
_BORN_V6: Final = MessageSysFlag.BORN_HOST_V6.value
_STORE_V6: Final = MessageSysFlag.STORE_HOST_V6.value


class RequestRows(NamedTuple):
    """Rows of one topic that are sent in one request."""

    topic: str
    rows: pa.RecordBatch


def split_rows(
    rows: pa.RecordBatch, topic: str | None, bytes_max: int, rows_max: Callable[[str], int]
) -> Iterator[RequestRows]:
    """Yield rows by topic, in the sizes of requests."""
    _check_columns(rows)
    if topic is not None:
        check_text("topic", topic, "orders")
        yield from _split_by_size(rows, check_send_topic(topic), bytes_max, rows_max(topic))
        return
    if "topic" not in rows.schema.names:
        raise MessageRejected(
            "topic", "a column of that name, or one topic for all rows", "neither"
        )
    topics = rows.column("topic")
    if topics.null_count:
        raise MessageRejected("topic", "one in each row", "null")
    for each in topics.unique().to_pylist():
        chosen = rows.filter(pc.equal(topics, each))
        yield from _split_by_size(chosen, check_send_topic(each), bytes_max, rows_max(each))


def _check_columns(rows: pa.RecordBatch) -> None:
    names = rows.schema.names
    unknown = sorted(set(names) - set(COLUMNS))
    if unknown or "body" not in names or len(set(names)) < len(names):
        needed = f"body, and of the others only {', '.join(COLUMNS[1:])}, each once"
        raise MessageRejected("columns", needed, ", ".join(names))
    if "properties" in rows.schema.names:
        used = set(rows.column("properties").keys.unique().to_pylist()) & RESERVED_NAMES
        if used:
            raise MessageRejected(
                "properties", "names that RocketMQ does not reserve", ", ".join(sorted(used))
            )


def _split_by_size(
    rows: pa.RecordBatch, topic: str, bytes_max: int, rows_max: int
) -> Iterator[RequestRows]:
    bodies = rows.column("body")
    if bodies.null_count:
        raise MessageRejected("body", "one in each row", "null")
    lengths = pc.binary_length(bodies).to_numpy(zero_copy_only=False).astype(np.int64)
    if len(lengths) and not lengths.min():
        raise MessageRejected(
            "body", "at least one byte: RocketMQ's consumers fail on empty ones", "none"
        )
    if len(lengths) and lengths.max() > bytes_max:
        raise MessageRejected("body", f"at most {bytes_max} bytes", f"{lengths.max()} bytes")
    ends = np.cumsum(lengths + _property_lengths(rows) + (RECORD_OVERHEAD_BYTES + len(topic)))
    start = 0
    while start < len(ends):
        before = int(ends[start - 1]) if start else 0
        end = int(np.searchsorted(ends, before + bytes_max, "right"))
        end = min(max(end, start + 1), start + rows_max)
        yield RequestRows(topic, rows.slice(start, end - start))
        start = end


def _property_lengths(rows: pa.RecordBatch) -> Any:
    """Return the number of bytes that the properties of each row take."""
    total = np.zeros(rows.num_rows, np.int64)
    for name in ("keys", "tags"):
        if name in rows.schema.names:
            lengths = pc.fill_null(pc.binary_length(rows.column(name)), 0)
            total += lengths.to_numpy(zero_copy_only=False).astype(np.int64) + len(name) + 2
    if "properties" in rows.schema.names and rows.num_rows:
        total += lengths_of_maps(rows.column("properties"))
    return total


def encode_sized_records(
    rows: pa.RecordBatch, queue: MessageQueue, born_host: str, store_host: str
) -> bytes:
    """Return rows as records for a queue, their sizes in front: the body of a chunk."""
    columns = record_columns(rows, queue, born_host, store_host)
    with translate_record_errors():
        encoded = encode_chunk(columns, has_checksums=True)
    return b"".join((encode_sizes(encoded.sizes), encoded.data))


def to_message(rows: pa.RecordBatch, topic: str) -> Message:
    """Return a single row as a message."""
    (row,) = rows.to_pylist()
    body = row["body"]
    return Message(
        topic,
        body.encode() if isinstance(body, str) else body,
        tags=row.get("tags"),
        keys=row.get("keys"),
        properties=dict(row.get("properties") or ()),
        flag=row.get("flag") or 0,
    )


@contextmanager
def translate_record_errors() -> Iterator[None]:
    """Raise MessageRejected where rows cannot be made to records."""
    try:
        yield
    except RecordError as error:
        raise MessageRejected("a row", "one that can be a message", str(error)) from error


def record_columns(
    rows: pa.RecordBatch, queue: MessageQueue, born_host: str, store_host: str
) -> dict[str, Any]:
    """Return the columns that the chunk codec encodes as records."""
    columns = {name: _fill_defaults(rows, name) for name in rows.schema.names if name != "topic"}
    columns.setdefault("bornTimestamp", pa.scalar(now_ms(), TIMESTAMP))
    sys_flag = _BORN_V6 if parse_host(born_host).is_v6 else 0
    sys_flag |= _STORE_V6 if parse_host(store_host).is_v6 else 0
    return {
        **columns,
        "topic": queue.topic,
        "queueId": queue.queue_id,
        "sysFlag": sys_flag,
        "bornHost": born_host,
        "storeHost": store_host,
    }


def message_columns(rows: pa.RecordBatch) -> dict[str, Any]:
    """Return the columns of a batch, to all messages of which the broker gives one born time."""
    return {
        name: _fill_defaults(rows, name)
        for name in rows.schema.names
        if name not in ("topic", "bornTimestamp")
    }


def _fill_defaults(rows: pa.RecordBatch, name: str) -> pa.Array:
    """Return a column, with the default where a row has no flag or no time."""
    column = rows.column(name)
    if name == "flag" and column.null_count:
        return pc.fill_null(column, 0)
    if name == "bornTimestamp" and column.null_count:
        return pc.fill_null(column, pa.scalar(now_ms(), TIMESTAMP))
    return column
