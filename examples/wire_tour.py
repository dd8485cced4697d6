"""A tour: one request in three header codecs, then 100,000 messages as a table.

It needs no broker and no network.
"""

from __future__ import annotations

import random
import time

from rmq_spark.wire.chunk import DEFAULT_COLUMNS, RecordChunk, chunk_columns, encode_chunk
from rmq_spark.wire.codes import PullSysFlag, RequestCode, SerializeType
from rmq_spark.wire.headers.members import PullMessageRequestHeader
from rmq_spark.wire.headers.operators import HEADERS
from rmq_spark.wire.remoting.command import RemotingCommand, decode_command
from rmq_spark.wire.remoting.framing import FrameReader

MESSAGES = 100_000


def show_a_pull_request() -> None:
    """Encode a pull request in each codec, and decode it from two pieces of a stream."""
    code = RequestCode.PULL_MESSAGE
    header = PullMessageRequestHeader(
        consumer_group="tour",
        topic="orders",
        queue_id=3,
        queue_offset=1_234_567,
        max_msg_nums=32,
        sys_flag=PullSysFlag.SUSPEND | PullSysFlag.SUBSCRIPTION,
        commit_offset=0,
        suspend_timeout_millis=15_000,
        sub_version=0,
        subscription="TagA || TagB",
    )
    codec = HEADERS[code].request
    assert codec is not None
    print("A pull request, as a frame in each header codec:\n")
    for serialize_type in SerializeType:
        command = RemotingCommand(
            code, opaque=7, ext_fields=codec.encode(header), serialize_type=serialize_type
        )
        data = command.encode()
        reader = FrameReader()
        reader.feed(data[:10])
        assert reader.next_frame() is None
        reader.feed(data[10:])
        frame = reader.next_frame()
        assert frame is not None
        read_back = codec.decode(decode_command(frame).ext_fields)
        assert read_back == header
        print(f"  {serialize_type.name:9} {len(data):4} bytes   {data[8:60]!r}...")
    print(f"\n  read back each time: {read_back}\n")


def show_a_chunk() -> None:
    """Convert columns to records as in a commit log, and back."""
    bodies = [random.randbytes(100) for _ in range(MESSAGES)]
    started = time.perf_counter()
    chunk = encode_chunk(
        {
            "topic": "orders",
            "body": bodies,
            "keys": [f"order-{number}" for number in range(MESSAGES)],
            "tags": [("created", "paid", None)[number % 3] for number in range(MESSAGES)],
            "queueOffset": list(range(MESSAGES)),
            "storeTimestamp": 1_700_000_000_000,
        }
    )
    encoded = time.perf_counter()
    table = chunk_columns(RecordChunk(chunk.data, chunk.sizes), DEFAULT_COLUMNS)
    decoded = time.perf_counter()
    print(f"{MESSAGES:,} messages: {chunk.data.size:,} bytes of records, decoded to a table:\n")
    print(f"  encoded in {encoded - started:.3f} s, including Python lists to Arrow")
    print(f"  decoded in {decoded - encoded:.3f} s, cold\n")
    print(table.schema.to_string())
    print()
    for row in table.slice(0, 3).to_pylist():
        print(" ", {**row, "body": row["body"][:8] + b"..."})


if __name__ == "__main__":
    show_a_pull_request()
    show_a_chunk()
