"""The files of a checkpoint, in a local directory or any that a Spark session can read.

It knows how they lie and what they are called, and not what they mean.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlparse

from rmq_spark.spark.errors import CheckpointError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_OFFSETS: Final = "offsets"
_COMMITS: Final = "commits"
_NOT_THERE: Final = "PATH_NOT_FOUND"
_FILE: Final = re.compile(r"file:(?://[^/]*)?(/.*)", re.DOTALL)


class LocalFiles:
    """A checkpoint in a directory of this machine."""

    def __init__(self, location: str | Path) -> None:
        """Take a path, or one behind the scheme ``file``, which is literal as in Hadoop."""
        place = _FILE.fullmatch(str(location))
        self.root = Path(location) if place is None else Path(place[1])

    def offsets(self) -> Mapping[int, str] | None:
        """Return the text of each batch; None if this is no checkpoint.

        Raises:
            CheckpointError: What has the name of a batch is no file.
        """
        folder = self.root / _OFFSETS
        if not folder.is_dir():
            return None
        paths = [path for path in folder.iterdir() if _is_number(path.name)]
        for path in paths:
            if not path.is_file():  # to open a pipe would be to wait
                raise CheckpointError(
                    f"{path} is no file, and Spark makes only files there: take it away, and look "
                    "what has put it there"
                )
        return {
            int(path.name): path.read_text(encoding="utf-8", errors="replace") for path in paths
        }

    def committed(self) -> frozenset[int]:
        """Return the batches that were committed."""
        folder = self.root / _COMMITS
        names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
        return frozenset(int(name) for name in names if _is_number(name))


class SparkFiles:
    """A checkpoint in a directory that a Spark session can read, with the session's settings."""

    def __init__(self, location: str, spark: SparkSession) -> None:
        self.root = location.rstrip("/")
        self._spark = spark

    def offsets(self) -> Mapping[int, str] | None:
        """Return the text of each batch; None if this is no checkpoint."""
        return self._texts(_OFFSETS)

    def committed(self) -> frozenset[int]:
        """Return the batches that were committed."""
        return frozenset(self._texts(_COMMITS) or ())

    def _texts(self, folder: str) -> Mapping[int, str] | None:
        from py4j.protocol import Py4JJavaError  # noqa: PLC0415  # who has a session has these
        from pyspark.errors import PySparkException  # noqa: PLC0415

        try:
            files = self._spark.read.text(f"{self.root}/{folder}", wholetext=True)
            rows = files.select("value", "_metadata.file_name").collect()
        except PySparkException as error:
            if error.getCondition() == _NOT_THERE:
                return None
            raise CheckpointError(f"{self.root}/{folder} cannot be read: {error}") from error
        except (
            Py4JJavaError
        ) as error:  # what Spark has no error of its own for, as an unknown file system
            why = error.java_exception.toString()
            raise CheckpointError(f"{self.root}/{folder} cannot be read: {why}") from error
        return {int(row.file_name): row.value for row in rows if _is_number(row.file_name)}


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdigit()


def checkpoint_files(location: str | Path, spark: SparkSession | None) -> LocalFiles | SparkFiles:
    """Return the files of a checkpoint.

    Raises:
        CheckpointError: The files are not on this machine, and there is no session to read them.
    """
    if spark is not None:
        return SparkFiles(str(location), spark)
    scheme = urlparse(str(location)).scheme
    if scheme and scheme != "file":
        raise CheckpointError(
            f"{location} is not a local directory: give a Spark session that can read it, as "
            "spark=spark"
        )
    return LocalFiles(location)
