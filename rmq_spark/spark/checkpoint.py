"""A query's checkpoint, read from outside: its batches, their ends, and how to go on from there.

    checkpoints/offsets/17   "v1", the batch's metadata, then a line for each source: ours is JSON
                             "v2", of sources that have names: each line has the name in front, and
                             a colon
    checkpoints/commits/17   there is one if batch 17 has been written by the sink

A local directory is read without Spark, one of another file system through a session. Nothing is
changed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rmq_spark.spark.checkpoint_files import checkpoint_files
from rmq_spark.spark.errors import CheckpointError
from rmq_spark.spark.source_offset import SourceOffset

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_OTHER_SOURCE = "-"


@dataclass(frozen=True, slots=True)
class CheckpointedBatch:
    """One batch, with its end in each rocketpoll source of the query, by number or name."""

    batch_id: int
    is_committed: bool
    timestamp_ms: int | None
    offsets: dict[int | str, SourceOffset]


def read_checkpoint(
    location: str | Path, spark: SparkSession | None = None
) -> list[CheckpointedBatch]:
    """Return all batches of a checkpoint that are still kept, in order.

    Args:
        location: The checkpoint's directory.
        spark: A session that can read the directory, if it is not a local one.

    Raises:
        CheckpointError: The directory does not exist, is no checkpoint, or a batch cannot be read.
    """
    files = checkpoint_files(location, spark)
    texts = files.offsets()
    if texts is None:
        raise CheckpointError(
            f"{files.root} is no checkpoint of a query: it has no folder 'offsets'"
        )
    if not texts:
        raise CheckpointError(f"{files.root} holds no batch yet")
    committed = files.committed()
    return [
        _batch(
            f"{files.root}/offsets/{number}",
            number,
            texts[number],
            is_committed=number in committed,
        )
        for number in sorted(texts)
    ]


def starting_offsets(
    location: str | Path,
    *,
    batch_id: int | None = None,
    source: int | str = 0,
    spark: SparkSession | None = None,
) -> str:
    """Return a value of ``startingOffsets`` for a query that goes on after a checkpointed batch.

    Args:
        location: The checkpoint's directory.
        batch_id: The batch; the last committed one by default.
        source: The source of the query, by its number, or by its name if it has one.
        spark: A session that can read the directory, if it is not a local one.

    Raises:
        CheckpointError: There is no such batch, or its source is not ours.
    """
    batches = read_checkpoint(location, spark)
    if batch_id is None:
        committed = [batch for batch in batches if batch.is_committed]
        if not committed:
            raise CheckpointError(
                f"no batch of {location} has been committed: name one by batch_id"
            )
        batch = committed[-1]
    else:
        batch = numbered(location, batches, batch_id)
    if source not in batch.offsets:
        ours = ", ".join(map(str, batch.offsets)) or "none"
        raise CheckpointError(
            f"source {source} of batch {batch.batch_id} is none of rocketpoll's; these are: {ours}"
        )
    return json.dumps(batch.offsets[source].to_json()["offsets"])


def numbered(
    location: str | Path, batches: Sequence[CheckpointedBatch], batch_id: int
) -> CheckpointedBatch:
    """Return the batch of a number among those of a checkpoint.

    Raises:
        CheckpointError: There is none.
    """
    for batch in batches:
        if batch.batch_id == batch_id:
            return batch
    there = f"{batches[0].batch_id} to {batches[-1].batch_id}"
    raise CheckpointError(f"{location} has the batches {there}, not {batch_id}")


def _batch(path: str, number: int, text: str, *, is_committed: bool) -> CheckpointedBatch:
    lines = text.splitlines()
    if len(lines) < 2 or not lines[0].startswith("v"):
        raise CheckpointError(f"{path} is damaged: it does not begin as an offset log does")
    if lines[0] not in ("v1", "v2"):
        raise CheckpointError(
            f"{path} is of version {lines[0]} of Spark's offset log; v1 and v2 are known here"
        )
    texts: dict[int | str, str] = dict(enumerate(lines[2:]))
    if lines[0] == "v2":
        named = (line.partition(":") for line in lines[2:])
        texts = {int(name) if name.isdigit() else name: text for name, _, text in named}
    try:
        metadata = json.loads(lines[1])
        documents = {at: json.loads(text) for at, text in texts.items() if text != _OTHER_SOURCE}
    except ValueError as error:
        raise CheckpointError(f"{path} is damaged: {error}") from error
    offsets = {
        at: SourceOffset.from_json(document)
        for at, document in documents.items()
        if isinstance(document, dict) and {"v", "offsets"} <= document.keys()
    }
    return CheckpointedBatch(
        number,
        is_committed,
        metadata.get("batchTimestampMs") if isinstance(metadata, dict) else None,
        offsets,
    )
