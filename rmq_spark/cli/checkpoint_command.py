"""``rocketpoll checkpoint DIR``: a query's batches and where they end; how to go on from there.

Files of this machine are read without pyspark and Java, those of other file systems by a Spark of
its own, with the settings that Spark finds.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Final
from urllib.parse import urlparse

import click

from rmq_spark.cli.failures import Failure
from rmq_spark.cli.spark import INSTALL, has_pyspark
from rmq_spark.cli.tree import HELP_SETTINGS, Verb
from rmq_spark.errors import RocketPollError
from rmq_spark.spark.checkpoint import CheckpointedBatch, read_checkpoint, starting_offsets
from rmq_spark.spark.errors import SparkError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SHOWN: Final = 10


@click.command(
    cls=Verb,
    context_settings=HELP_SETTINGS,
    example="rocketpoll checkpoint /srv/checkpoints/orders --start",
)
@click.argument("directory")
@click.option("--all", "is_all", is_flag=True, help=f"All batches, not only the last {_SHOWN}.")
@click.option("--start", is_flag=True, help="Print option startingOffsets to go on behind a batch, "
              "and no more.")  # fmt: skip
@click.option("--batch", type=int, metavar="N", help="That batch (the last that was committed).")
@click.option("--source", metavar="N", help="Source of the query, by its number or its name (0).")
def checkpoint(
    directory: str, *, is_all: bool, start: bool, batch: int | None, source: str | None
) -> None:
    """Show what a streaming query's checkpoint says, and how to go on from it.

    DIRECTORY is the query's checkpointLocation: a local directory, or a URL that Spark can read.
    """
    if not start and (batch is not None or source is not None):
        raise click.UsageError("--batch and --source are for --start")
    if start and is_all:
        raise click.UsageError("--all is not for --start")
    try:
        if start:
            sys.stdout.write(f"{_start(directory, batch, _source(source or '0'))}\n")
        else:
            sys.stdout.writelines(f"{line}\n" for line in _listing(directory, is_all=is_all))
    except BrokenPipeError:
        raise
    except (RocketPollError, OSError) as error:
        raise Failure(str(error)) from error


def _source(text: str) -> int | str:
    return int(text) if text.isdigit() else text


def _start(directory: str, batch: int | None, source: int | str) -> str:
    with _reader(directory) as spark:
        return starting_offsets(directory, batch_id=batch, source=source, spark=spark)


@contextmanager
def _reader(location: str) -> Iterator[SparkSession | None]:
    """Yield a session for a remote location, or None for a local one."""
    if urlparse(location).scheme in ("", "file"):
        yield None
        return
    if not has_pyspark():
        raise SparkError(f"{location} is read by Spark, and this Python has no pyspark: {INSTALL}")
    from pyspark.sql import SparkSession  # noqa: PLC0415  # brings Java

    spark = SparkSession.builder.appName("rocketpoll checkpoint").master("local[1]").getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()


def _listing(directory: str, *, is_all: bool) -> Iterator[str]:
    with _reader(directory) as spark:
        batches = read_checkpoint(directory, spark)
    shown = batches if is_all else batches[-_SHOWN:]
    if len(shown) < len(batches):
        yield f"{len(batches) - len(shown)} earlier batches are not shown: --all"
    for batch in shown:
        yield from _lines_of(batch)


def _lines_of(batch: CheckpointedBatch) -> Iterator[str]:
    state = "committed" if batch.is_committed else "not committed"
    yield f"batch {batch.batch_id}  {_time(batch.timestamp_ms)}  {state}"
    if not batch.offsets:
        yield "  no source of it is rocketpoll's"
    for source, offset in batch.offsets.items():
        for queue, position in sorted(offset.positions.items()):
            stored = (
                "" if position.stored_ms is None else f"  last stored {_time(position.stored_ms)}"
            )
            name = f"{queue.topic} > {queue.broker_name} > {queue.queue_id}"
            yield f"  source {source}  {name}  next {position.next_offset}{stored}"


def _time(ms: int | None) -> str:
    if ms is None:
        return "at an unknown time"
    return datetime.fromtimestamp(ms / 1000, timezone.utc).isoformat(
        sep=" ", timespec="milliseconds"
    )
