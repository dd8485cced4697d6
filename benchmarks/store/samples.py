"""Messages of 100 bytes with a key and a tag, as chunks, and logs filled with them.

The log's own class writes a log chunk by chunk, with queues interleaved message by message, which
no single append of a chunk could do.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.store.workspace import now_ms
from benchmarks.traffic import VariedTraffic
from rmq_spark.wire.chunk import EncodedChunk, RecordChunk, encode_chunk
from rmq_spark.wire.chunk.checksums import with_empty_checksums, write_checksums
from rmq_spark.wire.message.hosts import parse_host
from rmq_spark.wire.message.properties import encode_properties
from rmq_spark.wire.message.record import StoredMessage
from rocketpoll.broker.store.components import COMMIT_LOG
from rocketpoll.broker.store.config import StoreConfig
from rocketpoll.broker.store.files.disk import LocalDisk
from rocketpoll.broker.store.files.file_pool import FilePool
from rocketpoll.broker.store.log.commit_log import CommitLog, EncodedRecords

TOPIC = "orders"
BODY_BYTES = 100
KEY_DIGITS = 9

_TAGS = pa.array(["created", "paid", "delivered"])
"""Tags of different lengths in turn, because equal records would allow shortcuts."""

_HOST = "10.0.0.1:10911"
_SEED = 11
_AT_A_TIME = 32_768
_POOL = random.Random(_SEED).randbytes(1 << 20)


def encoded(first: int, count: int, queues: int = 1) -> EncodedChunk:
    """Return records of messages for these queues in turn, with keys from ``first`` on."""
    numbers = np.arange(first, first + count)
    digits = pc.utf8_lpad(pa.array(numbers).cast(pa.string()), KEY_DIGITS, "0")
    at = (numbers * 7919) % (len(_POOL) - BODY_BYTES)
    bodies = np.frombuffer(_POOL, np.uint8)[at[:, None] + np.arange(BODY_BYTES)]
    ends = np.arange(count + 1, dtype=np.int32) * BODY_BYTES
    columns = {
        "topic": TOPIC,
        "queueId": pa.array((numbers % queues).astype(np.int32)),
        "body": pa.BinaryArray.from_buffers(
            pa.binary(),
            count,
            [None, pa.py_buffer(ends), pa.py_buffer(np.ascontiguousarray(bodies))],
        ),
        "keys": pc.binary_join_element_wise("order-", digits, ""),
        "tags": _TAGS.take(pa.array(numbers % len(_TAGS))),
        "bornTimestamp": now_ms(),
        "bornHost": _HOST,
        "storeHost": _HOST,
    }
    return encode_chunk(columns)


def stored(chunk: EncodedChunk) -> RecordChunk:
    """Return the records as the log holds them: with checksums, which are still empty."""
    return with_empty_checksums(RecordChunk(chunk.data, chunk.sizes))


def record_bytes() -> float:
    """Return the average size of a record in the log, in bytes."""
    return float(stored(encoded(0, len(_TAGS))).sizes.mean())


def message(number: int) -> StoredMessage:
    """Return one of these messages, for queue 0."""
    properties = {
        "KEYS": f"order-{number:0{KEY_DIGITS}}",
        "TAGS": _TAGS[number % len(_TAGS)].as_py(),
    }
    return _message(_POOL[:BODY_BYTES], properties)


def varied_message(number: int) -> StoredMessage:
    """Return a message as services send it, for queue 0; each number has its own."""
    traffic = VariedTraffic(number)
    keys = " ".join(traffic.keys())
    properties = {"KEYS": keys, "TAGS": traffic.tag(), **traffic.properties()}
    return _message(traffic.body(), properties)


def _message(body: bytes, properties: Mapping[str, str]) -> StoredMessage:
    host = parse_host(_HOST)
    return StoredMessage(
        topic=TOPIC,
        body=body,
        properties_text=encode_properties(properties),
        born_timestamp=now_ms(),
        born_host=host,
        store_host=host,
    )


def size_name(count: int) -> str:
    """Return a size in bytes as text, for the name of a case."""
    return f"{count >> 20} MB" if count >= 1 << 20 else f"{count >> 10} KB"


class LogWriter:
    """A commit log that grows chunk by chunk, without a store."""

    def __init__(self, root: Path, queues: int) -> None:
        """Open the log of a new store in ``root``."""
        size = StoreConfig(store_path_root_dir=root).mapped_file_size_commit_log
        root.mkdir(exist_ok=True)
        self.log = CommitLog(FilePool(LocalDisk()), root / COMMIT_LOG, size, now_ms)
        self._queues = queues
        self._count = 0

    def write(self, count: int) -> None:
        """Append so many messages, and flush."""
        end = self._count + count
        while self._count < end:
            chunk = stored(encoded(self._count, min(_AT_A_TIME, end - self._count), self._queues))
            numbers = np.arange(self._count, self._count + len(chunk))
            offsets, times_at = numbers // self._queues, chunk.store_timestamp_at
            seal = partial(write_checksums, chunk)
            self.log.append_many([EncodedRecords(chunk.data, chunk.sizes, offsets, times_at, seal)])
            self._count += len(chunk)
        self.log.flush()
