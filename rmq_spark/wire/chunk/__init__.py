"""Chunks: stored messages by the megabyte: records to Arrow columns, columns to records.

Results equal those of `record` and `message_batch`, which handle one message at a time. In the
wire, only this package needs numpy and pyarrow, and nothing else imports it. The names below are
imported on first use: a caller that only needs the sizes in a response (`sized_chunk`) loads
neither library.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from rmq_spark.wire.chunk.columns import COLUMNS, DEFAULT_COLUMNS, chunk_columns
    from rmq_spark.wire.chunk.decode import RecordChunk
    from rmq_spark.wire.chunk.encode import (
        EncodedChunk,
        encode_batch_columns,
        encode_chunk,
        encode_sized_chunk,
    )

_MODULES: Final = {
    "COLUMNS": "columns",
    "DEFAULT_COLUMNS": "columns",
    "EncodedChunk": "encode",
    "RecordChunk": "decode",
    "chunk_columns": "columns",
    "encode_batch_columns": "encode",
    "encode_chunk": "encode",
    "encode_sized_chunk": "encode",
}

__all__ = [
    "COLUMNS",
    "DEFAULT_COLUMNS",
    "EncodedChunk",
    "RecordChunk",
    "chunk_columns",
    "encode_batch_columns",
    "encode_chunk",
    "encode_sized_chunk",
]


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{module}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
