"""Checkpoints page: batches and lag of Spark's streaming queries, read from their checkpoints.

Only directories that the program was started with are read: a browser cannot name one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from http import HTTPStatus
from typing import Final

from rmq_spark.cli.console.guard import PageError
from rmq_spark.cli.console.layout import Page
from rmq_spark.cli.console.markup import components as ui
from rmq_spark.cli.console.markup.html import Child, el, join, path
from rmq_spark.cli.console.visit import Visit, topic_path
from rmq_spark.cli.groups.group_state import queue_text
from rmq_spark.cli.spark.checkpoint_lag import (
    QueryPosition,
    latest_batch,
    query_positions,
    total_behind,
)
from rmq_spark.errors import RocketPollError
from rmq_spark.spark.monitoring.checkpoint import CheckpointedBatch, read_checkpoint

_BATCHES_SHOWN: Final = 20
_LIST_COLUMNS: Final = ("Directory.grow", "Last batch.number", "Started.number", "Behind.number")
_QUEUE_COLUMNS: Final = ("Source.wide", "Topic.grow", "Queue", "Next.number", "End.number.wide",
                         "Behind.number", "Last read stored.number.wide")  # fmt: skip
_BATCH_COLUMNS: Final = ("Batch.number", "Started.grow", "State", "Messages.number")


def checkpoints(visit: Visit) -> Page:
    """Return the list of the checkpoints that the console was started with."""
    if not visit.checkpoints:
        nothing = ui.empty_state(
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
        "Checkpoints", ui.live_region("checkpoints", ui.table(_LIST_COLUMNS, rows)), "checkpoints"
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
        unreadable = ui.alert(
            "This checkpoint cannot be read",
            str(error),
            "Check that it is the checkpointLocation of a query that reads from rocketpoll, on "
            "this machine.",
        )
        return Page(directory, unreadable, "checkpoints", trail)
    last = latest_batch(batches)
    positions = query_positions(visit.admin, last)
    content = ui.live_region(
        "checkpoint",
        ui.figures(
            [
                ("Behind", total_behind(positions)),
                ("Last committed", f"batch {last.batch_id}" if last.is_committed else "none"),
                ("Started", ui.age(last.timestamp_ms)),
            ]
        ),
        ui.card("Queues", ui.table(_QUEUE_COLUMNS, [_queue_row(each) for each in positions])),
        ui.card("Batches", ui.table(_BATCH_COLUMNS, list(_batch_rows(batches)))),
    )
    hint = el(
        "p.hint",
        "Behind counts the messages after the last committed batch. To get the option with which "
        "another query continues there:",
    )
    command = visit.command("checkpoint", directory, options=["--start"])
    return Page(directory, join(content, hint, command), "checkpoints", trail)


def _list_row(visit: Visit, index: int, directory: str) -> ui.HtmlTableRow:
    href = path("checkpoints", index)
    name: Child = el("a", directory, href=href)
    try:
        batches = read_checkpoint(directory)
        last = latest_batch(batches)
        behind = total_behind(query_positions(visit.admin, last))
    except (RocketPollError, OSError) as error:
        return ui.HtmlTableRow((join(name, el("div.sub", str(error))), None, None, None), href)
    return ui.HtmlTableRow((name, last.batch_id, ui.age(last.timestamp_ms), behind), href)


def _queue_row(position: QueryPosition) -> ui.HtmlTableRow:
    queue = position.queue
    return ui.HtmlTableRow(
        (
            str(position.source),
            el("a", queue.topic, href=topic_path(queue.topic)),
            queue_text(queue),
            position.next_offset,
            "deleted" if position.end is None else position.end,
            position.behind,
            ui.age(position.stored_ms),
        )
    )


def _batch_rows(batches: Sequence[CheckpointedBatch]) -> Iterator[ui.HtmlTableRow]:
    shown = list(batches[-_BATCHES_SHOWN:])
    earlier = batches[-_BATCHES_SHOWN - 1] if len(batches) > _BATCHES_SHOWN else None
    before = [earlier, *shown[:-1]]
    for last, batch in zip(reversed(before), reversed(shown), strict=True):
        state = (
            ui.badge("committed", "good")
            if batch.is_committed
            else ui.badge("not committed", "warn")
        )
        count = None if last is None else _total_offsets(batch) - _total_offsets(last)
        yield ui.HtmlTableRow((batch.batch_id, ui.age(batch.timestamp_ms), state, count))


def _total_offsets(batch: CheckpointedBatch) -> int:
    return sum(
        position.next_offset
        for offset in batch.offsets.values()
        for position in offset.positions.values()
    )
