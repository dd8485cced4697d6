"""Stored messages by the megabyte: records to Arrow columns, columns to records and batches.

The only part of the wire that needs numpy and pyarrow; nothing else there imports it. It comes to
the same results as `record` and `message_batch`, which do one message at a time.
"""

from rmq_spark.wire.chunk.batch import encode_batch_columns
from rmq_spark.wire.chunk.columns import COLUMNS, DEFAULT_COLUMNS, chunk_columns
from rmq_spark.wire.chunk.decode import RecordChunk
from rmq_spark.wire.chunk.encode import EncodedChunk, encode_chunk

__all__ = [
    "COLUMNS",
    "DEFAULT_COLUMNS",
    "EncodedChunk",
    "RecordChunk",
    "chunk_columns",
    "encode_batch_columns",
    "encode_chunk",
]
