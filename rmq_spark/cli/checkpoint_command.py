"""``rocketpoll checkpoint DIR``: a query's batches and where they end; how to go on from there.

Files of this machine are read without pyspark and Java, those of other file systems by a Spark of
its own, with the settings that Spark finds.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Final
from urllib.parse import urlparse

from rmq_spark.cli.spark import INSTALL, has_pyspark
from rmq_spark.errors import RocketPollError
from rmq_spark.spark.checkpoint import CheckpointedBatch, read_checkpoint, starting_offsets
from rmq_spark.spark.errors import SparkError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SHOWN: Final = 10


def run_checkpoint(arguments: Sequence[str]) -> int:
    """Run ``rocketpoll checkpoint`` and return the exit code.

    It is 1 if the directory is no checkpoint of a rocketpoll query, or has no such batch.
    """
    given = _parsed(arguments)
    try:
        if given.start:
            sys.stdout.write(f"{_start(given)}\n")
        else:
            sys.stdout.writelines(f"{line}\n" for line in _listing(given))
    except (RocketPollError, OSError) as error:
        sys.stderr.write(f"rocketpoll checkpoint: {error}\n")
        return 1
    return 0


def _parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="rocketpoll checkpoint",
        description=(
            "the batches of a streaming query, and where each ends, from its checkpointLocation"
        ),
    )
    parser.add_argument(
        "directory",
        help="the query's checkpointLocation: a local directory, or a URL that Spark can read",
    )
    parser.add_argument(
        "--all", action="store_true", help=f"all batches, not only the last {_SHOWN}"
    )
    parser.add_argument(
        "--start",
        action="store_true",
        help="print option startingOffsets to go on behind a batch, and no more",
    )
    parser.add_argument(
        "--batch", type=int, metavar="N", help="that batch (the last that was committed)"
    )
    parser.add_argument(
        "--source",
        type=_source,
        default=0,
        metavar="N",
        help="which source of the query, by its number or its name (0)",
    )
    given = parser.parse_args(arguments)
    if not given.start and (given.batch is not None or given.source):
        parser.error("--batch and --source are for --start")
    if given.start and given.all:
        parser.error("--all is not for --start")
    return given


def _source(text: str) -> int | str:
    return int(text) if text.isdigit() else text


def _start(given: argparse.Namespace) -> str:
    with _reader(given.directory) as spark:
        return starting_offsets(
            given.directory, batch_id=given.batch, source=given.source, spark=spark
        )


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


def _listing(given: argparse.Namespace) -> Iterator[str]:
    with _reader(given.directory) as spark:
        batches = read_checkpoint(given.directory, spark)
    shown = batches if given.all else batches[-_SHOWN:]
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
