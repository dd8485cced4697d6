"""A query's checkpoint, read from outside: its batches, their ends, and how to continue from them.

    checkpoints/offsets/17   "v1", the batch's metadata, then a line for each source: ours is JSON
                             "v2", if sources have names: each line begins with the name and a colon
    checkpoints/commits/17   there is one if batch 17 has been written by the sink

A local directory is read without Spark, a directory on another file system through a session.
Nothing is written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlparse

from rmq_spark.client.arguments import (
    explain_keywords,
)
from rmq_spark.spark.errors import CheckpointError
from rmq_spark.spark.plan.source_offset import SourceOffset

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_OFFSETS: Final = "offsets"
_COMMITS: Final = "commits"
_PATH_NOT_FOUND: Final = "PATH_NOT_FOUND"
_FILE_URL: Final = re.compile(r"file:(?://[^/]*)?(/.*)", re.DOTALL)


class CheckpointFiles:
    """The files of a checkpoint: in a local directory, or in one that a Spark session reads."""

    def __init__(self, location: str | Path, spark: SparkSession | None = None) -> None:
        """Take a path or a URL; the path of a ``file:`` URL is literal, as in Hadoop.

        Raises:
            CheckpointError: The files are not on this machine, and there is no session to read
                them.
        """
        self.root, self._spark = str(location).rstrip("/"), spark
        if spark is not None:
            return
        scheme = urlparse(str(location)).scheme
        if scheme and scheme != "file":
            raise CheckpointError(
                f"{location} is not a local directory: give a Spark session that can read it "
                "(spark=spark)"
            )
        file_url = _FILE_URL.fullmatch(str(location))
        self.root = str(Path(location) if file_url is None else Path(file_url[1]))

    def offsets(self) -> Mapping[int, str] | None:
        """Return the text of each batch, or None if the directory is not a checkpoint."""
        return self._texts(_OFFSETS)

    def committed(self) -> frozenset[int]:
        """Return the ids of the batches that were committed."""
        return frozenset(self._texts(_COMMITS) or ())

    def _texts(self, folder: str) -> Mapping[int, str] | None:
        if self._spark is not None:
            return _read_by_spark(self._spark, f"{self.root}/{folder}")
        directory = Path(self.root) / folder
        if not directory.is_dir():
            return None
        paths = [path for path in directory.iterdir() if _is_batch_file(path.name)]
        for path in paths:
            if not path.is_file():  # opening a pipe would block
                raise CheckpointError(
                    f"{path} is not a file, and Spark creates only files there: remove it, and "
                    "find out what created it"
                )
        return {
            int(path.name): path.read_text(encoding="utf-8", errors="replace") for path in paths
        }


def _read_by_spark(spark: SparkSession, folder: str) -> Mapping[int, str] | None:
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415  # only to read with Spark
    from pyspark.errors import PySparkException  # noqa: PLC0415  # only to read with Spark

    try:
        files = spark.read.text(folder, wholetext=True)
        rows = files.select("value", "_metadata.file_name").collect()
    except PySparkException as error:
        if error.getCondition() == _PATH_NOT_FOUND:
            return None
        raise CheckpointError(f"{folder} cannot be read: {error}") from error
    except Py4JJavaError as error:  # Java errors without a PySpark class
        why = error.java_exception.toString()
        raise CheckpointError(f"{folder} cannot be read: {why}") from error
    return {int(row.file_name): row.value for row in rows if _is_batch_file(row.file_name)}


def _is_batch_file(name: str) -> bool:
    return name.isascii() and name.isdigit()


_NO_OFFSET = "-"


@dataclass(frozen=True, slots=True)
class CheckpointedBatch:
    """One batch, with its end in each rocketpoll source of the query, by number or name."""

    batch_id: int
    is_committed: bool
    timestamp_ms: int | None
    offsets: dict[int | str, SourceOffset]


@explain_keywords
def read_checkpoint(
    location: str | Path, spark: SparkSession | None = None
) -> list[CheckpointedBatch]:
    """Return all batches that a checkpoint still has, in order.

    Args:
        location: The checkpoint's directory.
        spark: A session that can read the directory, if it is not a local one.

    Raises:
        CheckpointError: The directory is missing or not a checkpoint, or a batch cannot be read.
    """
    files = CheckpointFiles(location, spark)
    texts = files.offsets()
    if texts is None:
        raise CheckpointError(
            f"{files.root} is not the checkpoint of a query: it has no folder 'offsets'. "
            "Give the query's checkpointLocation"
        )
    if not texts:
        raise CheckpointError(f"{files.root} holds no batch yet")
    committed = files.committed()
    return [
        _parse_batch(
            f"{files.root}/offsets/{number}",
            number,
            texts[number],
            is_committed=number in committed,
        )
        for number in sorted(texts)
    ]


@explain_keywords
def starting_offsets(
    location: str | Path,
    *,
    batch_id: int | None = None,
    source: int | str = 0,
    spark: SparkSession | None = None,
) -> str:
    """Return a value of ``startingOffsets`` for a query that continues after a checkpointed batch.

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
                f"no batch of {location} has been committed. Choose one with batch_id"
            )
        batch = committed[-1]
    else:
        batch = find_batch(location, batches, batch_id)
    if source not in batch.offsets:
        names = ", ".join(map(str, batch.offsets)) or "none"
        raise CheckpointError(
            f"source {source} of batch {batch.batch_id} is not a rocketpoll source. Use one of: "
            f"{names}"
        )
    return json.dumps(batch.offsets[source].to_json()["offsets"])


def find_batch(
    location: str | Path, batches: Sequence[CheckpointedBatch], batch_id: int
) -> CheckpointedBatch:
    """Return the batch with a given id among those of a checkpoint."""
    for batch in batches:
        if batch.batch_id == batch_id:
            return batch
    batch_range = f"{batches[0].batch_id} to {batches[-1].batch_id}"
    raise CheckpointError(f"{location} has the batches {batch_range}, not {batch_id}")


def _parse_batch(path: str, number: int, text: str, *, is_committed: bool) -> CheckpointedBatch:
    lines = text.splitlines()
    if len(lines) < 2 or not lines[0].startswith("v"):
        raise CheckpointError(f"{path} is damaged: it does not begin like an offset log")
    if lines[0] not in ("v1", "v2"):
        raise CheckpointError(
            f"{path} is of version {lines[0]} of Spark's offset log; this release reads v1 and v2"
        )
    texts: dict[int | str, str] = dict(enumerate(lines[2:]))
    if lines[0] == "v2":
        named = (line.partition(":") for line in lines[2:])
        texts = {int(name) if name.isdigit() else name: text for name, _, text in named}
    try:
        metadata = json.loads(lines[1])
        documents = {at: json.loads(text) for at, text in texts.items() if text != _NO_OFFSET}
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
