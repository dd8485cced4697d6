"""Rows about staged batches: staged chunks, and a commit of the maximum number of rows."""

from __future__ import annotations

from collections.abc import Iterator
from zlib import crc32

import numpy as np

from benchmarks.gaps.asked import Scale, command
from benchmarks.gaps.measured import Client, MeasuredBroker
from benchmarks.gaps.row import Row, row_of
from rmq_spark.wire.bodies import encode_body
from rmq_spark.wire.bodies.staged_batches import CommitBatchRequestBody, StagedAttempt
from rmq_spark.wire.chunk.sized_chunk import encode_sizes
from rmq_spark.wire.codes import RequestCode
from rmq_spark.wire.extensions import Extension
from rmq_spark.wire.headers.members import (
    BatchRequestHeader,
    ForgetSinkRequestHeader,
    LastBatchRequestHeader,
    StageChunkRequestHeader,
)
from rmq_spark.wire.message.record import StoredMessage, encode_record
from rmq_spark.wire.remoting.command import RemotingCommand


def batch_rows(broker: MeasuredBroker, client: Client, scale: Scale) -> Iterator[Row]:
    """Stage two batches; abort one and commit the other."""
    client.connection.extensions = frozenset(Extension)
    record = encode_record(StoredMessage(topic="staged", body=b"x"))
    body = encode_sizes(np.full(scale.chunk, len(record), np.int32)) + record * scale.chunk
    header = StageChunkRequestHeader("s", 0, "q", "a", 0, "staged", 0, "TBW102", 1)
    stage = command(RequestCode.STAGE_CHUNK, header, body)
    broker.send(client, [stage])
    gap = broker.usual_turn(scale.rounds, client, [stage])
    name = f"a chunk of {scale.chunk:,} messages of 1 byte"
    yield row_of(f"{name} that is staged", gap, RequestCode.STAGE_CHUNK)
    attempt = StagedAttempt(attempt="a", chunks=1, rows=scale.chunk, crc=crc32(body))
    named = encode_body(CommitBatchRequestBody(attempts=(attempt,)))
    batch = BatchRequestHeader("s", 0, "q")
    gap = broker.longest_turn(client, [command(RequestCode.COMMIT_BATCH, batch, named)])
    yield row_of(f"{name} that is committed", gap, RequestCode.COMMIT_BATCH)
    broker.send(client, [command(RequestCode.STAGE_CHUNK, header._replace(batch_id=1), body)])
    abort = command(RequestCode.ABORT_BATCH, batch._replace(batch_id=1))
    gap = broker.longest_turn(client, [abort])
    yield row_of(f"{name} that is given up", gap, RequestCode.ABORT_BATCH)
    last = [command(RequestCode.LAST_BATCH, LastBatchRequestHeader("s"))] * scale.requests
    gap = broker.usual_turn(scale.rounds, client, last)
    yield row_of(f"{len(last)} looks at a last batch", gap, RequestCode.LAST_BATCH)
    gap = broker.usual_turn(scale.rounds, client, [RemotingCommand(RequestCode.ALL_SINKS)])
    yield row_of("a list of all sinks", gap, RequestCode.ALL_SINKS)
    forget = command(RequestCode.FORGET_SINK, ForgetSinkRequestHeader("s"))
    gap = broker.longest_turn(client, [forget])
    yield row_of("a sink that is forgotten", gap, RequestCode.FORGET_SINK)
