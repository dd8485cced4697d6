"""Table display: shows messages, lag and broker figures in a notebook cell and at a prompt.

    rows of values ──> the first of them, cut short ──> a text in columns, or a table in HTML

All HTML is escaped, because bodies and names come from other programs.
"""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta, timezone
from html import escape
from typing import Final

from rmq_spark.client.admin.lag import Lag, total_lag
from rmq_spark.client.message import MessageExt
from rmq_spark.errors import format_count

ROWS_MAX: Final = 20
CHARACTERS_MAX: Final = 80
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MESSAGE_COLUMNS: Final = ("queue", "offset", "tags", "keys", "stored (UTC)", "body")
_LAG_COLUMNS: Final = ("queue", "committed", "end", "behind")

TableRow = Sequence[object]


def format_text(title: str, columns: Sequence[str], rows: Iterable[TableRow], count: int) -> str:
    """Return a title and rows in columns, as a prompt shows them."""
    lines = [tuple(columns), *([_truncate(value) for value in row] for row in rows)]
    widths = [max(map(len, each)) for each in zip(*lines, strict=True)]
    texts = [
        "  ".join(value.ljust(width) for value, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
    return "\n".join(
        [title, *(texts if len(texts) > 1 else ()), *_more_rows_note(count, len(texts) - 1)]
    )


def format_html(title: str, columns: Sequence[str], rows: Iterable[TableRow], count: int) -> str:
    """Return a title and a table, as a notebook shows them; everything in them is escaped."""
    lines = [[_truncate(value) for value in row] for row in rows]
    heads = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(value)}</td>' for value in line)}</tr>" for line in lines
    )
    table = f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>" if lines else ""
    more = "".join(f"<div>{escape(line)}</div>" for line in _more_rows_note(count, len(lines)))
    return f"<div>{escape(title)}</div>{table}{more}"


class MessageTable(list[MessageExt]):
    """A list of messages that shows itself as a table in a notebook."""

    def _table(self) -> tuple[str, Sequence[str], Iterable[TableRow], int]:
        topics = ", ".join(sorted({message.topic for message in self}))
        title = f"{format_count(len(self), 'message')}{' of ' if topics else ''}{topics}"
        return title, _MESSAGE_COLUMNS, map(_message_row, self[:ROWS_MAX]), len(self)

    def __repr__(self) -> str:
        return format_text(*self._table())

    def _repr_html_(self) -> str:
        return format_html(*self._table())


class LagTable(tuple[Lag, ...]):
    """The lag of a group in each queue of a topic, which shows itself as a table in a notebook."""

    __slots__ = ()

    def _table(self) -> tuple[str, Sequence[str], Iterable[TableRow], int]:
        behind, queues = format_count(total_lag(self), "message"), format_count(len(self), "queue")
        rows = map(_lag_row, self[:ROWS_MAX])
        return f"{behind} behind, in {queues}", _LAG_COLUMNS, rows, len(self)

    def __repr__(self) -> str:
        return format_text(*self._table())

    def _repr_html_(self) -> str:
        return format_html(*self._table())


def _message_row(message: MessageExt) -> TableRow:
    return (
        message.queue.queue_id,
        message.queue_offset,
        message.tags or "",
        " ".join(message.keys),
        _format_time(message.store_timestamp),
        _format_body(message.body) if message.fault is None else f"cannot be read: {message.fault}",
    )


def _lag_row(lag: Lag) -> TableRow:
    queue = f"{lag.queue.topic} {lag.queue.broker_name} {lag.queue.queue_id}"
    committed = "nothing" if lag.consumer_offset is None else lag.consumer_offset
    return queue, committed, lag.broker_offset, lag.messages


def _format_time(timestamp_ms: int) -> str:
    try:
        moment = _EPOCH + timedelta(milliseconds=timestamp_ms)
    except OverflowError:
        return f"{timestamp_ms} ms"
    return moment.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def _format_body(body: bytes) -> str:
    """Return the beginning of a body: UTF-8 as text, other bytes as Python represents them."""
    head = body[: 4 * CHARACTERS_MAX]
    try:
        text = getincrementaldecoder("utf-8")().decode(head, final=len(head) == len(body))
    except UnicodeDecodeError:
        return repr(body[: CHARACTERS_MAX + 1])
    return text


def _truncate(value: object) -> str:
    """Return a value on one line, without characters that would break the display."""
    text = str(value)[: CHARACTERS_MAX + 1]
    if not text.isprintable():
        text = repr(text)[1:-1]
    return text if len(text) <= CHARACTERS_MAX else f"{text[:CHARACTERS_MAX]}..."


def _more_rows_note(count: int, shown: int) -> list[str]:
    return [f"and {count - shown:,} more"] if count > shown else []
