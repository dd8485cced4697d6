"""Checkpoints of Spark's streaming queries: their batches, and how far they are behind.

Only directories that the program was started with are read: a browser names none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from http import HTTPStatus
from typing import Final

from rmq_spark.cli.console.frame import Page
from rmq_spark.cli.console.guard import Refused
from rmq_spark.cli.console.html import Child, Html, el, join, path
from rmq_spark.cli.console.parts import (
    NOTHING_YET,
    Column,
    Row,
    badge,
    card,
    empty,
    figures,
    live,
    number,
    table,
    trouble,
    when,
)
from rmq_spark.cli.console.visit import Visit, queue_text, topic_path
from rmq_spark.cli.spark.checkpoint_lag import QueryPlace, last_written, places_of, total_behind
from rmq_spark.errors import RocketPollError
from rmq_spark.spark.checkpoint import CheckpointedBatch, read_checkpoint

_BATCHES: Final = 20
_LIST: Final = (
    Column("Directory", "grow"),
    Column("Last batch", "number"),
    Column("Began", "number"),
    Column("Behind", "number"),
)
_QUEUES: Final = (
    Column("Source", "wide"),
    Column("Topic", "grow"),
    Column("Queue"),
    Column("Next", "number"),
    Column("End", "number.wide"),
    Column("Behind", "number"),
    Column("Last read was stored", "number.wide"),
)
_HISTORY: Final = (
    Column("Batch", "number"),
    Column("Began", "grow"),
    Column("State"),
    Column("Messages in it", "number"),
)


def checkpoints(visit: Visit) -> Page:
    """Return the list of the checkpoints that the console was started with."""
    if not visit.checkpoints:
        nothing = empty(
            "No checkpoints are named",
            "Name the checkpointLocation of a query, and its batches and its lag show here. It is "
            "read from this machine's files; a browser can name none.",
            command=visit.command("console", options=["--checkpoint", "/srv/checkpoints/orders"]),
        )
        return Page("Checkpoints", nothing, "checkpoints")
    rows = [
        _list_row(visit, number_, directory) for number_, directory in enumerate(visit.checkpoints)
    ]
    return Page("Checkpoints", live("checkpoints", table(_LIST, rows)), "checkpoints")


def checkpoint(visit: Visit) -> Page:
    """Return the page of one checkpoint."""
    text = visit.request.segments[1]
    is_known = text.isascii() and text.isdigit() and int(text[:9]) < len(visit.checkpoints)
    if not is_known:
        raise Refused(
            HTTPStatus.NOT_FOUND, "There is no such checkpoint.", "The list shows all there are."
        )
    directory = visit.checkpoints[int(text)]
    trail = (("Checkpoints", "/checkpoints"),)
    try:
        batches = read_checkpoint(directory)
    except (RocketPollError, OSError) as error:
        return Page(directory, _unreadable(error), "checkpoints", trail)
    last = last_written(batches)
    places = places_of(visit.admin, last)
    content = live(
        "checkpoint",
        figures(
            [
                ("Behind", number(total_behind(places))),
                ("Last committed", f"batch {last.batch_id}" if last.is_committed else "none"),
                ("Began", when(last.timestamp_ms)),
            ]
        ),
        card("Queues", table(_QUEUES, [_queue_row(each) for each in places])),
        card("Batches", table(_HISTORY, list(_batch_rows(batches)))),
    )
    says = el(
        "p.hint",
        "Behind is what the topics hold beyond the last committed batch. To start another query "
        "there:",
    )
    command = visit.command("checkpoint", directory, options=["--start"])
    return Page(directory, join(content, says, command), "checkpoints", trail)


def _list_row(visit: Visit, number_: int, directory: str) -> Row:
    href = path("checkpoints", number_)
    name: Child = el("a", directory, href=href)
    try:
        batches = read_checkpoint(directory)
        last = last_written(batches)
        behind = total_behind(places_of(visit.admin, last))
    except (RocketPollError, OSError) as error:
        return Row((join(name, el("div.sub", str(error))), NOTHING_YET, NOTHING_YET, "-"), href)
    return Row((name, number(last.batch_id), when(last.timestamp_ms), number(behind)), href)


def _unreadable(error: Exception) -> Html:
    says = "Is it the checkpointLocation of a query that reads from rocketpoll, on this machine?"
    return trouble("This checkpoint cannot be read", str(error), says)


def _queue_row(place: QueryPlace) -> Row:
    queue = place.queue
    return Row(
        (
            str(place.source),
            el("a", queue.topic, href=topic_path(queue.topic)),
            queue_text(queue),
            number(place.next_offset),
            "gone" if place.end is None else number(place.end),
            NOTHING_YET if place.behind is None else number(place.behind),
            when(place.stored_ms),
        )
    )


def _batch_rows(batches: Sequence[CheckpointedBatch]) -> Iterator[Row]:
    shown = list(batches[-_BATCHES:])
    earlier = batches[-_BATCHES - 1] if len(batches) > _BATCHES else None
    before = [earlier, *shown[:-1]]
    for last, batch in zip(reversed(before), reversed(shown), strict=True):
        state = badge("committed", "good") if batch.is_committed else badge("not committed", "warn")
        count = None if last is None else _total(batch) - _total(last)
        yield Row((number(batch.batch_id), when(batch.timestamp_ms), state, number(count)))


def _total(batch: CheckpointedBatch) -> int:
    return sum(
        position.next_offset
        for offset in batch.offsets.values()
        for position in offset.positions.values()
    )
