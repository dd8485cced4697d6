"""``rocketpoll checkpoint DIR``: shows a query's batches and lag, and how others can continue.

Local files are read without pyspark and Java. For other file systems the command starts its own
Spark session, with the settings that Spark finds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlparse

import click

from rmq_spark.cli.groups.group_command import confirm_moves
from rmq_spark.cli.groups.group_state import OffsetMove, apply_seek, is_unknown_group
from rmq_spark.cli.shell.command_tree import CommandWithExample
from rmq_spark.cli.shell.connection import ClusterAccess, cluster_options
from rmq_spark.cli.shell.failures import Failure
from rmq_spark.cli.shell.output import (
    local_time,
    output_option,
    queue_fields,
    show_document,
    show_rows,
    write_text,
)
from rmq_spark.cli.shell.parameter_types import PositionKind, TopicPosition
from rmq_spark.cli.spark.checkpoint_lag import (
    QueryPosition,
    latest_batch,
    plan_moves,
    query_positions,
    total_behind,
)
from rmq_spark.cli.spark.spark_runtime import INSTALL_PYSPARK, has_pyspark
from rmq_spark.errors import format_count
from rmq_spark.spark.errors import SparkError
from rmq_spark.spark.monitoring.checkpoint import (
    CheckpointedBatch,
    find_batch,
    read_checkpoint,
    starting_offsets,
)
from rmq_spark.spark.plan.source_offset import QueuePosition
from rmq_spark.wire.message_queue import MessageQueue

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from rmq_spark.client.admin.admin import Admin

_BATCHES_SHOWN: Final = 10
_COLUMNS: Final = (
    *("batch", "committed", "source", "topic", "broker", "queue", "next", "last_read_was_stored"),
)


def _source_id(text: str) -> int | str:
    return int(text) if text.isdigit() else text


@click.command(
    cls=CommandWithExample,
    example="rocketpoll checkpoint ~/checkpoints/orders --lag\n"
    "rocketpoll checkpoint ~/checkpoints/orders --to-group billing --dry-run\n"
    "rocketpoll checkpoint ~/checkpoints/orders --start",
)
@click.argument("directory")
@click.option(
    "--all", "is_all", is_flag=True, help=f"Show all batches. [default: the last {_BATCHES_SHOWN}]"
)
@click.option("--lag", is_flag=True, help="Show the lag of the query, queue by queue.")
@click.option("--to-group", "group", metavar="GROUP",
              help="Move a group to the position of the query; create it if needed.")  # fmt: skip
@click.option("--dry-run", is_flag=True,
              help="With --to-group: show the moves, and change nothing.")  # fmt: skip
@click.option("--yes", is_flag=True, help="With --to-group: do not ask for confirmation.")
@click.option("--start", is_flag=True, help="Print only the option startingOffsets with which "
              "another query continues after a batch.")  # fmt: skip
@click.option("--batch", type=int, metavar="N",
              help="Batch for --start or --to-group. [default: the last committed]")  # fmt: skip
@click.option("--source", metavar="N", type=_source_id,
              help="Source of the query, by number or name. Needed for --start and --to-group if "
              "there are several.")  # fmt: skip
@output_option
@cluster_options
def checkpoint(directory: str, *, output: str, access: ClusterAccess, **how: Any) -> None:
    """Show a streaming query's checkpoint and lag, and let others continue from it.

    DIRECTORY is the query's checkpointLocation: a local directory, or a URL that Spark can read.
    Only --lag and --to-group connect to the cluster.
    """
    ways = [name for name in ("is_all", "lag", "group", "start") if how[name]]
    if len(ways) > 1:
        raise click.UsageError("--all, --lag, --to-group and --start exclude each other. Give one")
    if not {"group", "start"} & {*ways} and (how["batch"], how["source"]) != (None, None):
        raise click.UsageError("--batch and --source need --start or --to-group. Add one of them")
    if (how["dry_run"] or how["yes"]) and not how["group"]:
        raise click.UsageError("--dry-run and --yes need --to-group. Add it")
    source, number = how["source"], how["batch"]
    try:
        with _spark_session(directory) as spark:
            if how["start"]:
                start = starting_offsets(
                    directory, batch_id=number, source=source or 0, spark=spark
                )
            else:
                batches = read_checkpoint(directory, spark)
                batch = (
                    latest_batch(batches)
                    if number is None
                    else find_batch(directory, batches, number)
                )
    except (SparkError, OSError) as error:
        raise Failure(str(error)) from error
    if how["start"]:
        write_text(f"{start}\n")
    elif how["lag"]:
        _show_lag(batch, access, output)
    elif how["group"]:
        with access.admin() as admin:
            moves = plan_moves(admin, how["group"], _query_positions(admin, batch), source)
            with confirm_moves(
                how["group"], moves, output, is_dry_run=how["dry_run"], yes=how["yes"]
            ):
                if not how["dry_run"]:
                    _apply_moves(admin, how["group"], moves)
    else:
        _show_batches(batches, output, is_all=how["is_all"])


@contextmanager
def _spark_session(location: str) -> Iterator[SparkSession | None]:
    """Yield a session for a remote location, or None for a local one."""
    if urlparse(location).scheme in ("", "file"):
        yield None
        return
    if not has_pyspark():
        raise SparkError(
            f"reading {location} needs Spark, and this Python has no pyspark. Run {INSTALL_PYSPARK}"
        )
    from pyspark.sql import SparkSession  # noqa: PLC0415  # brings Java

    spark = SparkSession.builder.appName("rocketpoll checkpoint").master("local[1]").getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()


def _query_positions(admin: Admin, batch: CheckpointedBatch) -> list[QueryPosition]:
    """Return the positions of a query; raise an error if all of its queues are gone."""
    positions = query_positions(admin, batch)
    if positions and all(each.end is None for each in positions):
        admin.route(positions[0].queue.topic)
    return positions


def _show_lag(batch: CheckpointedBatch, access: ClusterAccess, output: str) -> None:
    with access.admin() as admin:
        positions = _query_positions(admin, batch)
    document = {
        "batch": batch.batch_id,
        "began": None if batch.timestamp_ms is None else local_time(batch.timestamp_ms),
        "committed": batch.is_committed,
        "behind": total_behind(positions),
        "queues": [
            {
                "source": each.source,
                **queue_fields(each.queue),
                "next": each.next_offset,
                "end": "gone" if each.end is None else each.end,
                "behind": each.behind,
                "last_read_was_stored": local_time(each.stored_ms or 0),
            }
            for each in positions
        ],
    }
    show_document(document, output)


def _apply_moves(admin: Admin, group: str, moves: Sequence[OffsetMove]) -> None:
    if is_unknown_group(admin, group):  # RocketMQ 5 stores no offsets of an unknown group
        admin.create_group(group)
    apply_seek(admin, group, moves, TopicPosition(PositionKind.OFFSET), is_all=False)


def _show_batches(batches: Sequence[CheckpointedBatch], output: str, *, is_all: bool) -> None:
    shown = batches if is_all else batches[-_BATCHES_SHOWN:]
    if output != "table":
        rows = [
            {
                "batch": batch.batch_id,
                "committed": batch.is_committed,
                "source": source,
                **queue_fields(queue),
                "next": position.next_offset,
                "last_read_was_stored": local_time(position.stored_ms or 0),
            }
            for batch in shown
            for source, queue, position in _positions(batch)
        ]
        show_rows(rows, _COLUMNS, output, empty_text="no rocketpoll source in these batches")
        return
    if len(shown) < len(batches):
        hidden = format_count(len(batches) - len(shown), "earlier batch", "earlier batches")
        write_text(f"{hidden} not shown. Add --all to see them\n")
    for batch in shown:
        write_text("".join(f"{line}\n" for line in _batch_lines(batch)))


def _positions(batch: CheckpointedBatch) -> Iterator[tuple[int | str, MessageQueue, QueuePosition]]:
    for source, offset in batch.offsets.items():
        for queue, position in sorted(offset.positions.items()):
            yield source, queue, position


def _batch_lines(batch: CheckpointedBatch) -> Iterator[str]:
    state = "committed" if batch.is_committed else "not committed"
    yield f"batch {batch.batch_id}  {_time(batch.timestamp_ms)}  {state}"
    if not batch.offsets:
        yield "  no rocketpoll source"
    for source, queue, position in _positions(batch):
        stored = "" if position.stored_ms is None else f"  last stored {_time(position.stored_ms)}"
        name = f"{queue.topic} > {queue.broker_name} > {queue.queue_id}"
        yield f"  source {source}  {name}  next {position.next_offset}{stored}"


def _time(ms: int | None) -> str:
    if ms is None:
        return "at an unknown time"
    return datetime.fromtimestamp(ms / 1000, timezone.utc).isoformat(
        sep=" ", timespec="milliseconds"
    )
