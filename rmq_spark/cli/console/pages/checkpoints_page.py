"""Checkpoints page: the checkpoints of Spark's streaming queries: their batches and their lag.

Only directories that the program was started with are read: a browser cannot name one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from http import HTTPStatus
from typing import Final

from rmq_spark.cli.console.guard import PageError
from rmq_spark.cli.console.layout import Page
from rmq_spark.cli.console.markup.components import (
    NO_VALUE,
    HtmlTableColumn,
    HtmlTableRow,
    age,
    alert,
    badge,
    card,
    empty_state,
    figures,
    live_region,
    number_text,
    table,
)
from rmq_spark.cli.console.markup.html import Child, Html, el, join, path
from rmq_spark.cli.console.visit import Visit, queue_text, topic_path
from rmq_spark.cli.spark.checkpoint_lag import (
    QueryPosition,
    latest_batch,
    query_positions,
    total_behind,
)
from rmq_spark.errors import RocketPollError
from rmq_spark.spark.checkpoint import CheckpointedBatch, read_checkpoint

_BATCHES_SHOWN: Final = 20
_LIST_COLUMNS: Final = (
    HtmlTableColumn("Directory", "grow"),
    HtmlTableColumn("Last batch", "number"),
    HtmlTableColumn("Started", "number"),
    HtmlTableColumn("Behind", "number"),
)
_QUEUE_COLUMNS: Final = (
    HtmlTableColumn("Source", "wide"),
    HtmlTableColumn("Topic", "grow"),
    HtmlTableColumn("Queue"),
    HtmlTableColumn("Next", "number"),
    HtmlTableColumn("End", "number.wide"),
    HtmlTableColumn("Behind", "number"),
    HtmlTableColumn("Last read stored", "number.wide"),
)
_BATCH_COLUMNS: Final = (
    HtmlTableColumn("Batch", "number"),
    HtmlTableColumn("Started", "grow"),
    HtmlTableColumn("State"),
    HtmlTableColumn("Messages", "number"),
)


def checkpoints(visit: Visit) -> Page:
    """Return the list of the checkpoints that the console was started with."""
    if not visit.checkpoints:
        nothing = empty_state(
            "No checkpoints",
            "Start the console with the checkpointLocation of a query to see its batches and lag "
            "here. The console reads it from this machine's files:",
            command=visit.command("console", options=["--checkpoint", "/srv/checkpoints/orders"]),
        )
        return Page("Checkpoints", nothing, "checkpoints")
    rows = [
        _list_row(visit, number_, directory) for number_, directory in enumerate(visit.checkpoints)
    ]
    return Page(
        "Checkpoints", live_region("checkpoints", table(_LIST_COLUMNS, rows)), "checkpoints"
    )


def checkpoint(visit: Visit) -> Page:
    """Return the page of one checkpoint."""
    text = visit.request.segments[1]
    is_known = text.isascii() and text.isdigit() and int(text[:9]) < len(visit.checkpoints)
    if not is_known:
        raise PageError(
            HTTPStatus.NOT_FOUND,
            "There is no such checkpoint.",
            "Choose one on the Checkpoints page.",
        )
    directory = visit.checkpoints[int(text)]
    trail = (("Checkpoints", "/checkpoints"),)
    try:
        batches = read_checkpoint(directory)
    except (RocketPollError, OSError) as error:
        return Page(directory, _unreadable_checkpoint(error), "checkpoints", trail)
    last = latest_batch(batches)
    places = query_positions(visit.admin, last)
    content = live_region(
        "checkpoint",
        figures(
            [
                ("Behind", number_text(total_behind(places))),
                ("Last committed", f"batch {last.batch_id}" if last.is_committed else "none"),
                ("Started", age(last.timestamp_ms)),
            ]
        ),
        card("Queues", table(_QUEUE_COLUMNS, [_queue_row(each) for each in places])),
        card("Batches", table(_BATCH_COLUMNS, list(_batch_rows(batches)))),
    )
    says = el(
        "p.hint",
        "Behind counts the messages after the last committed batch. To get the option with which "
        "another query continues there:",
    )
    command = visit.command("checkpoint", directory, options=["--start"])
    return Page(directory, join(content, says, command), "checkpoints", trail)


def _list_row(visit: Visit, index: int, directory: str) -> HtmlTableRow:
    href = path("checkpoints", index)
    name: Child = el("a", directory, href=href)
    try:
        batches = read_checkpoint(directory)
        last = latest_batch(batches)
        behind = total_behind(query_positions(visit.admin, last))
    except (RocketPollError, OSError) as error:
        return HtmlTableRow((join(name, el("div.sub", str(error))), NO_VALUE, NO_VALUE, "-"), href)
    return HtmlTableRow(
        (name, number_text(last.batch_id), age(last.timestamp_ms), number_text(behind)), href
    )


def _unreadable_checkpoint(error: Exception) -> Html:
    says = (
        "Check that it is the checkpointLocation of a query that reads from rocketpoll, on this "
        "machine."
    )
    return alert("This checkpoint cannot be read", str(error), says)


def _queue_row(position: QueryPosition) -> HtmlTableRow:
    queue = position.queue
    return HtmlTableRow(
        (
            str(position.source),
            el("a", queue.topic, href=topic_path(queue.topic)),
            queue_text(queue),
            number_text(position.next_offset),
            "deleted" if position.end is None else number_text(position.end),
            NO_VALUE if position.behind is None else number_text(position.behind),
            age(position.stored_ms),
        )
    )


def _batch_rows(batches: Sequence[CheckpointedBatch]) -> Iterator[HtmlTableRow]:
    shown = list(batches[-_BATCHES_SHOWN:])
    earlier = batches[-_BATCHES_SHOWN - 1] if len(batches) > _BATCHES_SHOWN else None
    before = [earlier, *shown[:-1]]
    for last, batch in zip(reversed(before), reversed(shown), strict=True):
        state = badge("committed", "good") if batch.is_committed else badge("not committed", "warn")
        count = None if last is None else _total_offsets(batch) - _total_offsets(last)
        yield HtmlTableRow(
            (number_text(batch.batch_id), age(batch.timestamp_ms), state, number_text(count))
        )


def _total_offsets(batch: CheckpointedBatch) -> int:
    return sum(
        position.next_offset
        for offset in batch.offsets.values()
        for position in offset.positions.values()
    )
