"""Format ``ready-made``: the cheapest Python source of the same rows, and a sink that drops all.

What it costs is Spark's own part for any source or sink in Python. It maps a file of record batches
into memory and returns them repeatedly.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

FORMAT = "ready-made"
FILE, ROWS, PARTITIONS, COLUMN = "file", "rows", "partitions", "column"
"""Option names: the file of record batches, the number of rows and of tasks, and the column."""


class ReadyMade(DataSource):
    """The source and the sink."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format()``."""
        return FORMAT

    def schema(self) -> StructType:
        """Return the columns of the file, or the selected one."""
        with pa.memory_map(self.options[FILE]) as file:
            return from_arrow_schema(_chosen(pa.ipc.open_file(file), self.options)[0].schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802  # Spark's name and signature
        """Return the reader of a stream that has a single batch."""
        return _Reader(self.options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:  # noqa: ARG002, FBT001  # Spark's signature
        """Return the writer of a batch."""
        return _Writer()

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: ARG002, FBT001, N802  # Spark's name and signature
        """Return the writer of a stream."""
        return _StreamWriter()


class _Reader(DataSourceStreamReader):
    """Returns all rows at once, the same number in each task."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = dict(options)

    def initialOffset(self) -> dict[str, int]:  # noqa: N802  # Spark's name
        return {ROWS: 0}

    def latestOffset(self, *_: Any) -> dict[str, int]:  # noqa: N802  # Spark's name; 4.2 hands over two things
        return {ROWS: int(self._options[ROWS])}

    def partitions(self, start: Mapping[str, int], end: Mapping[str, int]) -> list[InputPartition]:
        tasks = int(self._options[PARTITIONS])
        rows = end[ROWS] - start[ROWS]
        return [
            InputPartition(rows * (each + 1) // tasks - rows * each // tasks)
            for each in range(tasks)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        left = partition.value
        with pa.memory_map(self._options[FILE]) as file:
            batches = _chosen(pa.ipc.open_file(file), self._options)
            while left:
                for batch in batches:
                    part = batch.slice(0, left)
                    left -= part.num_rows
                    if part.num_rows:
                        yield part


class _Writer(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _dropped(iterator)


class _StreamWriter(DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _dropped(iterator)


def _dropped(batches: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
    for _ in batches:
        pass
    return WriterCommitMessage()


def _chosen(file: Any, options: Mapping[str, str]) -> list[pa.RecordBatch]:
    """Return the batches of a file, with all columns or the selected one."""
    batches = [file.get_batch(each) for each in range(file.num_record_batches)]
    return [batch.select([options[COLUMN]]) for batch in batches] if COLUMN in options else batches
